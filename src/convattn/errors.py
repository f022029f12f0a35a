"""Every error that convattn raises on purpose.

One `except ConvAttnError` catches them all; the second base class keeps them compatible with what Python code expects::

    ConvAttnError (Exception)
    ├── ArgumentError (ValueError)            an argument has a wrong value
    │   ├── ShapeError                        a tensor has a wrong rank or size
    │   ├── UnknownNameError                  a name is not one of the known ones; says the nearest
    │   ├── EncodingRangeError                a table was asked for a displacement that it does not hold
    │   └── RecipeError                       a training recipe has an unknown key or a value out of range
    ├── ConversionError                       a conversion cannot give a correct result
    │   └── UnsupportedModelError             a module is of a kind that the converter does not understand
    ├── DataError                             a data file is missing, unreadable or of the wrong form
    ├── CheckpointError                       a saved model or run is missing, damaged or of another version
    ├── DeviceError                           the device or dtype cannot do what was asked
    ├── WriteError (OSError)                  a file or a folder cannot be written: a full disk, no permission
    ├── TrainingError                         training cannot go on, for instance because the loss is not finite
    └── MissingDependencyError (ImportError)  an optional package is not installed; says the install line

Two warnings are given: `CheckpointWarning` if a damaged checkpoint is skipped and the one before it is used, and
`CertificateWarning` if the certificate of what is loaded says that its conversion failed.
"""

import difflib
from collections.abc import Collection, Iterable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def must_be(argument: str, expectation: str, value: object) -> str:
    """Returns the message "`argument` must be `expectation`, but is `value`", cut if long.

    Example:
        >>> must_be("stride", "an integer of at least 1", 0)
        'stride must be an integer of at least 1, but is 0'
    """
    return f"{argument} must be {expectation}, but is {shown(value)}"


def require(condition: object, argument: str, expectation: str, value: object) -> None:
    """Raises ArgumentError, which says what an argument must be, unless a condition holds.

    Example:
        >>> require(3 % 2 == 1, "kernel_size", "odd", 3)
    """
    if not condition:
        raise ArgumentError(must_be(argument, expectation, value))


def shown(value: object) -> str:
    """Returns a value as messages show it, cut if long."""
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python prints
        return f"a number of type {type(value).__name__} that is too long to print"
    if len(text) > 300:
        return f"{text[:200]}… (of type {type(value).__name__})"
    return text


def must_be_a(argument: str, expectation: str, value: object) -> str:
    """Returns the message that an argument is of a wrong type; the value, which may be long, is not shown.

    Example:
        >>> must_be_a("model", "an nn.Module", (1, 2))
        'model must be an nn.Module, but is of type tuple'
    """
    message = f"{argument} must be {expectation}, but is of type {type(value).__name__}"
    if hasattr(value, "__array_interface__"):  # as arrays of numpy and pictures of pillow have
        message += ": torch.as_tensor(numpy.asarray(it)) makes a tensor of it"
    if hasattr(value, "batch_sampler"):
        message += ": give one batch of the loader, as next(iter(loader))[0] of one with labels"
    return message


def sorts(tensors: Sequence[Any]) -> str:
    """Returns the dtypes and shapes of tensors in words, as "uint8 of shape (2, 3, 5, 7)"."""
    words = []
    for tensor in tensors:
        kind = str(tensor.dtype).removeprefix("torch.")
        words.append(f"{kind} of shape {tuple(tensor.shape)}")
    return ", ".join(words)


def nearest_of(known: Collection[str], name: object) -> str:
    """Returns the end of a message about an unknown name: the nearest of the known ones, and all of them."""
    nearest = difflib.get_close_matches(str(name), known, n=1)
    hint = f": did you mean {nearest[0]!r}?" if nearest else "."
    return f"{hint} Known: {', '.join(known)}"


def must_fit(words: str, error: Exception) -> str:
    """Returns the message that a network raised an error on images, which `words` describes as in "on 4 images".

    Example:
        >>> must_fit("4 images", ValueError("too small"))
        'images must fit the network, but on 4 images it raised ValueError: too small'
    """
    if lacks_memory(error):
        return f"images must fit into memory with the network, but there is not enough of it to run on {words}"
    return f"images must fit the network, but on {words} it raised {type(error).__name__}: {error}"


def without_trace(error: BaseException) -> str:
    """Returns the message of an error without the calls in C++ that torch may add."""
    return str(error).partition("\nException raised from ")[0]


def lacks_memory(error: BaseException) -> bool:
    """Returns whether an error means that a processor or another device is out of memory."""
    message = str(error).lower()
    said = "allocate memory" in message or "out of memory" in message
    return said or isinstance(error, MemoryError)


