"""How a layer computes, and at what cost."""

from dataclasses import dataclass

from convattn.records.record import Record


@dataclass(frozen=True)
class Plan(Record):
    """How an attention layer computes its output for images of one shape, and what that costs."""

    path: str  # "separable", "dense", "fourier", "shift", "content", "flex" or "reference"
    order: str  # "weights" if pixels are mixed before they are multiplied with the heads' matrices, "values" if after
    reason: str  # Why this path
    flops: int  # Floating-point operations of a forward pass; a multiplication and an addition count as two
    bytes: int  # Estimated working memory of a forward pass, beyond input, output and parameters
    bound: float  # Largest error beyond rounding for inputs of absolute value ≤ 1
    shape: tuple[int, ...]  # Shape of the images, (batch, channels, *spatial)
    dtype: str  # Dtype of the images
    device: str  # Device of the images

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
