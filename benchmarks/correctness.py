"""Correctness before time: every contender that computes the layer's function is held against float64."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from benchmarks.definition import attend_at
from benchmarks.record import Check
from convattn.budget import LEAST_ROUNDINGS, budget, rounded_differently, roundings
from convattn.layers import RelativeAttention

_QUERIES = 64

FEW_NUMBERS = 2 * LEAST_ROUNDINGS
"""Ways of rounding that are looked at where some result is a few numbers, on which several may be right by luck."""

Evaluation = Callable[[Tensor], Tensor]


class Truth:
    """What a layer gives on a few images at a few queries, in float64, and how far rounding alone may lead.

    With gradients, those of a random linear function of these outputs, with respect to the images and every parameter.
    The references in the tested dtype are the definition, and the definition with the last digits of images and
    parameters rounded in other ways.

    Attributes:
        images: The images.
        queries: The queries, counted in row-major order.
    """

    def __init__(
        self,
        layer: RelativeAttention,
        images: Float[Tensor, "batch channels *spatial"],
        queries: Int[Tensor, " queries"],
        *,
        gradients: bool = False,
    ) -> None:
        """Computes the references.

        Args:
            layer: The layer, in the tested dtype.
            images: A few images.
            queries: A few queries.
            gradients: Whether gradients are compared too.
        """
        self.images, self.queries, self._gradients = images, queries, gradients

        def by_definition(layer: RelativeAttention, x: Tensor) -> dict[str, Tensor]:
            return self._results(layer, lambda x: attend_at(layer, x, queries), x)

        self._hi = by_definition(copy.deepcopy(layer).double(), images.double())
        self._lows = roundings(by_definition, layer, images, count=FEW_NUMBERS)

    def check(self, compute: Evaluation, layer: nn.Module | None) -> Check:
        """Compares another way to compute the same function.

        Args:
            compute: Takes the images and returns all outputs.
            layer: The module whose parameters it computes with, equal to the layer's; None where it has its own, of
                which gradients cannot be compared.

        Returns:
            The check, of what is nearest to its budget or farthest beyond it.
        """
        actual = self._results(
            layer, lambda x: compute(x).flatten(2)[..., self.queries], self.images
        )
        return judge(actual, self._hi, self._lows)

    def _results(
        self, layer: nn.Module | None, compute: Evaluation, x: Tensor
    ) -> dict[str, Tensor]:
        """Returns outputs and, where asked for, gradients, by name."""
        if not self._gradients:
            with torch.no_grad():
                return {"output": compute(x)}
        assert layer is not None
        x = x.detach().requires_grad_()
        y = compute(x)
        upstream = torch.randn(
            y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        ).to(y)
        names, parameters = zip(*layer.named_parameters(), strict=True)
        found = torch.autograd.grad(y, [x, *parameters], upstream, allow_unused=True)
        gradients = {
            name: item
            for name, item in zip(("images", *names), found, strict=True)
            if item is not None
        }
        return {
            "output": y.detach(),
            **{f"gradient of {name}": item for name, item in gradients.items()},
        }


def roads(
    images: Float[Tensor, "*shape"], count: int = LEAST_ROUNDINGS
) -> list[Float[Tensor, "*shape"]]:
    """Returns the images, and the same rounded in other ways: what they give differs by what rounding may do."""
    return [images, *(rounded_differently(images, seed) for seed in range(count))]


def judge(
    actual: Mapping[str, Tensor], hi: Mapping[str, Tensor], lows: Sequence[Mapping[str, Tensor]]
) -> Check:
    """Compares results with references, each by the error budget of `docs/explanation/error-budget.md`.

    Args:
        actual: Results by name.
        hi: References in float64.
        lows: References in the tested dtype, at least four.

    Returns:
        The check, of the result that uses most of its budget.
    """
    if actual.keys() != hi.keys():
        return Check(
            passed=False,
            worst=f"one without {sorted(hi.keys() ^ actual.keys())}",
            error=torch.inf,
            allowed=0.0,
        )
    checks = []
    for name, exact in hi.items():
        allowed = budget(exact, [low[name] for low in lows])
        fits = actual[name].shape == exact.shape and actual[name].numel() > 0
        error = (actual[name].double() - exact).abs().max().item() if fits else torch.inf
        checks.append(Check(passed=error <= allowed, worst=name, error=error, allowed=allowed))
    return max(checks, key=_used)


def some_queries(count: int, device: torch.device) -> Int[Tensor, " queries"]:
    """Picks queries to check: all of a few, or else the first, the last, and some drawn between them."""
    if count <= _QUERIES:
        return torch.arange(count, device=device)
    drawn = (
        torch.randperm(count - 2, generator=torch.Generator().manual_seed(count))[: _QUERIES - 2]
        + 1
    )
    return torch.cat([torch.tensor([0, count - 1]), drawn]).sort().values.to(device)


def _used(check: Check) -> tuple[bool, float]:
    """Orders checks: failed ones last, then by the share of the budget that was used (nan counts as all of it)."""
    share = check.error / check.allowed if check.allowed else float(check.error > 0)
    return not check.passed, torch.inf if math.isnan(share) else share
