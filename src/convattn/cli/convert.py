"""`convattn convert`: a convolution or a whole network to attention, and back, with its certificate."""

import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from convattn.cli.output import AsJson, OutputOrDefault, WholeNumber, key_values, print_record, require_images
from convattn.cli.threads import one_thread
from convattn.convert.certificate import Certificate, NetworkCertificate
from convattn.errors import ArgumentError, MissingDependencyError, UnknownNameError, UnsupportedModelError, must_be
from convattn.wording import counted

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
        from convattn.networks.source import is_timm_name, own_source

        folder = network_folder(self.source)
        if not folder.is_dir():
            hint = f"; did you mean timm:{self.source}?" if is_timm_name(self.source) else ""
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
        from convattn.networks.images import draw_images, open_images, own_images, preparation, stack_images

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
    from convattn.convert.certificate import CLOSE
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


_Flag = Parameter(negative="", show_default=False)
_Several = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]


def convert(  # noqa: PLR0913 - the options of the command
    source: str,
    /,
    *,
    output: OutputOrDefault = None,
    to: Literal["attention", "conv"] = "attention",
    weights: Annotated[Path | None, Parameter(show_default=False)] = None,
    pretrained: Annotated[bool, _Flag] = False,
    random_weights: Annotated[bool, _Flag] = False,
    arguments: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    images: Annotated[Path | None, Parameter(show_default=False)] = None,
    limit: Annotated[WholeNumber | None, Parameter(show_default="16")] = None,
    shape: Annotated[str | None, Parameter(show_default=False)] = None,
    include: _Several = (),
    exclude: _Several = (),
    sharpness: Annotated[float | None, Parameter(show_default=False)] = None,
    impl: Annotated[Literal["auto", "separable"] | None, Parameter(show_default=False)] = None,
    content: Annotated[bool, _Flag] = False,
    head_width: Annotated[WholeNumber | None, Parameter(show_default=False)] = None,
    kernel_size: Annotated[WholeNumber | None, Parameter(show_default=False)] = None,
    mass: Annotated[float | None, Parameter(show_default=False)] = None,
    fold: Annotated[bool, _Flag] = False,
    tolerance: Annotated[float | None, Parameter(show_default=False)] = None,
    allow_difference: Annotated[bool, _Flag] = False,
    no_verify: Annotated[bool, _Flag] = False,
    dry_run: Annotated[bool, _Flag] = False,
    json: AsJson = False,
) -> int:
    """Convert a network or a layer to attention that computes the same, or attention to convolutions.

    The result is compared with the source, layer by layer and as a whole, and its certificate says what came of it:
    exact (the same up to rounding), close (within a limit, and no prediction changed on the images given), different,
    or failed (a promise was broken). What is exact or close is written, and what is different only with
    --allow-difference or within --tolerance. A network of timm or torchvision needs --weights, --pretrained or
    --random-weights.

    Args:
        source: timm:NAME, torchvision:NAME, convattn:NAME for a trained network of this package (`convattn info` lists
            them), or the folder of a network, a training run or a layer.
        output: Folder to make, with model.safetensors, config.json, certificate.json and, for a network, a model card;
            it must be new or empty. Required, except with --dry-run.
        to: What to make: attention, or conv for convolutions.
        weights: File with the weights of a network of timm or torchvision, a state dict in safetensors or as torch.save
            writes it; all names and shapes must fit.
        pretrained: Fetch the weights that timm or torchvision has for the network.
        random_weights: Draw the weights, with seed 0.
        arguments: KEY=VALUE, an argument for the builder of a network of timm or torchvision, for instance
            num_classes=10; the value is JSON or text. May be given more than once.
        images: Images on which to compare the networks: a folder of pictures, a .parquet or a .npy file, as for
            `convattn analyze`. Without it networks that were trained on CIFAR-10 or digits are compared on test
            images, and others on one image of random numbers.
        limit: How many of the images to take, in the order of their names or rows. Default: 16.
        shape: Shape of an image of random numbers, to compare them on one, for instance 3,224,224. Default, where there
            are no other images: the network's own.
        include: Pattern of names of layers to convert, for instance layer4.*; may be given more than once. Default:
            all.
        exclude: Pattern of names of layers to leave alone; may be given more than once.
        sharpness: α > 0 of every head, in 1/pixel². Without it heads are hard and the result is exact.
        impl: How attention is computed: auto (hard heads run as a convolution) or separable (softmax, axis by axis).
            Default: auto.
        content: Give the layers of a network scores that depend on the input, behind gates that are closed and can
            learn to open.
        head_width: Width of each head of a single layer, at least 1. Without it heads are wide enough to be exact.
        kernel_size: Taps per axis of the new convolutions. Without it each layer gets as many as it needs.
        mass: Share in (0, 1) of each head's attention that a kernel may leave out. Default: the rounding of the dtype.
        fold: Merge the batch normalisation or linear map after each new convolution into it.
        tolerance: Largest difference to call close and to write, as a share in (0, 1) of the largest output. Default:
            0.01 is called close, on images and not on random numbers, and only what is close is written.
        allow_difference: Write a result that is different, too. The exit code stays 3.
        no_verify: Accept a folder whose files were changed after it was saved; without it such a folder is refused.
        dry_run: Write nothing, and show what would change and what it would cost.
        json: Print the certificate, or with --dry-run the forecast, as JSON.

    Returns:
        0 where the result is exact or close, 3 where it is different, 1 where the conversion failed.

    Raises:
        ArgumentError: An option is missing, or two options exclude each other.
    """
    given = key_values(arguments, "--set")
    to_attention = {"--sharpness": sharpness, "--impl": impl, "--content": content, "--head-width": head_width}
    to_conv = {"--kernel-size": kernel_size, "--mass": mass, "--fold": fold}
    _require_absent(to_conv if to == "attention" else to_attention, f"cannot be given with --to {to}")
    if dry_run:
        written = {"--tolerance": tolerance, "--allow-difference": allow_difference}
        _require_absent(written, "cannot be given with --dry-run, which writes nothing")
    accepted = Accepted(tolerance, allow_difference)
    if output is None and not dry_run:
        raise ArgumentError("--output must be given, except with --dry-run")
    if _holds_layer(source):
        of_network = {"--weights": weights, "--pretrained": pretrained, "--random-weights": random_weights}
        of_network |= {"--set": arguments, "--images": images, "--limit": limit, "--shape": shape}
        of_network |= {"--include": include, "--exclude": exclude, "--impl": impl, "--content": content}
        of_network |= {"--fold": fold, "--dry-run": dry_run}
        _require_absent(of_network, f"is for a network, and {source} holds a single layer")
        assert output is not None
        attention = {"sharpness": sharpness, "head_width": head_width}
        options = attention if to == "attention" else {"kernel_size": kernel_size, "mass": mass}
        return _convert_layer(Path(source), output, to, options, accepted, verify=not no_verify, json=json)
    _require_absent({"--head-width": head_width}, "is for a single layer, not for a network")
    chosen: dict[str, Any] = {"include": include or None, "exclude": exclude or None}
    if to == "attention":
        chosen |= {"sharpness": sharpness, "impl": impl or "auto", "content": content}
    else:
        chosen |= {"kernel_size": kernel_size, "mass": mass, "fold": fold}
    origin = Origin(source, weights, pretrained, random_weights, given, verify=not no_verify)
    measured = Measured(images, limit, shape)
    with one_thread(images is None):
        if dry_run or output is None:
            return forecast_network(origin, to, chosen, measured, json=json)
        return convert_network(origin, output, to, chosen, measured, accepted, json=json)


