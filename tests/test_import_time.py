"""Start-up: importing the package and asking the command line for help load no torch, and few modules.

Modules are counted and not seconds, which a busy machine stretches: starting up is hardly more than loading them.
"""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "einops", "jaxtyping"}
HELP = "sys.argv = ['convattn', '--help']; from convattn.cli import main; main()"


def loaded_modules(statement: str) -> set[str]:
    """Runs a statement in a fresh interpreter and returns the modules that it loaded."""
    lines = ["import sys", "try:", f"    {statement}", "finally:"]
    lines.append("    print(*sys.modules, file=sys.stderr)")
    command = [sys.executable, "-c", "\n".join(lines)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(finished.stderr.split())


@pytest.mark.parametrize(
    ("statement", "most"),  # modules beyond those of Python's own start: 30 and 235 were counted
    [("import convattn", 45), (HELP, 350)],
    ids=["import", "help"],
)
def test_starting_loads_no_torch_and_little(statement, most):
    loaded = loaded_modules(statement)
    assert "convattn" in loaded
    assert not loaded & HEAVY
    assert len(loaded - loaded_modules("pass")) <= most


CONVERSION = (
    "import torch, convattn; "
    "convattn.network_to_attention(torch.nn.Conv2d(2, 3, 1), images=torch.ones(1, 2, 5, 7))"
)


def test_a_conversion_loads_no_compiler():
    loaded = loaded_modules(CONVERSION)
    assert {"numpy", "convattn.convert.network_check"} <= loaded
    assert "torch._dynamo" not in loaded
