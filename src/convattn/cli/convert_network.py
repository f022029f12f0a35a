"""`convattn convert` on a whole network."""

import json as json_format
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from convattn.cli.options import require_images
from convattn.cli.output import print_record
from convattn.errors import ArgumentError, MissingDependencyError, UnknownNameError, must_be
from convattn.records import Certificate, NetworkCertificate
from convattn.records.words import counted

if TYPE_CHECKING:
    from torch import Tensor, nn

_LIMIT = 16
"""Default number of images."""

EXIT_CODES = {"exact": 0, "close": 0, "failed": 1, "different": 3}
"""Exit code of the command by verdict."""


@dataclass(frozen=True)
class Accepted:
    """Which results are written."""

    tolerance: float | None = None  # Largest difference, as a share of the largest output; None writes what is close
    difference: bool = False  # Whether results that are different are written, too

    def __post_init__(self) -> None:
        """Raises ArgumentError unless the tolerance is a share."""
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ArgumentError(must_be("--tolerance", "a share in (0, 1)", self.tolerance))

    def writes(self, certificate: Certificate | NetworkCertificate) -> bool:
        """Says whether a result is written."""
        if certificate.verdict != "different":
            return certificate.passed
        found, limit = certificate.difference, self.tolerance
        return self.difference or (limit is not None and found is not None and found <= limit)

    def outcome(self, certificate: Certificate | NetworkCertificate, output: Path) -> str:
        """Words what was written."""
        if self.writes(certificate):
            return f"wrote {output}"
        if certificate.verdict == "failed":
            return "wrote nothing"
        return (
            "wrote nothing, because the result is different: make the difference smaller as said above, or ask for it"
            " by --tolerance SHARE or --allow-difference"
        )


class _Loaded(NamedTuple):
    """A network to convert."""

    network: "nn.Module"  # The network, in evaluation mode
    source: str | None  # What builds its architecture, or None
    options: dict[str, Any]  # What it is built with
    folder: Path | None  # Where it was saved, or None


@dataclass(frozen=True)
class Origin:
    """Where a network and its weights come from."""

    source: str  # "timm:NAME", "torchvision:NAME", "convattn:NAME" or a folder
    weights: Path | None  # File with the weights
    pretrained: bool  # Whether to fetch them
    random_weights: bool  # Whether to draw them
    arguments: dict[str, str]  # Arguments for the network's builder, as text
    verify: bool = True  # Whether to refuse a folder that was changed since it was saved

    def load(self, *, weights_matter: bool) -> _Loaded:
        """Builds or loads the network; `weights_matter` says that the user must choose which weights to take."""
        chosen = {"--weights": self.weights, "--pretrained": self.pretrained, "--random-weights": self.random_weights}
        given = [name for name, value in chosen.items() if value]
        with_set = [*given, *(["--set"] if self.arguments else [])]
        if Path(self.source).is_dir() or ":" not in self.source:
            return self._load_folder(with_set)
        from convattn.models import NETWORKS, pretrained_names
        from convattn.networks.source import split_source

        home, name = split_source(self.source)
        if home == "convattn" and name not in NETWORKS:
            if name not in pretrained_names():
                raise UnknownNameError("network", name, [*pretrained_names(), *NETWORKS])
            return self._load_folder(with_set)
        if len(given) > 1 or (weights_matter and not given):
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise ArgumentError(
                f"the weights of {self.source} must be given by exactly one of --weights FILE, --pretrained and"
                f" --random-weights, but {found}"
            )
        return self._build()

    def _load_folder(self, given: Sequence[str]) -> _Loaded:
        """Loads a network; options `given` for networks of other libraries are refused."""
        from convattn.models.pretrained import network_folder
        from convattn.networks import load_network
        from convattn.networks.loading import saved_config
        from convattn.networks.source import own_source
        from convattn.networks.timm import is_known

        folder = network_folder(self.source)
        if not folder.is_dir():
            hint = f"; did you mean timm:{self.source}?" if is_known(self.source) else ""
            raise ArgumentError(f"there is no folder {self.source!r}{hint}")
        if given:
            raise ArgumentError(f"{given[0]} is for a network of timm or torchvision; {self.source} has its own")
        config, network = saved_config(folder), load_network(folder, verify=self.verify)
        source, options = own_source(network) or (config.get("source"), config.get("options", {}))
        return _Loaded(network, source, options, folder)

    def _build(self) -> _Loaded:
        import torch

        from convattn.networks import create_network
        from convattn.networks.tensors import load_weights

        options = {key: _value(text) for key, text in self.arguments.items()}
        torch.manual_seed(0)
        network = create_network(self.source, options, pretrained=self.pretrained).eval()
        if self.weights is not None:
            load_weights(network, self.weights)
        return _Loaded(network, self.source, options, None)


