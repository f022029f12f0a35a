"""What the conversion of one layer promises, and what was measured of it."""

from dataclasses import dataclass
from typing import ClassVar

from convattn.records.record import Record
from convattn.records.words import DIFFERS, counted


@dataclass(frozen=True)
class Certificate(Record):
    """What a conversion promises, and what was measured of it.

    The promise holds for every input x without overflow: ``max|y − y_source| ≤ (bound_per_unit + rounding_per_unit) ·
    max|x| + rounding_at_zero``, with y the result in its dtype and y_source the source in float64. Its rounding terms
    cover the worst case of any order of summation. The measured error must keep to `rounding` instead, which is much
    smaller.

    Attributes:
        direction: "conv_to_attention" or "attention_to_conv".
        source: The converted module, as `print` shows it.
        result: The new module, as `print` shows it.
        dtype: Dtype of the weights, for instance "float32".
        heads: Number of attention heads, one per tap of the kernel.
        sharpness: α of the score −α‖δ − Δ‖² (1/pixel²), the smallest over heads; None where heads are hard
            by construction or have other encodings.
        exact: Whether only rounding is lost: no attention off the taps, no singular value discarded.
        leak: Bound on the attention mass outside a head's own pixel (or, towards a convolution, outside the window).
        bound_per_unit: A-priori bound on the largest output error for inputs of absolute value ≤ 1; excludes rounding.
        rounding_per_unit: A-priori bound on what rounding adds to that, for products in full precision (not TF32).
        rounding_at_zero: The same for an input of zeros: rounding of the bias, and numbers too small for the dtype.
        check_shape: Shape of the random standard normal input on which the conversion was measured.
        check_seed: Seed of that input.
        bound: The a-priori bound for that input.
        measured_error: Largest output difference to the source's function in float64 on that input.
        rounding: Largest difference that the dtype's rounding explains there, by the error budget of
            `docs/error-budget.md`, and no more than the a-priori bound.
        discarded: Per head, the singular values of its matrix that a limited head width discarded, largest first.
        passed: Whether measured_error ≤ bound + rounding, and the result in float64 is as near to the source as `bound`
            and the rounding of its weights allow.
        not_covered: What the certificate says nothing about.
        weights: SHA-256 of the new module's weights; None in older files.
    """

    schema_version: ClassVar[int] = 2
    later: ClassVar[tuple[str, ...]] = ("weights",)

    direction: str
    source: str
    result: str
    dtype: str
    heads: int
    sharpness: float | None
    exact: bool
    leak: float
    bound_per_unit: float
    rounding_per_unit: float
    rounding_at_zero: float
    check_shape: tuple[int, ...]
    check_seed: int
    bound: float
    measured_error: float
    rounding: float
    discarded: tuple[tuple[float, ...], ...]
    passed: bool
    not_covered: tuple[str, ...] = ()
    weights: str | None = None

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text."""
        kind = f"{'exact' if self.exact else 'approximate'}, {counted(self.heads, 'head')}, {self.dtype}"
        allowed = f"{self.bound + self.rounding:.3g}  = bound {self.bound:.3g} + rounding {self.rounding:.3g}"
        per_unit = self.bound_per_unit + self.rounding_per_unit
        lines = [
            f"{self.direction.replace('_', ' ')}: {'passed' if self.passed else 'FAILED'} ({kind})",
            f"  from            {self.source}",
            f"  to              {self.result}",
            f"  measured error  {self.measured_error:.3g}  on a standard normal input {self.check_shape}",
            f"  allowed         {allowed}",
            f"  any input       {per_unit:.3g} of its largest value + {self.rounding_at_zero:.3g}",
        ]
        if self.sharpness is not None:
            where = "off the tap" if self.direction == "conv_to_attention" else "outside the window"
            lines.append(f"  sharpness       {self.sharpness:.6g} per pixel²; mass {where} at most {self.leak:.3g}")
        elif self.direction == "conv_to_attention":
            lines.append("  heads           hard: all attention of each at one displacement")
        if self.direction == "attention_to_conv" and not self.exact:
            lines.append(f"  differs         {DIFFERS}")
        if any(self.discarded):
            worst = max(values[0] for values in self.discarded if values)
            lines.append(f"  discarded       singular values up to {worst:.3g} (limited head width)")
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)
