"""A CPU that takes itself for a GPU: what is computed there is computed here."""

import sys


def pretend(monkeypatch):
    """Lets every module take a CPU for a GPU."""
    changed = 0
    for name, module in list(sys.modules.items()):
        if name.startswith("convattn.") and "is_accelerator" in vars(module):
            monkeypatch.setattr(module, "is_accelerator", lambda device: device.type != "meta")
            changed += 1
    assert changed > 5
