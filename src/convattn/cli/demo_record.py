"""What the demo showed, as records from which its summary and its page are made."""

from dataclasses import dataclass
from typing import ClassVar

from convattn.records import Certificate, NetworkCertificate, PretrainedCard, Record


@dataclass(frozen=True)
class Conversion:
    """A conversion of the filters, and how it did on the photograph."""

    certificate: Certificate  # What the conversion promises
    difference: float  # Largest difference between attention and convolution on the photograph
    exact_difference: float  # Largest difference between attention and the convolution in float64
    rounding: float  # Largest difference between the convolution and itself in float64
    unit: float  # Machine epsilon times the largest output: what rounding changes an output by
    figure: str  # Name of the figure's file


@dataclass(frozen=True)
class NetworkConversion:
    """A conversion of the trained network to convolutions."""

    kernel: int | None  # Taps per axis that every layer was given; None for as many as each needs
    certificate: NetworkCertificate  # What was measured of it, on the embedded images

    @property
    def words(self) -> str:
        """The window in words."""
        if self.kernel is not None:
            return f"{self.kernel} × {self.kernel}"
        sides = sorted({taps for layer in self.certificate.layers for taps in layer.kernel_size})
        return f"as needed, {sides[0]} × {sides[0]}" + (f" to {sides[-1]} × {sides[-1]}" if len(sides) > 1 else "")


@dataclass(frozen=True)
class TrainedNetwork:
    """The trained network that comes with the package, and what was made of it."""

    card: PretrainedCard  # What its card says
    labels: tuple[int, ...]  # Class of each embedded image
    seen: tuple[int, ...]  # Class that the network gives it, here
    classes: tuple[str, ...]  # Names of the classes
    conversions: tuple[NetworkConversion, ...]  # To convolutions: as many taps as needed, then smaller windows
    back: NetworkCertificate  # The first of these convolutions to attention again
    images: str  # Name of the file that draws the images with their classes
    heads: str  # Name of the file that draws the heads at the start and the end of its training
    credit: str  # Where the images are from

    @property
    def right(self) -> int:
        """Number of images whose class the network sees."""
        return sum(seen == label for seen, label in zip(self.seen, self.labels, strict=True))

    @property
    def as_on_card(self) -> bool:
        """Whether the network sees here in every image what its card says."""
        return self.seen == self.card.sample_classes


@dataclass(frozen=True)
class Demonstration(Record):
    """What the demo showed."""

    schema_version: ClassVar[int] = 3

    conversions: tuple[Conversion, ...]  # The filters converted with hard heads, then with soft ones
    network: TrainedNetwork  # The trained network
    photograph: str  # Credit of the photograph
    seconds: float  # Wall time of everything, in seconds
    passed: bool  # Whether no conversion failed, the network sees what its card says, and it came back exact or close

    def summary(self) -> str:
        """Returns what was shown, in a few lines of plain text."""
        hard, soft = self.conversions
        network = self.network
        rounding = hard.exact_difference / hard.unit
        own, softness = hard.rounding / hard.unit, soft.certificate.sharpness
        seen = "as" if network.as_on_card else "NOT what"
        windows = [f"                   {_in_words(item)}" for item in network.conversions]
        return "\n".join(
            [
                hard.certificate.summary(),
                "",
                f"on the photograph  hard heads differ from the exact convolution by {rounding:.2g} roundings at most",
                f"                   (the float32 convolution itself by {own:.2g}),",
                f"                   heads of sharpness {softness:.3g} by {soft.exact_difference / soft.unit:.2g}",
                f"trained network    {seen} its card says; right on {network.right} of {len(network.seen)} images",
                f"                   {network.card.summary()}",
                "to convolutions    windows, predictions that changed, and verdicts:",
                *windows,
                f"to attention       {network.back.verdict}: the first of these, to hard heads",
                f"time               {self.seconds:.1f} s in all",
            ]
        )


def _in_words(conversion: NetworkConversion) -> str:
    found = conversion.certificate
    return f"{conversion.words}: {found.top1_changed} of {found.top1_total}, {found.verdict}"
