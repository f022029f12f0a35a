"""What the demo showed, as records from which its summary and its page are made."""

from dataclasses import dataclass

from convattn.records import Certificate, Record, RunRecord


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
class Demonstration(Record):
    """What the demo showed."""

    conversions: tuple[Conversion, ...]  # The filters converted with hard heads, then with soft ones
    run: RunRecord  # The training run
    heads: str  # Name of the file that draws the run's heads at its start and end
    photograph: str  # Credit of the photograph
    least_accuracy: float  # Test accuracy that was to be reached, in [0, 1]
    seconds: float  # Wall time of everything, in seconds
    passed: bool  # Whether every certificate passed and the accuracy was reached

    def summary(self) -> str:
        """Returns what was shown, in a few lines of plain text."""
        hard, soft = self.conversions
        accuracy = self.run.results["test_accuracy"]
        verdict = "passed" if accuracy >= self.least_accuracy else "FAILED"
        rounding = hard.exact_difference / hard.unit
        own, softness = hard.rounding / hard.unit, soft.certificate.sharpness
        return "\n".join(
            [
                hard.certificate.summary(),
                "",
                f"on the photograph  hard heads differ from the exact convolution by {rounding:.2g} roundings at most",
                f"                   (the float32 convolution itself by {own:.2g}),",
                f"                   heads of sharpness {softness:.3g} by {soft.exact_difference / soft.unit:.2g}",
                f"digits             {verdict}: test accuracy {accuracy:.2%}, {self.least_accuracy:.0%} asked for;",
                f"                   {self.run.parameters:,} parameters, attention only, {self.run.seconds:.1f} s",
                f"time               {self.seconds:.1f} s in all",
            ]
        )
