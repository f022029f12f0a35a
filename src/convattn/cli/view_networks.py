"""What `convattn view` shows: a network on images, and those beside it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from convattn.cli.convert import Origin
from convattn.convert import network_to_attention, network_to_conv
from convattn.encodings import Shift
from convattn.errors import ArgumentError, CheckpointError, MissingDependencyError, UnsupportedModelError, must_be
from convattn.heads.catalogue import attention_layers
from convattn.heads.head_report import HeadReport
from convattn.heads.head_snapshots import HEADS, read_heads
from convattn.layers import RelativeAttention
from convattn.models.pretrained import pretrained_names
from convattn.networks import create_network
from convattn.networks.images import (
    Pictures,
    class_names,
    normalisation,
    open_images,
    preparation,
    require_own_images,
    stack_images,
    trained_on,
)
from convattn.networks.source import HOMES
from convattn.viewer import Exhibit
from convattn.viewer.image_maps import is_positional
from convattn.wording import some

UNTRAINED, CONVERTED = "untrained", "converted"
"""What `--compare` takes besides sources."""

_LIMIT, _OWN_LIMIT, _KERNEL_SIZE = 8, 20, 3
"""Default number of a user's images and of a network's own, and of taps along each axis for heads that are not hard."""


@dataclass(frozen=True, eq=False)
class Shown:
    """Networks on the same images."""

    exhibits: tuple[Exhibit, ...]
    names: tuple[str, ...]  # of the images
    labels: tuple[str, ...]  # what they show; () if unknown
    prepare: tuple[Callable[[Any], Tensor] | None, ...]  # how a picture is made an image, for each network

    def exhibits_with(self, report: Path | None) -> tuple[Exhibit, ...]:
        """Returns the exhibits, the first with a report of its heads."""
        if report is None:
            return self.exhibits
        first = self.exhibits[0]
        return (replace(first, report=_read_report(report, first)), *self.exhibits[1:])


def _read_report(path: Path, first: Exhibit) -> HeadReport:
    """Reads what `convattn analyze` measured of a network."""
    try:
        report = HeadReport.load(path / "report.json" if path.is_dir() else path)
    except CheckpointError as error:
        reason = re.sub(r"(a )?HeadReport", "a head report", str(error))
        raise CheckpointError(
            f"--report must be a head report (the folder that `convattn analyze -o` makes): {reason}"
        ) from None
    measured, there = [layer.name for layer in report.layers], {name for name, _ in first.network.named_modules()}
    if not there.intersection(measured):
        raise ArgumentError(f"--report is of another network: {first.title} has no layer {some(measured)}")
    return report


@dataclass(frozen=True, eq=False)
class _Subject:
    """A network with what is known of where it comes from."""

    network: nn.Module
    source: str | None  # What builds its architecture
    options: dict[str, Any]
    folder: Path | None  # Its folder
    title: str
    note: str = ""  # What the page says of it

    @property
    def data(self) -> str | None:
        """Name of the data that it was trained on."""
        return trained_on(self.folder)


def gather(
    origin: Origin,
    images: Path | None,
    *,
    limit: int | None = None,
    layers: Sequence[str] = (),
    compare: Sequence[str] = (),
    kernel_size: int | None = None,
) -> Shown:
    """Loads a network, its images, and what is shown beside it; without a limit twenty of its own, or 8 others."""
    origins = _origins(origin, compare)
    subject = _load(origins[origin.source])
    prepared, names, labels, classes = _open(subject, images, limit)
    first = _exhibit(subject, prepared, "trained" if subject.folder else "network", classes, tuple(layers) or None)
    exhibits = [first] if _attending(subject.network) or not compare else []
    own = _preparation(subject)
    prepare = [own] * len(exhibits)
    for what in compare:
        prepare.append(own)
        if what == UNTRAINED:
            exhibits.append(_untrained(subject, first))
        elif what == CONVERTED:
            exhibits.append(_converted(subject, first, kernel_size))
        elif ":" not in what and not Path(what).is_dir():
            raise ArgumentError(must_be("--compare", "untrained, converted, or a network such as a folder", what))
        else:
            other = _load(origins[what])
            exhibits.append(_other(other, subject, images, limit, len(exhibits), first))
            prepare[-1] = _preparation(other)
    return Shown(tuple(exhibits), names, labels, tuple(prepare))


def _origins(origin: Origin, compare: Sequence[str]) -> dict[str, Origin]:
    """Returns the origin of each source: weights and arguments are for those that are built, if any of them is."""
    sources = [origin.source, *(what for what in compare if what not in (UNTRAINED, CONVERTED))]
    bare = replace(origin, weights=None, pretrained=False, random_weights=False, arguments={})
    built = [source for source in sources if not _is_saved(source)]
    return {source: replace(bare if built and source not in built else origin, source=source) for source in sources}


def _is_saved(source: str) -> bool:
    """Whether a network comes with its weights: from a folder, or from this package."""
    home, _, name = source.partition(":")
    return home not in HOMES or (home == "convattn" and name in pretrained_names())


def _load(origin: Origin) -> _Subject:
    loaded = origin.load(weights_matter=True)
    home, _, name = origin.source.partition(":")
    title = name if home in HOMES else Path(origin.source).resolve().name
    note = "Its weights are random, drawn with seed 0." if origin.random_weights else ""
    return _Subject(loaded.network, loaded.source, loaded.options, loaded.folder, title, note)


def _open(
    subject: _Subject, path: Path | None, limit: int | None
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Returns the prepared images, their names, what they show, and the names of the classes."""
    if path is None:
        own = require_own_images(subject.folder, subject.title, limit or _OWN_LIMIT)
        return own.prepared.to(next(subject.network.parameters())), own.names, own.labels, class_names(subject.data)
    prepare = partial(preparation, subject.source, subject.network, subject.folder)
    opened = open_images(path, prepare, limit=limit or _LIMIT)
    prepared = stack_images(opened, path)
    names = opened.names if isinstance(opened, Pictures) else tuple(f"image {n + 1}" for n in range(len(prepared)))
    return prepared.to(next(subject.network.parameters())), names, (), class_names(subject.data)


