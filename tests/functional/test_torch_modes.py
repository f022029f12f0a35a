"""Torch's settings of precision: off inside the guard, and outside as they were, in either of torch's two languages."""

from contextlib import suppress

import pytest
import torch

from convattn.functional.torch_modes import plain_float32

BACKENDS = torch.backends
NEWER = {
    "all": BACKENDS,
    "CUDA": BACKENDS.cudnn,
    "products": BACKENDS.cuda.matmul,
    "convolutions": BACKENDS.cudnn.conv,
    "recurrences": BACKENDS.cudnn.rnn,
    "products on the CPU": BACKENDS.mkldnn.matmul,
    "convolutions on the CPU": BACKENDS.mkldnn.conv,
}
"""The newer settings, the more general ones first."""


def state():
    """All that torch says of its precision; None where it refuses, because old flags and new settings differ."""
    said = {name: setting.fp32_precision for name, setting in NEWER.items()}
    for name, read in {
        "flag of products": lambda: BACKENDS.cuda.matmul.allow_tf32,
        "flag of convolutions": lambda: BACKENDS.cudnn.allow_tf32,
        "precision of products": torch.get_float32_matmul_precision,
    }.items():
        said[name] = None
        with suppress(RuntimeError):
            said[name] = read()
    return said


def old_flags(value):
    BACKENDS.cuda.matmul.allow_tf32 = BACKENDS.cudnn.allow_tf32 = value


def one_of_the_newer(name, value="tf32"):
    NEWER[name].fp32_precision = value


def both_languages():
    old_flags(True)
    NEWER["convolutions"].fp32_precision = NEWER["products"].fp32_precision = "ieee"


SETTINGS = {
    "as torch starts": lambda: None,
    "old flags on": lambda: old_flags(True),
    "old flags off": lambda: old_flags(False),
    "products high": lambda: torch.set_float32_matmul_precision("high"),
    "products medium": lambda: torch.set_float32_matmul_precision("medium"),
    **{f"newer, {name}": lambda name=name: one_of_the_newer(name) for name in NEWER},
    "bfloat16 on the CPU": lambda: one_of_the_newer("convolutions on the CPU", "bf16"),
    "both languages": both_languages,
}


@pytest.fixture
def kept():
    """Brings torch's own settings back."""
    with plain_float32():
        yield


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_float32_is_plain_inside_and_settings_come_back(kept, change):
    old_flags(True)
    NEWER["all"].fp32_precision = "none"
    change()
    before = state()
    for error in (None, ValueError):
        with suppress(ValueError), plain_float32():
            inside = state()
            if error is not None:
                raise error
        assert inside["flag of products"] is inside["flag of convolutions"] is False
        assert inside["precision of products"] == "highest"
        assert not {"tf32", "bf16"} & {inside[name] for name in NEWER}
        assert state() == before


def test_a_setting_that_followed_a_general_one_follows_it_still(kept):
    NEWER["all"].fp32_precision = "tf32"
    with plain_float32():
        pass
    assert NEWER["convolutions on the CPU"].fp32_precision == "tf32"
    NEWER["all"].fp32_precision = "ieee"
    assert NEWER["convolutions on the CPU"].fp32_precision == "ieee"
