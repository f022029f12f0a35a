"""Measured curves of the difference between attention of finite sharpness and its convolution."""

from dataclasses import dataclass

from convattn.records import Record


@dataclass(frozen=True)
class SharpnessCurve(Record):
    """Errors of converted convolutions over the sharpness of their heads, largest over convolutions and inputs.

    All errors are in units of `max|x̃| · max_o Σ_h ‖W_h[o]‖₁`, the largest output that an input of that size can have;
    so the a-priori bound is 2ε(α) for every convolution.

    Attributes:
        dims: Number of axes.
        dtype: "float32" or "float64".
        samples: Number of convolutions, each with an input of its own.
        sharpness: α in 1/pixel², rising.
        bound: 2ε(α).
        measured: Largest difference to the convolution in float64, over samples and outputs.
        relative: The same, in units of the convolution's own largest output.
        rounding: Largest difference that rounding explains, by the error budget.
    """

    dims: int
    dtype: str
    samples: int
    sharpness: tuple[float, ...]
    bound: tuple[float, ...]
    measured: tuple[float, ...]
    relative: tuple[float, ...]
    rounding: float

    def soft_until(self) -> float | None:
        """α from which the bound is below 1: below, it promises nothing; None where that is never."""
        return next((a for a, bound in zip(self.sharpness, self.bound, strict=True) if bound < 1), None)

    def floor_from(self) -> float | None:
        """α from which the bound is below rounding, so that a sharper head gains nothing; None where that is never."""
        return next((a for a, bound in zip(self.sharpness, self.bound, strict=True) if bound < self.rounding), None)
