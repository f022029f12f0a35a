"""Other random inputs for every test: all seeds of torch, numpy and hypothesis are shifted by one number."""

import functools

import hypothesis
import numpy as np
import torch

_seed_torch, _seed_numpy = torch.manual_seed, np.random.default_rng
_Generator = torch.Generator


class _ShiftedGenerator(_Generator):
    """A generator of torch whose seeds are shifted."""

    shift = 0

    def manual_seed(self, seed):
        return super().manual_seed(seed + self.shift)


def shift_seeds(shift: int) -> None:
    """Adds `shift` to every seed that is set from now on; a later call replaces an earlier one."""
    _ShiftedGenerator.shift = shift
    torch.Generator = _ShiftedGenerator if shift else _Generator
    torch.manual_seed = torch.random.manual_seed = functools.partial(_shifted, _seed_torch, shift)
    np.random.default_rng = functools.partial(_shifted, _seed_numpy, shift)
    hypothesis.core.global_force_seed = shift or None
    if shift:
        hypothesis.settings.register_profile(
            "shifted", parent=hypothesis.settings.default, derandomize=False
        )
        hypothesis.settings.load_profile("shifted")


def _shifted(seed_it, shift, seed=None):
    return seed_it(seed + shift if isinstance(seed, int) else seed)
