"""`convattn certify`: whether another network, in a file or a folder, computes what a network computes."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from convattn.cli.convert import EXIT_CODES
from convattn.cli.image_options import DEFAULT_IMAGES, ImageOptions
from convattn.cli.network_options import (
    DEFAULTS,
    NetworkOptions,
    read_values,
    require_network,
    require_packages_of,
)
from convattn.cli.output import print_record
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, must_be


def certify(  # noqa: PLR0913 - the options of the command
    original: str,
    other: str,
    /,
    *,
    network: NetworkOptions = DEFAULTS,
    images: ImageOptions = DEFAULT_IMAGES,
    runtime: Literal["onnxruntime", "openvino"] | None = None,
    option: Annotated[tuple[str, ...], Parameter(name="--option")] = (),
    tolerance: float | None = None,
    exact: bool = False,
    json: bool = False,
) -> int:
    """Say whether a second network computes the same as the first, and name the first layer that does not.

    Nothing is written. The verdict is exact (the same up to rounding), close (within a limit, and no decision changed
    on the images given), different, or failed (outputs are missing, of other shapes or not finite). How much rounding
    explains is derived from the original in float64. Decisions that changed are counted with a 95 % interval.

    Examples: `convattn certify convattn:cifar10-small model.onnx`, or
    `convattn certify timm:resnet18 model.onnx --pretrained --images photographs --limit 100`.

    Args:
        original: timm:NAME, torchvision:NAME, hf:OWNER/MODEL, convattn:NAME, or the folder of a network or a run.
        other: An .onnx file, an .xml file of OpenVINO, or the folder of a network.
        network: Which weights the original has.
        images: On which images they are compared.
        runtime: What runs a file. Default: onnxruntime for .onnx, openvino for .xml.
        option: KEY=VALUE, a property for OpenVINO, for instance INFERENCE_PRECISION_HINT=bf16, or an argument of ONNX
            Runtime's session; the value is JSON or text. May be given more than once. Default: on the CPU, in float32.
        tolerance: Largest difference to call close, as a share in (0, 1) of its channel's largest output; it needs
            images that are not random. Default: 0.01.
        exact: Call nothing close.
        json: Print the certificate as JSON.

    Returns:
        0 where the other is exact or close, 3 where it is different, 1 where it failed.

    Raises:
        ArgumentError: An option has a wrong value, or two options exclude each other.
    """
    if tolerance is not None and (exact or not 0 < tolerance < 1):
        raise ArgumentError(must_be("--tolerance", "a share in (0, 1), without --exact", tolerance))
    if not Path(other).exists():
        raise ArgumentError(f"there is no file or folder {other!r} to compare")
    if Path(other).is_dir() and (runtime or option):
        raise ArgumentError(f"--runtime and --option are for files, but {other} is a folder")
    require_network(original)
    require_packages_of(original, other)
    images.check()
    options = read_values(option, "--option")
    from convattn.convert import certify as compare
    from convattn.convert.certificate import CLOSE

    with one_thread(images.path is None):
        loaded = network.load(original)
        second: Any = other
        if Path(other).is_dir():
            second = network.load(other, beside=[original]).network
        on = images.read(loaded)
        if on.random and tolerance is not None:
            raise ArgumentError(
                "--tolerance needs images: nothing is called close on random numbers"
            )
        largest = None if exact or on.random else tolerance or CLOSE
        certificate = compare(
            loaded.network,
            second,
            on.prepared,
            runtime=runtime,
            options=options or None,
            tolerance=largest,
        )
    certificate = replace(certificate, images=on.words)
    print_record(certificate, certificate.summary(), json=json)
    return EXIT_CODES[certificate.verdict]
