"""`convattn convert`: a convolution or a whole network to attention, and back, with its certificate."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from convattn.cli.image_options import DEFAULT_IMAGES, ComparisonImages, ImageOptions
from convattn.cli.network_options import (
    DEFAULTS,
    NetworkOptions,
    require_network,
    require_packages_of,
)
from convattn.cli.output import Output, WholeNumber, print_record, require_absent
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, CheckpointError, must_be
from convattn.files import require_new_folder

if TYPE_CHECKING:
    from torch import nn

EXIT_CODES = {"exact": 0, "close": 0, "failed": 1, "different": 3}
"""Exit code of the command by verdict."""


def convert(  # noqa: PLR0913 - the options of the command
    source: str,
    /,
    *,
    output: Output,
    to: Literal["attention", "conv"] = "attention",
    network: NetworkOptions = DEFAULTS,
    images: ImageOptions = DEFAULT_IMAGES,
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

    Examples: `convattn convert timm:resnet18 --pretrained --images photographs -o attention`, or back to convolutions
    `convattn convert attention --to conv -o convolutions`.

    Args:
        source: timm:NAME, torchvision:NAME, convattn:NAME for a trained network of this package (`convattn info` lists
            them), or the folder of a network, a training run or a layer.
        output: Folder to make, with model.safetensors, config.json, certificate.json, a model card and, for a network,
            index.html, a page of its layers; it must be new or empty.
        to: What to make: attention, or conv for convolutions.
        network: Which weights a network has.
        images: On which images the networks are compared.
        include: Pattern of names of layers to convert, for instance layer4.*; may be given more than once.
        exclude: Pattern of names of layers to leave alone; may be given more than once.
        sharpness: α > 0 of every head, in 1/pixel². Without it heads are hard and the result is exact.
        content: Give the layers of a network scores that depend on the input, behind gates that start closed.
        kernel_size: Taps per axis of the new convolutions. Without it each layer gets as many as it needs.
        mass: Share in (0, 1) of each head's attention that a kernel may leave out. Default: the rounding of the dtype.
        borders: exact makes convolutions that err nowhere at borders, auto only where it can. Default: plain.
        tolerance: Largest difference to write, as a share in (0, 1) of its channel's largest output. On images that
            are not random it is also called close. Default: 0.01 on such images, and none on random numbers.
        allow_difference: Write a result that is different, too. The exit code stays 3.
        json: Print the certificate as JSON.

    Returns:
        0 where the result is exact or close, 3 where it is different, 1 where the conversion failed.

    Raises:
        ArgumentError: Two options exclude each other, or one has a wrong value.
    """
    to_attention: dict[str, Any] = {"sharpness": sharpness, "content": content}
    to_conv: dict[str, Any] = {"kernel_size": kernel_size, "mass": mass, "borders": borders}
    options, others = to_attention, to_conv
    if to == "conv":
        options, others = to_conv, to_attention
        options["borders"] = borders or "plain"
    require_absent(others, f"cannot be given with --to {to}")
    if source.startswith("hf:"):
        raise ArgumentError(
            f"{source} is converted in Python: only load_network(FOLDER, model=NETWORK) loads it again"
        )
    if tolerance is not None and not 0 < tolerance < 1:
        raise ArgumentError(must_be("--tolerance", "a share in (0, 1)", tolerance))
    require_network(source)
    holds_layer = _holds_layer(source)
    if holds_layer:
        of_network = {"--include": include, "--exclude": exclude, "--content": content}
        of_network |= network.by_name() | {"--mean": network.mean, "--std": network.std}
        of_network |= {"--images": images.path, "--limit": images.limit, "--shape": images.shape}
        require_absent(of_network, f"is for a network, and {source} holds a single layer")
    else:
        images.check()
        options |= {"include": include or None, "exclude": exclude or None}
    require_new_folder(output, "--output")
    require_packages_of(source)
    from convattn.convert.certificate import CLOSE
    from convattn.lab.html_pages import write_conversion
    from convattn.networks import save_network

    with one_thread(images.path is None):
        loaded, on = network.load(source), None
        if not holds_layer:
            on = images.read(loaded)
            options["tolerance"] = None if on.random else tolerance or CLOSE
        converted, certificate = _convert(loaded.network, to, options, on)
    outcome = "wrote nothing"
    difference, is_different = certificate.difference, certificate.verdict == "different"
    is_small = difference is not None and tolerance is not None and difference <= tolerance
    if certificate.passed or (is_different and (allow_difference or is_small)):
        save_network(
            converted,
            output,
            certificate=certificate,
            source=loaded.source,
            options=loaded.options,
        )
        if on is not None:
            both = (loaded.network, converted)
            write_conversion(certificate, output, source=source, networks=both, x=on.prepared)
        outcome = f"wrote {output}"
    elif is_different:
        outcome += (
            ", because the result is different: make the difference smaller as said above, or ask for it by"
            " --tolerance SHARE or --allow-difference"
        )
    print_record(certificate, f"{certificate.summary()}\n{outcome}", json=json)
    return EXIT_CODES[certificate.verdict]


def _holds_layer(source: str) -> bool:
    """Tells whether a folder, which need not exist, holds a network that is a single layer."""
    from convattn.sealed import read_config

    try:
        names = [layer["names"] for layer in read_config(Path(source))["layers"]]
    except (CheckpointError, KeyError, TypeError):
        return False
    return names == [[""]]


def _convert(
    module: "nn.Module", to: str, options: dict[str, Any], on: ComparisonImages | None
) -> "tuple[nn.Module, Any]":
    """Converts a single layer, or a network, which needs images; returns the result and its certificate."""
    from convattn.convert import (
        attention_to_conv,
        conv_to_attention,
        network_to_attention,
        network_to_conv,
    )

    if on is None:
        convert_layer: Any = conv_to_attention if to == "attention" else attention_to_conv
        return convert_layer(module, **options)
    convert_network = network_to_attention if to == "attention" else network_to_conv
    converted, certificate = convert_network(module, images=on.prepared, **options)
    return converted, replace(certificate, images=on.words)
