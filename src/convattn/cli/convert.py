"""`convattn convert`: a convolution or a whole network to attention, and back, with its certificate."""

import json as json_format
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from convattn.cli.network_options import DEFAULTS, NetworkOptions
from convattn.cli.output import Output, WholeNumber, print_record, require_images
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, MissingDependencyError, UnsupportedModelError, must_be
from convattn.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

    from convattn.convert.certificate import Certificate, NetworkCertificate
    from convattn.networks.loading import LoadedNetwork

EXIT_CODES = {"exact": 0, "close": 0, "failed": 1, "different": 3}
"""Exit code of the command by verdict."""

_IMAGES = 16
"""Default number of images."""


def convert(  # noqa: PLR0913 - the options of the command
    source: str,
    /,
    *,
    output: Output,
    to: Literal["attention", "conv"] = "attention",
    network: NetworkOptions = DEFAULTS,
    images: Path | None = None,
    limit: WholeNumber | None = None,
    shape: str | None = None,
    include: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    sharpness: float | None = None,
    content: bool = False,
    kernel_size: WholeNumber | None = None,
    mass: float | None = None,
    borders: Literal["plain", "auto", "exact"] | None = None,
    tolerance: float | None = None,
    allow_difference: bool = False,
    json: bool = False,
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
            it must be new or empty.
        to: What to make: attention, or conv for convolutions.
        network: Which weights a network has.
        images: Images on which to compare the networks: a folder of pictures, a .parquet or a .npy file, as for
            `convattn analyze`. Without it networks that were trained on CIFAR-10 or digits are compared on test
            images, and others on one image of random numbers.
        limit: How many of the images to take, in the order of their names or rows. Default: 16.
        shape: Shape of an image of random numbers, to compare them on one, for instance 3,224,224. Default, where there
            are no other images: the network's own.
        include: Pattern of names of layers to convert, for instance layer4.*; may be given more than once.
        exclude: Pattern of names of layers to leave alone; may be given more than once.
        sharpness: α > 0 of every head, in 1/pixel². Without it heads are hard and the result is exact.
        content: Give the layers of a network scores that depend on the input, behind gates that start closed.
        kernel_size: Taps per axis of the new convolutions. Without it each layer gets as many as it needs.
        mass: Share in (0, 1) of each head's attention that a kernel may leave out. Default: the rounding of the dtype.
        borders: exact makes convolutions that err nowhere at borders, auto only where it can. Default: plain.
        tolerance: Largest difference to write, as a share in (0, 1) of the largest output. On images that are not
            random it is also called close. Default: 0.01 on such images, and none on random numbers.
        allow_difference: Write a result that is different, too. The exit code stays 3.
        json: Print the certificate as JSON.

    Returns:
        0 where the result is exact or close, 3 where it is different, 1 where the conversion failed.

    Raises:
        ArgumentError: An option is missing, or two options exclude each other.
    """
    to_attention = {"--sharpness": sharpness, "--content": content}
    to_conv = {"--kernel-size": kernel_size, "--mass": mass, "--borders": borders}
    _require_absent(
        to_conv if to == "attention" else to_attention, f"cannot be given with --to {to}"
    )
    if source.startswith("hf:"):
        raise ArgumentError(
            f"{source} is converted in Python: only load_network(FOLDER, model=NETWORK) loads it again"
        )
    if tolerance is not None and not 0 < tolerance < 1:
        raise ArgumentError(must_be("--tolerance", "a share in (0, 1)", tolerance))
    target = _Target(output, tolerance, allow_difference, json)
    options: dict[str, Any] = {"sharpness": sharpness}
    if to == "conv":
        options = {"kernel_size": kernel_size, "mass": mass, "borders": borders or "plain"}
    if _holds_layer(source):
        of_network = {
            **network.given(),
            "--images": images,
            "--limit": limit,
            "--shape": shape,
            "--include": include,
        }
        of_network |= {
            "--exclude": exclude,
            "--content": content,
        }
        _require_absent(of_network, f"is for a network, and {source} holds a single layer")
        return _convert_layer(Path(source), to, options, target, verify=not network.no_verify)
    sizes = require_measured(images, limit, shape)
    options |= {"include": include or None, "exclude": exclude or None}
    if to == "attention":
        options["content"] = content
    from convattn.files import require_new_folder

    with one_thread(images is None):
        require_new_folder(target.output, "--output")
        loaded = network.load(source)
        return _convert_network(
            loaded, to, options, read_images(loaded, images, limit, sizes), target
        )


@dataclass(frozen=True)
class _Target:
    """Where a result goes, and whether it is written."""

    output: Path
    tolerance: (
        float | None
    )  # Largest difference, as a share of the largest output; None writes what is close
    allow_difference: bool  # Whether results that are different are written, too
    json: bool  # Whether the certificate is printed as JSON

    def accepts(self, certificate: "Certificate | NetworkCertificate") -> bool:
        """Says whether a result is written."""
        if certificate.verdict != "different":
            return certificate.passed
        found, limit = certificate.difference, self.tolerance
        return self.allow_difference or (limit is not None and found is not None and found <= limit)

    def finish(self, certificate: "Certificate | NetworkCertificate") -> int:
        """Prints the certificate and what was written, and returns the exit code."""
        if self.accepts(certificate):
            outcome = f"wrote {self.output}"
        elif certificate.verdict == "failed":
            outcome = "wrote nothing"
        else:
            outcome = (
                "wrote nothing, because the result is different: make the difference smaller as said above, or ask for"
                " it by --tolerance SHARE or --allow-difference"
            )
        print_record(certificate, f"{certificate.summary()}\n{outcome}", json=self.json)
        return EXIT_CODES[certificate.verdict]


def _require_absent(options: Mapping[str, object], reason: str) -> None:
    """Raises if an option was given that does not apply."""
    for name, value in options.items():
        if not (value is None or value is False or value == ()):
            raise ArgumentError(f"{name} {reason}")


def require_measured(
    path: Path | None, limit: int | None, shape: str | None
) -> tuple[int, ...] | None:
    """Raises ArgumentError on a mistake in the options of the images; returns the sizes of one of random numbers."""
    require_images(path)
    if path is not None and shape is not None:
        raise ArgumentError(
            "--shape cannot be given with --images: it is the shape of an image of random numbers"
        )
    if shape is not None and limit is not None:
        raise ArgumentError(
            "--limit cannot be given with --shape, which asks for one image of random numbers"
        )
    if limit is not None and limit < 1:
        raise ArgumentError(must_be("--limit", "at least 1", limit))
    if shape is None:
        return None
    parts = shape.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ArgumentError(
            must_be("--shape", "whole numbers separated by commas, for instance 3,224,224", shape)
        )
    return tuple(map(int, parts))


def read_images(
    loaded: "LoadedNetwork", path: Path | None, limit: int | None, sizes: tuple[int, ...] | None
) -> tuple["Tensor", str, bool]:
    """Reads images, takes those of the network's own test set, or draws one.

    Returns them, their description, and whether they are random numbers.
    """
    from convattn.networks.images import (
        draw_images,
        open_images,
        own_images,
        preparation,
        stack_images,
    )

    like, count = next(loaded.network.parameters()), limit or _IMAGES
    if path is not None:
        prepare = partial(preparation, loaded.source, loaded.network, loaded.folder)
        read = stack_images(open_images(path, prepare, limit=count), path)
        return read.to(like), f"{counted(len(read), 'image')} of {path.resolve().name}", False
    own, why = None, ""
    if sizes is None:
        try:
            own = own_images(loaded.folder, count)
        except MissingDependencyError as missing:
            why = f", in place of test images: {missing}"
    if own is not None:
        return own.prepared.to(like), f"{counted(len(own.prepared), 'image')} of {own.what}", False
    if limit is not None:
        raise ArgumentError("--limit needs --images: it is the number of images to take from there")
    drawn = draw_images(loaded.network, sizes)
    return drawn, f"one standard normal image {tuple(drawn.shape)}, seed 0{why}", True


def _convert_network(
    loaded: "LoadedNetwork",
    to: str,
    options: dict[str, Any],
    measured: tuple["Tensor", str, bool],
    target: _Target,
) -> int:
    """Converts a network, writes it if its verdict allows that, and returns the exit code."""
    from convattn.convert import network_to_attention, network_to_conv
    from convattn.convert.certificate import CLOSE
    from convattn.networks import save_network

    images, words, random = measured
    limit = None if random else target.tolerance or CLOSE
    conversion = network_to_attention if to == "attention" else network_to_conv
    made, certificate = conversion(loaded.network, images=images, tolerance=limit, **options)
    certificate = replace(certificate, images=words)
    if target.accepts(certificate):
        save_network(
            made,
            target.output,
            source=loaded.source,
            options=loaded.options,
            certificate=certificate,
        )
    return target.finish(certificate)


def _holds_layer(source: str) -> bool:
    """Tells whether a folder, which need not exist, holds a single layer, as `save_layer` writes it."""
    from convattn.convert.saved_layers import KINDS

    try:
        config = json_format.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("kind") in [*KINDS]


def _convert_layer(
    source: Path, to: str, options: dict[str, Any], target: _Target, *, verify: bool
) -> int:
    """Converts a layer, writes it if its verdict allows that, and returns the exit code."""
    from convattn.convert import (
        SUPPORTED_CONVOLUTIONS,
        attention_to_conv,
        conv_to_attention,
        load_layer,
        save_layer,
    )
    from convattn.files import require_new_folder

    require_new_folder(target.output, "--output")
    layer = load_layer(source, verify=verify)
    if to == "conv":
        made, certificate = attention_to_conv(layer, **options)
    elif type(layer) not in SUPPORTED_CONVOLUTIONS:
        raise UnsupportedModelError(
            f"{source} holds a {type(layer).__name__}, which is not a convolution of torch"
        )
    else:
        made, certificate = conv_to_attention(layer, **options)  # type: ignore[arg-type]
    if target.accepts(certificate):
        save_layer(made, target.output, certificate=certificate)
    return target.finish(certificate)