@dataclass(frozen=True)
class Measured:
    """What the networks are measured on."""

    path: Path | None  # Where images are: a folder, a .parquet or a .npy file; or None
    limit: int | None  # How many of them to take; None takes 16
    shape: str | None  # Shape of an image of random numbers, as text, or None

    def require(self) -> None:
        """Raises ArgumentError on a mistake in the options, before a network is built."""
        require_images(self.path)
        if self.path is not None and self.shape is not None:
            raise ArgumentError("--shape cannot be given with --images: it is the shape of an image of random numbers")
        if self.shape is not None and self.limit is not None:
            raise ArgumentError("--limit cannot be given with --shape, which asks for one image of random numbers")
        if self.limit is not None and self.limit < 1:
            raise ArgumentError(must_be("--limit", "at least 1", self.limit))
        self._sizes()

    def images(self, loaded: _Loaded) -> tuple["Tensor", str, bool]:
        """Reads the images, takes those of the network's own test set, or draws one.

        Returns them, what they are in words, and whether they are random numbers.
        """
        from convattn.networks.image_files import open_images, stack_images
        from convattn.networks.own_images import own_images
        from convattn.networks.preparation import draw_images, preparation

        like, limit = next(loaded.network.parameters()), self.limit or _LIMIT
        if self.path is not None:
            prepare = partial(preparation, loaded.source, loaded.network, loaded.folder)
            read = stack_images(open_images(self.path, prepare, limit=limit), self.path)
            return read.to(like), f"{counted(len(read), 'image')} of {self.path.resolve().name}", False
        own, why = None, ""
        if self.shape is None:
            try:
                own = own_images(loaded.folder, limit)
            except MissingDependencyError as missing:
                why = f", in place of digits: {missing}"
        if own is not None:
            return own.prepared.to(like), f"{counted(len(own.prepared), 'image')} of {own.what}", False
        if self.limit is not None:
            raise ArgumentError("--limit needs --images: it is the number of images to take from there")
        drawn = draw_images(loaded.network, self._sizes())
        return drawn, f"one standard normal image {tuple(drawn.shape)}, seed 0{why}", True

    def _sizes(self) -> tuple[int, ...] | None:
        if self.shape is None:
            return None
        parts = self.shape.split(",")
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            raise ArgumentError(
                must_be("--shape", "whole numbers separated by commas, for instance 3,224,224", self.shape)
            )
        return tuple(map(int, parts))


def convert_network(
    origin: Origin,
    output: Path,
    to: str,
    options: dict[str, Any],
    measured: Measured,
    accepted: Accepted,
    *,
    json: bool,
) -> int:
    """Converts a network, writes it if its verdict allows that, and returns the exit code."""
    measured.require()
    from convattn import convert
    from convattn.convert.certificate.network import CLOSE
    from convattn.files import require_new_folder
    from convattn.networks import save_network

    require_new_folder(output, "--output")
    loaded = origin.load(weights_matter=True)
    conversion = convert.network_to_attention if to == "attention" else convert.network_to_conv
    images, words, random = measured.images(loaded)
    limit = None if random else accepted.tolerance or CLOSE
    made, certificate = conversion(loaded.network, images=images, tolerance=limit, **options)
    certificate = replace(certificate, images=words)
    if accepted.writes(certificate):
        save_network(made, output, source=loaded.source, options=loaded.options, certificate=certificate)
    outcome = accepted.outcome(certificate, output)
    if options.get("fold") and not any("folded in" in note for layer in certificate.layers for note in layer.notes):
        outcome += "\nfolded nothing: no new convolution is certainly followed by a linear map or batch normalisation"
    print_record(certificate, f"{certificate.summary()}\n{outcome}", json=json)
    return EXIT_CODES[certificate.verdict]


def forecast_network(origin: Origin, to: str, options: dict[str, Any], measured: Measured, *, json: bool) -> int:
    """Prints what a conversion would change, and writes nothing.

    Weights that are not named are drawn; of several images only the first is used.
    """
    measured.require()
    from convattn.networks.forecast import forecast_attention, forecast_conv

    loaded = origin.load(weights_matter=False)
    forecast = forecast_attention if to == "attention" else forecast_conv
    record = forecast(loaded.network, measured.images(loaded)[0][:1], **options)
    print_record(record, record.summary(), json=json)
    return 0


def _value(text: str) -> Any:
    """Reads a value as JSON if it is JSON, and as text otherwise."""
    try:
        return json_format.loads(text)
    except ValueError:
        return text
