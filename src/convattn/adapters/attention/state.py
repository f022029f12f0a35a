"""Leaves a model as it was."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from convattn.convert.copies import keep_random_state
from convattn.functional.autocast import without_autocast


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode, without gradients and autocast; restores flags and random numbers on leaving."""
    training = [(module, module.training) for module in model.modules()]
    with ExitStack() as settings:
        settings.enter_context(keep_random_state(model))
        settings.enter_context(torch.no_grad())
        for device in {torch.device("cpu"), *(parameter.device for parameter in model.parameters())}:
            settings.enter_context(without_autocast(device))
        try:
            model.eval()
            yield
        finally:
            for module, flag in training:
                module.training = flag
