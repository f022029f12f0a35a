"""How a layer computes, and at what cost."""

from dataclasses import dataclass

from convattn.records.record import Record


@dataclass(frozen=True)
class Plan(Record):
    """How an attention layer computes its output for images of one shape, and what that costs.

    Attributes:
        path: "separable", "dense", "fourier", "shift", "content", "flex" or "reference".
        order: "weights" if pixels are mixed before they are multiplied with the heads' matrices, "values" if after.
        reason: Why this path.
        flops: Floating-point operations of a forward pass; a multiplication and an addition count as two.
        bytes: Estimated working memory of a forward pass, beyond input, output and parameters.
        bound: Largest error beyond rounding for inputs of absolute value ≤ 1.
        shape: Shape of the images, (batch, channels, *spatial).
        dtype: Dtype of the images.
        device: Device of the images.
    """

    path: str
    order: str
    reason: str
    flops: int
    bytes: int
    bound: float
    shape: tuple[int, ...]
    dtype: str
    device: str

    def summary(self) -> str:
        """Returns the plan in a few lines of plain text."""
        return "\n".join(
            [
                f"{self.path} path, {self.order} first: {self.reason}",
                f"  images          {self.shape}, {self.dtype} on {self.device}",
                f"  operations      {self.flops:,}",
                f"  working memory  {self.bytes:,} bytes",
                f"  error           at most {self.bound:.3g} per unit of the input, beyond rounding",
            ]
        )
