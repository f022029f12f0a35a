"""The base of every record: JSON with kind and schema version, saved whole or not at all."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from convattn.errors import ArgumentError, CheckpointError
from convattn.fields import read
from convattn.files import AnyPath, write_atomically

R = TypeVar("R", bound="Record")

_SHORT = 40
"""Characters of a value that a `repr` shows."""

_FEW = 5
"""Fields that it shows."""


@dataclass(frozen=True)
class Record:
    """A result that can be saved: JSON with the record's kind and schema version. Printed, it is its summary."""

    schema_version: ClassVar[int] = 1  # of the fields; a file of another version is refused

    def __init_subclass__(cls) -> None:
        """Keeps the short `repr`, in whose place `dataclass` would put one of all fields."""
        super().__init_subclass__()
        cls.__repr__ = Record.__repr__

    def __repr__(self) -> str:
        """Returns the class and the first short fields."""
        shown = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str | int | float) and len(repr(value)) <= _SHORT:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown[:_FEW])}, …)"

    def __str__(self) -> str:
        """Returns the summary; without one, the `repr`."""
        summary = getattr(self, "summary", self.__repr__)
        return summary()

    def to_json(self) -> str:
        """Returns the record as indented JSON; numbers that are not finite become the strings "inf" and "nan"."""
        content = {
            "record": type(self).__name__,
            "schema_version": self.schema_version,
            **dataclasses.asdict(self),
        }
        plain = json.loads(
            json.dumps(content), parse_constant=lambda constant: repr(float(constant))
        )
        return json.dumps(plain, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls: type[R], text: str) -> R:
        """Returns the record that `to_json` wrote.

        Raises CheckpointError if the text is not JSON or of another kind or version, or a field is unknown, missing or
        of another type; the message names the field, what was expected and what came.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"not a {cls.__name__}: the text is not JSON ({error})") from None
        head = None
        if isinstance(content, dict):
            head = content.pop("record", None), content.pop("schema_version", None)
        if head != (cls.__name__, cls.schema_version):
            raise CheckpointError(
                f"not a {cls.__name__} of schema version {cls.schema_version}: found {head}"
            )
        try:
            return read(cls, content, complete=True)
        except ArgumentError as error:
            raise CheckpointError(f"not a {cls.__name__}: {error}") from None

    def save(self, path: AnyPath) -> Path:
        """Writes the record as JSON, whole or not at all, and returns the path."""
        return write_atomically(path, self.to_json())

    @classmethod
    def load(cls: type[R], path: AnyPath) -> R:
        """Returns the record that `save` wrote; raises CheckpointError, which names the file, as `from_json` does."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot read {cls.__name__} from {path}: {error}") from None
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None


def is_json(value: object) -> bool:
    """Returns whether JSON gives a value back as it is."""
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError, RecursionError):
        return False