def _preparation(subject: _Subject) -> Callable[[Any], Tensor] | None:
    """Returns how pictures are prepared; None if nobody says it."""
    try:
        return preparation(subject.source, subject.network, subject.folder)
    except ArgumentError:
        return None
    except MissingDependencyError as missing:
        return partial(_refuse, missing)


def _refuse(missing: MissingDependencyError, _: Any) -> Tensor:
    """Says what is missing once there is a picture to prepare."""
    raise missing


def _exhibit(
    subject: _Subject, images: Tensor, name: str, classes: tuple[str, ...], layers: tuple[str, ...] | None
) -> Exhibit:
    mean, std = normalisation(subject.source, subject.network, subject.folder) or ((), ())
    # A folder that is not a run has no such file, nor has one of heads without centres.
    trained = subject.folder is not None and (subject.folder / HEADS).is_file()
    heads = read_heads(subject.folder) if subject.folder and trained else []
    return Exhibit(
        network=subject.network,
        images=images,
        name=name,
        title=subject.title,
        note=subject.note,
        mean=mean,
        std=std,
        classes=classes,
        heads=heads,
        layers=layers,
    )


def _untrained(subject: _Subject, first: Exhibit) -> Exhibit:
    """Builds the network anew; its weights are rounded to 16 bits, which makes the page smaller."""
    if subject.source is None:
        kind = type(subject.network).__name__
        raise ArgumentError(f"--compare untrained builds the network anew, and nothing says what builds a {kind}")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = create_network(subject.source, subject.options).eval()
        for parameter in network.parameters():
            parameter.copy_(parameter.half())
    note = "The same network before any training: weights drawn with seed 0, rounded to 16 bits."
    return replace(first, network=network, name=UNTRAINED, title=f"{subject.title}, untrained", note=note, heads=())


def _converted(subject: _Subject, first: Exhibit, kernel_size: int | None) -> Exhibit:
    """Converts convolutions to attention, or attention to convolutions and those to attention with hard heads.

    The page compares layers by their place. So of a network with attention of its own, the layers of the copy are the
    same ones, without those that convolutions became: the many heads of a patch embedding stand beside nothing.
    """
    network, images, attending = subject.network, first.images, _attending(subject.network)
    if _own_layers(network):
        convolutions, size = _as_convolutions(network, images, kernel_size)
        made, _ = network_to_attention(convolutions, images=images)
        notes = [f"Converted to convolutions{size}, and back: every head is one tap."]
    else:
        made, _ = network_to_attention(network, images=images)
        notes = ["Its convolutions as attention: every head is one tap."]
    left_out = [name for name in _own_layers(made) if name not in attending]
    if attending and left_out:
        notes.append(f"Left out are those that have no counterpart to compare: {some(left_out)}.")
    with torch.no_grad():
        before, after = network(images), made(images)
    if isinstance(before, Tensor) and before.ndim == 2:
        same = int((before.argmax(1) == after.argmax(1)).sum())
        notes.append(f"{same} of {len(images)} images get the same class.")
    note = " ".join(filter(None, [*notes, subject.note]))
    layers = first.layers or attending or None
    return replace(
        first, network=made, name=CONVERTED, title=f"{subject.title}, converted", note=note, heads=(), layers=layers
    )


def _as_convolutions(network: nn.Module, images: Tensor, kernel_size: int | None) -> tuple[nn.Module, str]:
    """Converts attention to convolutions, and says their size; hard heads keep their taps unless one is asked for."""
    convert = partial(network_to_conv, images=images, fold=False)
    size = kernel_size or _KERNEL_SIZE
    hard = [name for name in _own_layers(network) if isinstance(network.get_submodule(name).encoding, Shift)]
    if not hard or kernel_size:
        return convert(network, kernel_size=size)[0], f" of {size} × {size}"
    made, _ = convert(network, include=hard)
    if not any(is_positional(module) for module in made.modules()):
        return made, ""
    return convert(made, kernel_size=size)[0], f", of {size} × {size} where heads are not hard"


def _own_layers(network: nn.Module) -> list[str]:
    """Names the attention layers of this library."""
    return [name for name, module in network.named_modules() if isinstance(module, RelativeAttention)]


def _other(
    subject: _Subject, beside: _Subject, images: Path | None, limit: int | None, number: int, first: Exhibit
) -> Exhibit:
    """Shows another network: of the chosen layers if it has them, else of all."""
    if images is None and subject.data != beside.data:
        told = f"nothing says that {subject.title} and {beside.title} were trained on the same data"
        raise ArgumentError(f"--images must be given: {told}")
    prepared, _, _, classes = _open(subject, images, limit)
    missing = [name for name in first.layers or () if name not in _attending(subject.network)]
    if missing:
        told = f"All its layers are shown, because it has no {some(missing)}."
        subject = replace(subject, note=" ".join(filter(None, [subject.note, told])))
    layers = None if missing else first.layers
    return _exhibit(subject, prepared, f"{subject.title} {number + 1}", classes or first.classes, layers)


def _attending(network: nn.Module) -> tuple[str, ...]:
    """Names the attention layers that can be read."""
    try:
        return tuple(layer.name for layer in attention_layers(network) if layer.refused is None)
    except UnsupportedModelError:
        return ()
