"""What the conversion of one layer promises, what was measured of it, and the verdict."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from convattn.records.record import Record
from convattn.records.words import DIFFERS, TO_ATTENTION, TO_CONV, counted

Verdict = Literal["exact", "close", "different", "failed"]
"""The same up to rounding; within a stated limit, with no decision changed; neither; a promise was broken."""


@dataclass(frozen=True)
class Judged(Record):
    """A record of a check, with one of four verdicts."""

    schema_version: ClassVar[int] = 3
    added: ClassVar[tuple[str, ...]] = ()  # Fields that files of the version before lack; they are read as None
    layer_kind: ClassVar["type[Judged] | None"] = None  # What the field `layers` holds, if there is one

    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether the verdict is "exact" or "close"."""
        return self.verdict in ("exact", "close")

    @classmethod
    def _upgraded(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Reads a file with `passed` in place of the verdict; it stated no limit, so nothing is close."""
        if isinstance(content.get("passed"), bool):
            kept = content.pop("passed")
            content["verdict"] = "failed" if not kept else "exact" if content.get("exact") is True else "different"
        if cls.layer_kind is not None and isinstance(content.get("layers"), list):
            content["layers"] = [
                cls.layer_kind._upgraded(one) if isinstance(one, dict) else one for one in content["layers"]
            ]
        return {**dict.fromkeys(cls.added), **content}


def relative(error: float | None, largest: float | None) -> float | None:
    """Returns an error as a share of the largest output; None where one is unknown or the output is zero."""
    return error / largest if error is not None and largest else None


@dataclass(frozen=True)
class Certificate(Judged):
    """What a conversion promises, and what was measured of it.

    The promise holds for every input x without overflow: ``max|y − y_source| ≤ (bound_per_unit + rounding_per_unit) ·
    max|x| + rounding_at_zero``, with y the result in its dtype and y_source the source in float64. Its rounding terms
    cover the worst case of any order of summation. The measured error must keep to `rounding` instead, which is much
    smaller.

    The verdict is "exact" where nothing is lost but rounding, or no more than rounding; "failed" where the measured
    error exceeds bound + rounding, or the result in float64 is further from the source than `bound` and the rounding of
    its weights allow; and "different" otherwise. A single layer is measured on random numbers, and never called close.

    Attributes:
        verdict: "exact", "different" or "failed".
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
        largest: Largest absolute value of the source's output there; None in files of schema version 2.
        discarded: Per head, the singular values of its matrix that a limited head width discarded, largest first.
        not_covered: What the certificate says nothing about.
        weights: SHA-256 of the new module's weights; None in older files.
    """

    added: ClassVar[tuple[str, ...]] = ("largest",)
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
    largest: float | None
    discarded: tuple[tuple[float, ...], ...]
    not_covered: tuple[str, ...] = ()
    weights: str | None = None

    @property
    def difference(self) -> float | None:
        """Measured error as a share of the largest output; None if that is unknown or zero."""
        return relative(self.measured_error, self.largest)

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text."""
        by = f"by {self.difference:.2g} of the largest output, " if self.difference and self.verdict != "exact" else ""
        allowed = f"{self.bound + self.rounding:.3g}  = bound {self.bound:.3g} + rounding {self.rounding:.3g}"
        per_unit = self.bound_per_unit + self.rounding_per_unit
        lines = [
            f"{self.direction.replace('_', ' ')}: {self.verdict} ({by}{counted(self.heads, 'head')}, {self.dtype})",
            f"  from            {self.source}",
            f"  to              {self.result}",
            f"  measured error  {self.measured_error:.3g}  on a standard normal input {self.check_shape}",
            f"  allowed         {allowed}",
            f"  any input       {per_unit:.3g} of its largest value + {self.rounding_at_zero:.3g}",
        ]
        to_attention = self.direction == "conv_to_attention"
        if self.sharpness is not None:
            where = "off the tap" if to_attention else "outside the window"
            lines.append(f"  sharpness       {self.sharpness:.6g} per pixel²; mass {where} at most {self.leak:.3g}")
        elif to_attention:
            lines.append("  heads           hard: all attention of each at one displacement")
        if any(self.discarded):
            worst = max(values[0] for values in self.discarded if values)
            lines.append(f"  discarded       singular values up to {worst:.3g} (limited head width)")
        if self.verdict == "different":
            lines += remedies(self.direction, narrow=any(self.discarded))
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)


def remedies(direction: str, *, narrow: bool = False) -> list[str]:
    """Returns the lines that say where a difference comes from, and what makes it smaller."""
    if direction.endswith("to_conv"):
        return [f"  differs         {DIFFERS}", f"  made smaller    {TO_CONV}"]
    width = ["by a larger head width, or none"] if narrow else []
    return [f"  made smaller    {way}" for way in (TO_ATTENTION, *width)]
