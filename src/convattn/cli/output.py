"""What commands share: options and printing."""

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from convattn.errors import ArgumentError, must_be
from convattn.record import Record


def _read_whole(_: Any, tokens: Sequence[Any]) -> int:
    """Reads an integer; cyclopts alone would round 1.5 and not say so."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"must be an integer, but is {tokens[0].value!r}") from None


Output = Annotated[Path, Parameter(name=("--output", "-o"))]
OutputOrDefault = Annotated[Path | None, Parameter(name=("--output", "-o"))]
WholeNumber = Annotated[int, Parameter(converter=_read_whole)]


def first_free(folder: Path) -> Path:
    """Returns the path, or the first of PATH-2, PATH-3, … that does not exist or is an empty folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = (Path(place) / "demo").write_text("taken")
        ...     first_free(Path(place) / "demo").name
        'demo-2'
    """
    names = (
        folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        for number in count(1)
    )
    return next(
        path for path in names if not path.exists() or (path.is_dir() and not any(path.iterdir()))
    )


def require_images(path: Path | None, source: str = "") -> None:
    """Raises ArgumentError if `--images` is given and there is nothing, or left out for a network of another library.

    What a network of timm, torchvision or hf: was trained on does not come with it; the source is named to find that
    out before weights are fetched.
    """
    if path is not None and not path.exists():
        raise ArgumentError(must_be("--images", "a folder or a file that exists", str(path)))
    if path is None and source.startswith(("timm:", "torchvision:", "hf:")):
        raise ArgumentError(f"--images must be given for {source}")


def key_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """Reads the KEY=VALUE texts of an option; if a key comes twice, the later value counts.

    Example:
        >>> key_values(["seed=1", "seed=2"], "--set")
        {'seed': '2'}
    """
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ArgumentError(must_be(option, "of the form KEY=VALUE", text))
        pairs[key] = value
    return pairs


def print_record(record: Record, summary: str, *, json: bool) -> None:
    """Prints a result as JSON, or its summary."""
    print(record.to_json() if json else f"{summary}\n", end="", flush=True)
