"""Finds how small a planted fault the error budget still finds: python tests/smallest_faults.py --seeds 20.

Faults of relative size 1e-7, 3.2e-7, 1e-6, … are planted in the code of every path of a layer, and in one weight of
either conversion. For each fault and seed the smallest size is noted that the contract or the certificate finds. Their
median and the largest are printed as a table in Markdown, with how often a right result was called wrong.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch
from tests.layers.fault_cases import (
    CONTENT,
    DENSE,
    FOURIER,
    MASKED,
    NARROW,
    REFERENCE,
    SEPARABLE,
    Fault,
    each,
    of_argument,
    of_result,
)
from tests.layers.layer_cases import CaseContract, LayerCase
from torch import Tensor, nn

from convattn.convert import attention_to_conv, conv_to_attention
from convattn.functional import separable
from convattn.testing.contracts import stir

SIZES = [10 ** (-half / 2) for half in range(14, 3, -1)]  # 1e-7, 3.2e-7, …, 1e-2


def leak(size: float) -> Callable:
    """Moves a share of every query's attention to the last key."""

    def leaky(weights: Tensor) -> Tensor:
        left = weights * (1 - size)
        return torch.cat([left[..., :-1], left[..., -1:] + size], dim=-1)

    return of_result(leaky)


def off(size: float) -> Callable[[Tensor], Tensor]:
    """Makes every number too large or too small by a share, as chance has it."""

    def wrong(x: Tensor) -> Tensor:
        signs = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).round() * 2 - 1
        return x * (1 + size * signs.to(x.dtype))

    return wrong


def result_off(size: float) -> Callable:
    """Makes the numbers that a function returns too large or too small."""
    return of_result(off(size))


def argument_off(number: int) -> Callable[[float], Callable]:
    """Makes an argument of a function too large or too small."""
    return lambda size: of_argument(number, off(size))


def border_row_off(size: float) -> Callable:
    """Makes what the first query along the axis gets too large."""
    return of_result(lambda y: torch.cat([y[:, :1] * (1 + size), y[:, 1:]], dim=1))


def weight_off(size: float) -> Callable[[nn.Module], nn.Module]:
    """Makes the largest weight of a layer too large."""

    def wrong(converted: nn.Module) -> nn.Module:
        weights = [parameter for parameter in converted.parameters() if parameter.ndim > 1]
        with torch.no_grad():
            weights[0].view(-1)[weights[0].abs().argmax()] *= 1 + size
        return converted

    return wrong


@dataclass(frozen=True)
class Planted:
    """A fault of any size: on which path, what is wrong, in which layer, where, and what stands there for each size."""

    path: str
    what: str
    case: LayerCase | None  # None: the conversion that `path` names
    place: str
    wrong: Callable[[float], Callable]

    def found(self, seed: int, size: float) -> bool:
        """Says whether a fault of a size is found, or with size 0 a right result called wrong."""
        fault = Fault(self.path, self.what, self.case, self.place, self.wrong(size))
        with pytest.MonkeyPatch.context() as patch:
            if self.path == "values":
                patch.setattr(separable, "OWN_CHANNELS", 0)
            if fault.in_tiles:
                patch.setattr(separable, "SMALL_BYTES", -1)
            if size:
                fault.inject(patch)
            torch.manual_seed(seed)
            if self.case is None:
                return self._certificate_fails()
            return self._contract_raises()

    def _contract_raises(self) -> bool:
        contract = CaseContract()
        contract.case = self.case
        layer = self.case.settle(stir(contract.create(3, 5)).eval())
        try:
            contract.check(layer, torch.randn(2, 3, 5, 7))
        except AssertionError as error:
            if "is above the budget" not in str(error):
                raise
            return True
        return False

    def _certificate_fails(self) -> bool:
        layer, certificate = conv_to_attention(nn.Conv2d(3, 5, 3, padding=1))
        if self.path == "attention_to_conv":
            certificate = attention_to_conv(layer)[1]
        return not certificate.passed


FAULTS = [
    Planted(
        "reference", "softmax leaks", REFERENCE, "functional.definition:attention_weights", leak
    ),
    Planted("reference", "W_h off", REFERENCE, "functional.definition:attend", argument_off(2)),
    Planted("separable", "softmax leaks", SEPARABLE, "functional.plan:position_weights", leak),
    Planted(
        "separable",
        "W_h off",
        SEPARABLE,
        "functional.tiles:_Product.forward",
        argument_off(2),
    ),
    Planted("dense", "weights off", DENSE, "functional.plan:position_weights", result_off),
    Planted("dense", "row off", DENSE, "functional.tiles:_Product.forward", border_row_off),
    Planted("fourier", "kernels off", FOURIER, "functional.fourier:_place", result_off),
    Planted("content", "softmax leaks", MASKED, "functional.fused:normal_weights", leak),
    Planted(
        "content",
        "position off",
        CONTENT,
        "functional.content:Mask",
        lambda size: of_argument(2, each(off(size))),
    ),
    Planted("values", "W_out off", NARROW, "functional.reference:combine_heads", argument_off(1)),
    Planted("values", "softmax leaks", NARROW, "functional.plan:position_weights", leak),
    Planted(
        "conv_to_attention",
        "W off",
        None,
        "convert.to_attention:certify_attention",
        lambda size: of_argument(2, weight_off(size)),
    ),
    Planted(
        "attention_to_conv",
        "W off",
        None,
        "convert.to_conv:make_convolution",
        lambda size: of_result(weight_off(size)),
    ),
]


def smallest(fault: Planted, seed: int) -> float:
    """Returns the smallest of the sizes that is found; inf if none is."""
    return next((size for size in SIZES if fault.found(seed, size)), inf)


def table(seeds: int, faults: list[Planted] = FAULTS) -> str:
    """Writes a row per fault."""
    rows = [
        f"| path | fault | median of {seeds} seeds | most | right called wrong |",
        "|---|---|---|---|---|",
    ]
    for fault in faults:
        sizes = [smallest(fault, seed) for seed in range(seeds)]
        wrong = sum(fault.found(seed, 0.0) for seed in range(seeds))
        median, most = statistics.median_high(sizes), max(sizes)
        rows.append(f"| {fault.path} | {fault.what} | {median:.1e} | {most:.1e} | {wrong} |")
    return "\n".join(rows)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="random layers and images")
    sys.stdout.write(table(parser.parse_args().seeds) + "\n")


if __name__ == "__main__":
    main()
