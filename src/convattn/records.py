"""Results as frozen dataclasses: what the library returns, prints and saves as JSON.

Each record carries a schema version, its units in its docstring, and what it does not cover. Nothing here needs torch.
"""

import dataclasses
import json
import math
import os
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from convattn.errors import CheckpointError
from convattn.files import write_atomically

__all__ = ["Certificate", "DataRecord", "Plan", "Record", "RunRecord"]

R = TypeVar("R", bound="Record")


@dataclass(frozen=True)
class Record:
    """A result that can be saved: JSON with the record's kind and schema version.

    Attributes:
        schema_version: Version of the record's fields; a file of another version is refused, not guessed at.
    """

    schema_version: ClassVar[int] = 1

    def to_json(self) -> str:
        """Writes the record as text.

        Returns:
            Indented JSON; numbers that are not finite become the strings "inf" and "nan".
        """
        content = {"record": type(self).__name__, "schema_version": self.schema_version, **dataclasses.asdict(self)}
        return json.dumps(_plain(content), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls: type[R], text: str) -> R:
        """Reads a record back.

        Args:
            text: What `to_json` wrote.

        Returns:
            An equal record.

        Raises:
            CheckpointError: The text is not JSON, or is of another kind, version or set of fields.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise CheckpointError(f"not a {cls.__name__}: the text is not JSON ({error})") from None
        head = (content.pop("record", None), content.pop("schema_version", None)) if isinstance(content, dict) else None
        if head != (cls.__name__, cls.schema_version):
            raise CheckpointError(f"not a {cls.__name__} of schema version {cls.schema_version}: found {head}")
        return _build(cls, content)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the record as JSON, whole or not at all, and returns the path."""
        return write_atomically(path, self.to_json())

    @classmethod
    def load(cls: type[R], path: str | os.PathLike[str]) -> R:
        """Reads a record from a file.

        Args:
            path: File that `save` wrote.

        Returns:
            An equal record.

        Raises:
            CheckpointError: The file is missing, unreadable or not such a record.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot read {cls.__name__} from {path}: {error}") from None
        return cls.from_json(text)


@dataclass(frozen=True)
class Certificate(Record):
    """What a conversion promises, and what was measured of it.

    The promise: for every input, ``max|y − y_source| ≤ bound_per_unit · max|x| + rounding``.

    Attributes:
        direction: "conv_to_attention" or "attention_to_conv".
        source: The module converted, as it prints itself.
        result: The module made, as it prints itself.
        dtype: Dtype of the weights, for instance "float32".
        heads: Number of attention heads, one per tap of the kernel.
        sharpness: α of the score −α‖δ − Δ‖² (1/pixel²), the smallest over heads; None where heads have other encodings.
        exact: Whether nothing is lost but rounding: no attention off the taps, no singular value discarded.
        leak: Bound on the attention mass outside a head's own pixel (or, towards a convolution, outside the window).
        bound_per_unit: A-priori bound on the largest output error for inputs of absolute value ≤ 1; excludes rounding.
        check_shape: Shape of the random standard normal input on which the conversion was measured.
        check_seed: Seed of that input.
        bound: The a-priori bound for that input.
        measured_error: Largest output difference to the source's function in float64 on that input.
        rounding: Largest difference that the dtype's rounding explains, by the error budget of `docs/error-budget.md`.
        discarded: Per head, the singular values of its matrix that a limited head width discarded, largest first.
        passed: Whether measured_error ≤ bound + rounding.
        not_covered: What the certificate says nothing about.
    """

    direction: str
    source: str
    result: str
    dtype: str
    heads: int
    sharpness: float | None
    exact: bool
    leak: float
    bound_per_unit: float
    check_shape: tuple[int, ...]
    check_seed: int
    bound: float
    measured_error: float
    rounding: float
    discarded: tuple[tuple[float, ...], ...]
    passed: bool
    not_covered: tuple[str, ...] = ()

    def summary(self) -> str:
        """Returns the certificate in a few lines of plain text."""
        kind = f"{'exact' if self.exact else 'approximate'}, {self.heads} heads, {self.dtype}"
        allowed = f"{self.bound + self.rounding:.3g}  = bound {self.bound:.3g} + rounding {self.rounding:.3g}"
        lines = [
            f"{self.direction.replace('_', ' ')}: {'passed' if self.passed else 'FAILED'} ({kind})",
            f"  from            {self.source}",
            f"  to              {self.result}",
            f"  measured error  {self.measured_error:.3g}  on a standard normal input {self.check_shape}",
            f"  allowed         {allowed}",
        ]
        if self.sharpness is not None:
            lines.append(f"  sharpness       {self.sharpness:.6g} per pixel²; mass off the tap at most {self.leak:.3g}")
        if any(self.discarded):
            worst = max(values[0] for values in self.discarded if values)
            lines.append(f"  discarded       singular values up to {worst:.3g} (limited head width)")
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)


@dataclass(frozen=True)
class Plan(Record):
    """How an attention layer computes its output for images of one shape, and what that costs.

    Attributes:
        path: "separable", "dense", "fourier", "shift", "content", "flex" or "reference".
        order: "weights" where pixels are mixed before they meet the heads' matrices, "values" where after.
        reason: Why this path.
        flops: Floating-point operations of a forward pass; a multiplication and an addition count as two.
        bytes: Estimated working memory of a forward pass, beyond input, output and parameters.
        bound: Largest error beyond rounding for inputs of absolute value ≤ 1.
        shape: Shape of the images, (batch, channels, *spatial).
        dtype: Dtype of the images.
        device: Device of the images.
    """

    path: str
    order: str
    reason: str
    flops: int
    bytes: int
    bound: float
    shape: tuple[int, ...]
    dtype: str
    device: str

    def summary(self) -> str:
        """Returns the plan in a few lines of plain text."""
        return "\n".join(
            [
                f"{self.path} path, {self.order} first: {self.reason}",
                f"  images          {self.shape}, {self.dtype} on {self.device}",
                f"  operations      {self.flops:,}",
                f"  working memory  {self.bytes:,} bytes",
                f"  error           at most {self.bound:.3g} per unit of the input, beyond rounding",
            ]
        )


@dataclass(frozen=True)
class DataRecord(Record):
    """Which data a run saw.

    Attributes:
        name: Data set and copy, for instance "cifar10, JPEG quality 75".
        source: Where it was read from, without private paths.
        hashes: SHA-256 of each file or array, by its name.
        counts: Number of images by split.
        split: How the splits were made.
    """

    name: str
    source: str
    hashes: dict[str, str]
    counts: dict[str, int]
    split: str


@dataclass(frozen=True)
class RunRecord(Record):
    """All that is needed to read, repeat and doubt a training run.

    Attributes:
        name: Name of the recipe.
        claim: What the recipe says it shows.
        command: Command that repeats the run.
        recipe: The recipe as resolved, overrides included.
        seed: Seed of all random numbers.
        data: Which data the run saw.
        parameters: Number of trainable parameters.
        results: Final numbers by name; accuracies are fractions in [0, 1].
        seconds: Wall time of training and evaluation, in seconds.
        peak_memory: Peak memory of the process (CPU) or of the device (GPU), in bytes.
        memory_estimate: What was expected of each device before the first step, in bytes; libraries are not in it.
        energy: Energy of the device over the run, in joules; None where it does not report it.
        resumed: How often the run was taken up from a checkpoint.
        hardware: Processor or accelerator, cores, memory.
        versions: Versions of Python and of the packages that computed.
        started: Start, ISO 8601 in UTC.
        revision: Code revision (git), or None outside a checkout.
        not_covered: What the run says nothing about.
    """

    schema_version: ClassVar[int] = 2

    name: str
    claim: str
    command: str
    recipe: dict[str, Any]
    seed: int
    data: DataRecord
    parameters: int
    results: dict[str, float]
    seconds: float
    peak_memory: int
    memory_estimate: int
    energy: float | None
    resumed: int
    hardware: dict[str, str]
    versions: dict[str, str]
    started: str
    revision: str | None
    not_covered: tuple[str, ...] = field(default=())


def _plain(value: Any) -> Any:
    """Makes JSON's own types of a value; JSON has no inf or nan, so these become strings."""
    if isinstance(value, float) and (not math.isfinite(value)):
        return repr(float(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _build(kind: Any, value: Any) -> Any:
    """Makes a value of the annotated type out of what JSON held."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        names = {item.name for item in dataclasses.fields(kind)}
        if not isinstance(value, dict) or set(value) - {"record", "schema_version"} != names:
            raise CheckpointError(f"not a {kind.__name__}: the fields differ from {sorted(names)}")
        return kind(**{name: _build(hints[name], value[name]) for name in names})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _build(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple and isinstance(value, list):
        return tuple(_build(arguments[0], item) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _build(arguments[1], item) for key, item in value.items()}
    if kind is float and (type(value) in (int, float) or value in ("inf", "-inf", "nan")):
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise CheckpointError(f"not a record: {value!r} stands where a value of {kind} belongs")
    return value
