"""Products of weights and values that are written as `torch.einsum`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def factors_of_einsum(args: tuple[Any, ...], is_weights: Callable[[Any], bool]) -> tuple[Tensor, Tensor, bool] | None:
    """Finds the weights (…, queries, keys) and values (…, keys, width) of a product "… q k, … k d -> … q d".

    Returns None if it is no product of one tensor of weights with another that is not, or of another form.
    """
    if len(args) != 3 or not isinstance(args[0], str) or is_weights(args[1]) == is_weights(args[2]):
        return None
    left, right, out = args[0].replace(" ", "").replace("->", ",").split(",")
    weights, values = (args[1], args[2]) if is_weights(args[1]) else (args[2], args[1])
    form = (left, right) if is_weights(args[1]) else (right, left)
    lead = form[0][:-2]
    same = form[1][:-2] == out[:-2] == lead and form[1][-1] == out[-1]
    if not same or out[-2] != form[0][-2] or form[1][-2] != form[0][-1]:
        return None
    return weights, values, False
