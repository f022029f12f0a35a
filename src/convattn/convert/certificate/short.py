"""What the certificate of a network says of one layer, and of dtypes, in both directions alike."""

from collections.abc import Sequence

from torch import nn

from convattn.records import Certificate, LayerCertificate

__all__ = ["dtypes", "resembles", "short_certificate"]


def short_certificate(
    certificate: Certificate,
    names: Sequence[str],
    *,
    kernel_size: tuple[int, ...],
    path: str | None,
    notes: tuple[str, ...],
) -> LayerCertificate:
    """Sums a layer's certificate up.

    Args:
        certificate: The certificate of one layer.
        names: Its dotted names in the network, the first one first.
        kernel_size: Kernel of the convolution, of the source or of the result.
        path: How it computed on the network's images; None where they did not reach it.
        notes: What else there is to say.

    Returns:
        The short form.
    """
    return LayerCertificate(
        name=names[0],
        aliases=tuple(names[1:]),
        source=certificate.source,
        result=certificate.result,
        heads=certificate.heads,
        kernel_size=kernel_size,
        exact=certificate.exact,
        leak=certificate.leak,
        bound_per_unit=certificate.bound_per_unit,
        rounding_per_unit=certificate.rounding_per_unit,
        rounding_at_zero=certificate.rounding_at_zero,
        bound=certificate.bound,
        measured_error=certificate.measured_error,
        rounding=certificate.rounding,
        path=path,
        passed=certificate.passed,
        notes=notes,
    )


def resembles(error: float, rounding: float, largest: float) -> bool:
    """Tells whether an approximate network is of the same function at all: one of zeros would err by the largest.

    Args:
        error: Largest difference of an output.
        rounding: What rounding explains of it.
        largest: Largest absolute value of that output.

    Returns:
        Whether the error is smaller, or rounding; not so where it is not a number.
    """
    return error <= rounding or error < largest


def dtypes(network: nn.Module) -> str:
    """Names the dtypes of a network's parameters."""
    kinds = dict.fromkeys(str(parameter.dtype).removeprefix("torch.") for parameter in network.parameters())
    return ", ".join(kinds)
