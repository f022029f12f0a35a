"""One layer while it is measured: everything that is kept of the images seen so far."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from convattn.adapters.attention import AttentionCall, Layout
from convattn.analysis.measure.convolution import ConvolutionFit
from convattn.analysis.measure.kernel import KernelFit
from convattn.analysis.measure.pairs import Pairs, make_pairs
from convattn.analysis.measure.sums import HeadSums, empty_sums, sum_heads
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.records.words import ITSELF


@dataclass(frozen=True)
class Facts:
    """What the calls of a layer say about it."""

    name: str  # Dotted name
    kind: str  # Full name of its class
    normalised: bool  # Whether the rows of all calls sum to 1
    masked: bool  # Whether masks differed between images
    error: float  # Largest difference of weights × values to the module's own result
    budget: float  # What rounding explains there
    bytes: int  # Memory of the weights of one image


class LayerMeasure:
    """Sums of one layer over the images seen so far."""

    def __init__(self, facts: Facts, pairs: Pairs, sums: HeadSums, fit: ConvolutionFit | None) -> None:
        """Takes over what is known."""
        self.facts, self.pairs, self.sums, self.fit = facts, pairs, sums, fit
        self.kernels = KernelFit()

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.sums.images.sum())

    @classmethod
    def begin(cls, call: AttentionCall, groups: int, kernel_size: int) -> "LayerMeasure":
        """Starts with the first call of a layer, which `add` then adds."""
        pairs = make_pairs(call.layout, call.name or ITSELF)
        facts = Facts(call.name, call.kind, True, False, 0.0, 0.0, call.weights[0].numel() * 4)
        positions = prod(call.layout.grid)
        known = call.inputs is not None and call.outputs is not None
        whole = known and call.inputs.shape[1] == call.outputs.shape[1] == positions  # type: ignore[union-attr]
        sums = empty_sums(call, pairs, groups)
        return cls(facts, pairs, sums, ConvolutionFit(call.layout.grid, kernel_size) if whole else None)

    def add(self, call: AttentionCall, members: Int64[Tensor, " images"], *, held_out: bool) -> None:
        """Adds a batch; `members` are the groups of its images, held out from the fit of the convolution or not."""
        if not self.pairs.fits(call.layout):
            raise UnsupportedModelError(
                f"{call.name or ITSELF}: queries and keys lie elsewhere than for the images before"
            )
        if call.weights.shape[2] != self.sums.squares.shape[1]:
            raise UnsupportedModelError(
                f"{call.name or ITSELF}: it has another number of heads than for the images before"
            )
        groups = len(self.sums.images)
        if held_out:
            self.kernels.score(call, self.pairs, self.sums)
        added = sum_heads(call, self.pairs, members, groups)
        if not bool(torch.isfinite(added.squares).all()):
            raise ArgumentError(
                f"images must give finite attention, but weights of {call.name or ITSELF} are not finite"
            )
        self.sums = self.sums.plus(added)
        if self.fit is not None:
            assert call.inputs is not None
            assert call.outputs is not None
            (self.fit.score if held_out else self.fit.fit)(call.inputs, call.outputs)
        worse = call if call.error - call.budget > self.facts.error - self.facts.budget else self.facts
        if self.facts.budget == 0:
            worse = call
        self.facts = replace(
            self.facts,
            normalised=self.facts.normalised and call.normalised,
            masked=self.facts.masked or call.allowed is not None,
            error=worse.error,
            budget=worse.budget,
        )

    def copy(self) -> "LayerMeasure":
        """Returns a measure that stays as it is when this one goes on."""
        fit = self.fit
        if fit is not None:
            fit = ConvolutionFit(fit.grid, fit.kernel_size)
            fit.state = dict(self.fit.state)  # type: ignore[union-attr]
        made = LayerMeasure(self.facts, self.pairs, self.sums, fit)
        made.kernels.state = dict(self.kernels.state)
        return made

    def state(self) -> dict[str, Any]:
        """Returns everything as plain values and tensors."""
        layout = self.pairs.layout
        return {
            "facts": asdict(self.facts),
            "layout": {item.name: getattr(layout, item.name) for item in fields(layout)},
            "sums": {item.name: getattr(self.sums, item.name) for item in fields(self.sums)},
            "kernels": self.kernels.state,
            "fit": None if self.fit is None else {"kernel_size": self.fit.kernel_size, "state": self.fit.state},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "LayerMeasure":
        """Goes on where `state` was taken."""
        layout = Layout(**{**state["layout"], "grid": tuple(state["layout"]["grid"])})
        facts = Facts(**state["facts"])
        fit = None
        if state["fit"] is not None:
            fit = ConvolutionFit(layout.grid, state["fit"]["kernel_size"])
            fit.state = dict(state["fit"]["state"])
        made = cls(facts, make_pairs(layout, facts.name), HeadSums(**state["sums"]), fit)
        made.kernels.state = dict(state["kernels"])
        return made
