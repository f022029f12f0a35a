"""`convattn convert`: a saved convolution to attention, with its certificate."""

from pathlib import Path
from typing import TYPE_CHECKING

from convattn.cli.options import AsJson, Output, WholeNumber
from convattn.cli.output import print_record
from convattn.errors import UnsupportedModelError
from convattn.records import Certificate

if TYPE_CHECKING:
    from convattn.convert.taps import AnyConvolution
    from convattn.layers import RelativeAttention

__all__ = ["convert", "save_converted"]


def convert(
    source: Path,
    /,
    *,
    output: Output,
    sharpness: float | None = None,
    head_width: WholeNumber | None = None,
    json: AsJson = False,
) -> int:
    """Convert a saved convolution to attention that computes the same.

    The layer is checked against the convolution, and written with its certificate only if it passes; otherwise nothing
    is written and the exit code is 1.

    Args:
        source: Folder of a convolution, as convattn.save_layer writes it: model.safetensors and config.json.
        output: Folder to make for the layer: model.safetensors, config.json and certificate.json. It must be new or
            empty.
        sharpness: α > 0 of every head, in 1/pixel²; without it heads are so sharp that the layer is exact.
        head_width: Width of each head, at least 1; without it heads are as wide as they need to be.
        json: Print the certificate as JSON.

    Returns:
        0, or 1 where the check failed.
    """
    from convattn.convert import conv_to_attention
    from convattn.files import require_new_folder

    require_new_folder(output, "--output")
    layer, certificate = conv_to_attention(_load_convolution(source), sharpness=sharpness, head_width=head_width)
    if certificate.passed:
        save_converted(layer, certificate, output)
    outcome = f"wrote {output}" if certificate.passed else "wrote nothing"
    print_record(certificate, f"{certificate.summary()}\n{outcome}", json=json)
    return 0 if certificate.passed else 1


def _load_convolution(source: Path) -> "AnyConvolution":
    """Loads a layer that must be a convolution."""
    from convattn.convert import SUPPORTED_CONVOLUTIONS, load_layer

    layer = load_layer(source)
    if type(layer) not in SUPPORTED_CONVOLUTIONS:
        raise UnsupportedModelError(f"{source} holds a {type(layer).__name__}, which is no convolution of torch")
    return layer  # type: ignore[return-value]


def save_converted(layer: "RelativeAttention", certificate: Certificate, folder: Path) -> None:
    """Writes a converted layer with its certificate, whole or not at all.

    Args:
        layer: The layer.
        certificate: Its certificate.
        folder: Where; it must be new or empty.
    """
    from convattn.convert import save_layer
    from convattn.files import new_folder

    with new_folder(folder, "--output") as temporary:
        save_layer(layer, temporary)
        certificate.save(temporary / "certificate.json")