def _require_absent(options: Mapping[str, object], reason: str) -> None:
    """Raises if an option was given that does not apply."""
    for name, value in options.items():
        if not (value is None or value is False or value == ()):
            raise ArgumentError(f"{name} {reason}")


def _holds_layer(source: str) -> bool:
    """Tells whether a folder, which need not exist, holds a single layer, as `save_layer` writes it."""
    from convattn.convert.saved_layers import KINDS

    try:
        config = json_format.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("kind") in [*KINDS]


def _convert_layer(
    source: Path, output: Path, to: str, options: dict[str, Any], accepted: Accepted, *, verify: bool, json: bool
) -> int:
    """Converts a layer, writes it if its verdict allows that, and returns the exit code."""
    from convattn.convert import SUPPORTED_CONVOLUTIONS, attention_to_conv, conv_to_attention, load_layer, save_layer
    from convattn.files import require_new_folder

    require_new_folder(output, "--output")
    layer = load_layer(source, verify=verify)
    if to == "conv":
        made, certificate = attention_to_conv(layer, **options)
    elif type(layer) not in SUPPORTED_CONVOLUTIONS:
        raise UnsupportedModelError(f"{source} holds a {type(layer).__name__}, which is not a convolution of torch")
    else:
        made, certificate = conv_to_attention(layer, **options)  # type: ignore[arg-type]
    if accepted.writes(certificate):
        save_layer(made, output, certificate=certificate)
    print_record(certificate, f"{certificate.summary()}\n{accepted.outcome(certificate, output)}", json=json)
    return EXIT_CODES[certificate.verdict]