class ConvAttnError(Exception):
    """Root of every error that the library raises on purpose.

    Example:
        >>> from convattn import load_network
        >>> try:
        ...     load_network("no-such-folder")
        ... except ConvAttnError as error:
        ...     print(type(error).__name__)
        CheckpointError
    """


class ArgumentError(ConvAttnError, ValueError):
    """An argument has a wrong value."""


class ShapeError(ArgumentError):
    """A tensor has a wrong rank or size."""


class UnknownNameError(ArgumentError):
    """A name is not among the known ones.

    Example:
        >>> print(UnknownNameError("encoding", "quadratik", ["distance", "quadratic"]))
        unknown encoding 'quadratik': did you mean 'quadratic'? Known: distance, quadratic
    """

    def __init__(self, kind: str, name: object, known: Iterable[str], more: str = "") -> None:
        """Takes the kind of thing that was looked up, the name that came, the known names, and what else to say."""
        super().__init__(kind, name, sorted(known), more)

    def __str__(self) -> str:
        """Suggests the nearest of the known names, and lists them."""
        kind, name, known, more = self.args
        return f"unknown {kind} {name!r}{nearest_of(known, name)}{more}"


def require_name(kind: str, name: object, known: Collection[str]) -> None:
    """Raises UnknownNameError unless a name of this kind is known."""
    if name not in known:
        raise UnknownNameError(kind, name, known)


class EncodingRangeError(ArgumentError):
    """A table was asked for a displacement that it does not hold."""


class RecipeError(ArgumentError):
    """A training recipe has an unknown key or a value out of range."""


class ConversionError(ConvAttnError):
    """A conversion cannot give a correct result; the message says why."""


class UnsupportedModelError(ConversionError):
    """The converter does not understand a module; the message names it."""


class DataError(ConvAttnError):
    """A data file is missing, unreadable or not of the expected form."""


class CheckpointError(ConvAttnError):
    """A saved model or run is missing, damaged or of another version."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, and the one before it is used."""


class CertificateWarning(UserWarning):
    """The certificate of what is loaded says that its conversion failed."""


class WriteError(ConvAttnError, OSError):
    """A file or a folder cannot be written; nothing half written is left."""


class DeviceError(ConvAttnError):
    """The device or the dtype cannot do what was asked."""


class TrainingError(ConvAttnError):
    """Training cannot go on, for instance because the loss is not finite."""


class MissingDependencyError(ConvAttnError, ImportError):
    """An optional package is needed and not installed.

    Example:
        >>> print(MissingDependencyError("timm", "timm"))
        this needs timm, which is not installed; run: pip install "convattn[timm]"
    """

    def __init__(self, package: str, extra: str) -> None:
        """Names the package, or several separated by spaces, and the extra that brings them."""
        super().__init__(package, extra)

    def __str__(self) -> str:
        """Says what is missing, and the line that installs it."""
        package, extra = self.args
        names = ", ".join(package.split())
        verb = "are" if " " in package else "is"
        install = f'pip install "convattn[{extra}]"'  # adds to an installation, from an index or a checkout
        return f"this needs {names}, which {verb} not installed; run: {install}"


_PACKAGES = {
    "PIL": "pillow",
    "huggingface_hub": "huggingface-hub",
    "sklearn": "scikit-learn",
    "tomli_w": "tomli-w",
}
"""Packages by the modules that they bring, where the names differ."""


def optional_module(name: str, extra: str) -> ModuleType:
    """Imports a module of an optional package, and returns the outermost package, as `import` does.

    Raises MissingDependencyError, which names the package and the extra that brings it, if it is not installed.

    Example:
        >>> optional_module("xml.dom", "none").dom.__name__
        'xml.dom'
    """
    try:
        return __import__(name)
    except ImportError as error:
        outermost = name.partition(".")[0]
        package = _PACKAGES.get(outermost, outermost)
        if find_spec(outermost) is not None:
            raise ConvAttnError(
                f"{package} is installed, but cannot be imported: {error}"
            ) from error
        raise MissingDependencyError(package, extra) from None


def require_packages(**needed: Sequence[str]) -> None:
    """Raises one MissingDependencyError for all modules that are not installed; each extra is given those it brings."""
    missing: dict[str, str] = {}
    for extra, modules in needed.items():
        for name in modules:
            if find_spec(name) is None:
                missing[_PACKAGES.get(name, name)] = extra
    if missing:
        extras = dict.fromkeys(missing.values())
        raise MissingDependencyError(" ".join(missing), ",".join(extras))
