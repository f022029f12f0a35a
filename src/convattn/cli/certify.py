"""`convattn certify`: whether another network, in a file or a folder, computes what a network computes."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from convattn.cli.convert import EXIT_CODES, read_images, require_measured
from convattn.cli.network_options import DEFAULTS, NetworkOptions, read_value
from convattn.cli.output import WholeNumber, key_values, print_record
from convattn.cli.threads import one_thread
from convattn.errors import ArgumentError, must_be


def certify(  # noqa: PLR0913 - the options of the command
    original: str,
    other: str,
    /,
    *,
    network: NetworkOptions = DEFAULTS,
    images: Path | None = None,
    limit: WholeNumber | None = None,
    shape: str | None = None,
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

    Args:
        original: timm:NAME, torchvision:NAME, hf:OWNER/MODEL, convattn:NAME, or the folder of a network or a run.
        other: An .onnx file, an .xml file of OpenVINO, or the folder of a network.
        network: Which weights the original has.
        images: Images on which to compare: a folder of pictures, a .parquet or a .npy file, as for `convattn analyze`.
            Without it networks that were trained on CIFAR-10 or digits are compared on test images, and others on one
            image of random numbers, where nothing is called close.
        limit: How many of the images to take, in the order of their names or rows. Default: 16.
        shape: Shape of an image of random numbers, to compare them on one, for instance 3,224,224.
        runtime: What runs a file. Default: onnxruntime for .onnx, openvino for .xml.
        option: KEY=VALUE, a property for OpenVINO, for instance INFERENCE_PRECISION_HINT=bf16, or an argument of ONNX
            Runtime's session; the value is JSON or text. May be given more than once. Default: on the CPU, in float32.
        tolerance: Largest difference to call close, as a share in (0, 1) of the largest output; it needs images that
            are not random. Default: 0.01.
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
    sizes = require_measured(images, limit, shape)
    from convattn.convert import certify as compare
    from convattn.convert.certificate import CLOSE

    given: dict[str, Any] = {
        key: read_value(text) for key, text in key_values(option, "--option").items()
    }
    with one_thread(images is None):
        loaded = network.load(original)
        second: Any = (
            NetworkOptions(no_verify=network.no_verify).load(other).network
            if Path(other).is_dir()
            else other
        )
        pixels, words, random = read_images(loaded, images, limit, sizes)
        if random and tolerance is not None:
            raise ArgumentError(
                "--tolerance needs images: nothing is called close on random numbers"
            )
        close = None if exact or random else tolerance or CLOSE
        certificate = compare(
            loaded.network, second, pixels, runtime=runtime, options=given or None, tolerance=close
        )
    certificate = replace(certificate, images=words)
    print_record(certificate, certificate.summary(), json=json)
    return EXIT_CODES[certificate.verdict]
