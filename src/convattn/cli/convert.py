"""`convattn convert`: a convolution or a whole network to attention, and back, with its certificate."""

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from convattn.cli.convert_network import EXIT_CODES, Accepted, Measured, Origin, convert_network, forecast_network
from convattn.cli.options import AsJson, OutputOrDefault, WholeNumber, key_values
from convattn.cli.output import print_record
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, UnsupportedModelError

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
    from convattn.convert.saved import KINDS

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
