"""Numbers that others have published, to stand beside ours."""

from dataclasses import dataclass

PAPER = (
    "Cordonnier, Loukas, Jaggi: On the Relationship between Self-Attention and Convolutional Layers, ICLR 2020, table 1"
)
REPLICATION = "Varma, Prabhu 2020, an independent replication of the paper"


@dataclass(frozen=True)
class PublishedRow:
    """A row of table 1, one of the paper's or one that the paper leaves open."""

    recipe: str  # Recipe that trains the row's network
    model: str  # What the row is called
    # The paper's test accuracy on CIFAR-10, one run, in [0, 1]; None where the paper has none
    accuracy: float | None = None
    parameters: str | None = None  # The paper's number of parameters, as printed
    flops: str | None = None  # The paper's number of operations, as printed; of the linear maps only
    replication: float | None = None  # Test accuracy of the replication, in [0, 1]; None where it has none


TABLE1 = (
    PublishedRow("resnet18", "ResNet18", 0.938, "11.2M", "1.1B", 0.9463),
    PublishedRow("sa-quadratic", "SA quadratic", 0.938, "12.1M", "6.2B", 0.9365),
    PublishedRow("sa-learned", "SA learned", 0.918, "12.3M", "6.2B", 0.9036),
    PublishedRow("sa-learned-content", "SA learned + content", 0.871, "29.5M", "15B", 0.8636),
    PublishedRow("sa-quadratic-16-heads", "SA quadratic, 16 heads", replication=0.9311),
    PublishedRow("sa-quadratic-generalized", "SA generalised quadratic"),
    PublishedRow("sa-quadratic-generalized-pruned", "SA generalised quadratic, pruned"),
    PublishedRow("convnet", "3×3 convolutions (control)"),
    PublishedRow("sa-sinusoidal", "SA sinusoidal"),
    PublishedRow("sa-distance", "SA function of distance"),
    PublishedRow("sa-distance-table-start", "SA function of distance, start of the table"),
    PublishedRow("sa-distance-content-gated", "SA function of distance, gated content"),
    PublishedRow("sa-quadratic-grid-init", "SA quadratic, centres start on a grid"),
    PublishedRow("sa-quadratic-strong", "SA quadratic, present-day training"),
)
"""Rows of table 1: the paper's in its order, then those that the paper leaves open."""
