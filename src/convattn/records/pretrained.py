"""What is known of a trained network that comes with the library."""

from dataclasses import dataclass

from convattn.records.record import Record
from convattn.records.runs import RunRecord


@dataclass(frozen=True)
class PretrainedCard(Record):
    """What is known of a trained network that comes with the library: `card.json` in its folder."""

    name: str  # Its name, and that of its folder
    task: str  # What it was trained for, in a few words
    file_dtype: str  # Dtype of the floating-point tensors in the file, to which the run's weights were rounded
    dtype: str  # Dtype in which they are loaded
    bytes: int  # Size of model.safetensors
    accuracy: float  # Share of the test images that the network in the file classifies correctly, in [0, 1]
    views_accuracy: float | None  # The same from several views of each image; None where the run took one view
    tested: int  # Number of test images
    sample_classes: tuple[int, ...]  # Class that it gives to each embedded CIFAR-10 image; empty for other data
    command: str  # Command that made the folder from that of the run
    revision: str | None  # Revision of the code that made the folder
    run: RunRecord  # The training run

    def summary(self) -> str:
        """Returns the task, the accuracy and the size in one line of plain text."""
        size = f"{self.bytes / 1024:,.0f} KiB"
        return f"{self.task}: test accuracy {self.accuracy:.2%}, {self.run.parameters:,} trainable parameters, {size}"
