"""What initialising a vision transformer as a convolution has set, promises and does not cover."""

from dataclasses import dataclass
from typing import ClassVar

from convattn.records.certificate import Judged
from convattn.records.network_certificate import LeftAlone
from convattn.records.words import counted


@dataclass(frozen=True)
class InitialisedLayer(Judged):
    """One attention layer whose heads were set on the patches around the query."""

    name: str  # Where it stands in the network
    convolution: str  # What its heads compute by position, as `print` shows that convolution of patches
    exact: bool  # Whether nothing of it is lost but rounding
    leak: float  # Share of a head's attention by position that is outside the kernel
    bound: float  # A-priori bound on the largest error on the input measured
    measured_error: float  # Largest output difference to that convolution, on random patches, in float64
    rounding: float  # Largest difference that the dtype's rounding explains there


@dataclass(frozen=True)
class ConvolutionalInit(Judged):
    """What `convolutional_init` has made of a vision transformer.

    Attributes:
        verdict: "exact" where the heads are the convolution, at patches, up to rounding; "failed" where a layer's error
            exceeds its bound and rounding; otherwise "different".
        model: Class of the network.
        grid: Rows and columns of patches, for images of the network's own size.
        prefix_tokens: Tokens before the patches (class, distillation, register), which have no position.
        kernel_size: Rows and columns of patches that the heads look at.
        heads: Heads of each layer now.
        heads_before: Heads of each layer before.
        head_width: D_h, width of a head: the largest rank of the matrix of one tap.
        heads_at_centre: How many of the heads look at the query's own patch, where the matrices add up.
        sharpness: α of the score −α‖δ − Δ‖², in 1/patch².
        content: "gated", or "none".
        content_share: Share of content in each head's attention at the start; 0 without content.
        parameters: Number of parameters now.
        parameters_before: Number of parameters before.
        layers: The layers.
        left: Attention that was not touched, and why.
        exact: Whether every layer's heads are the convolution, and nothing else, at patches.
        not_covered: What this says nothing about.
    """

    schema_version: ClassVar[int] = 2
    layer_kind: ClassVar[type[Judged]] = InitialisedLayer

    model: str
    grid: tuple[int, int]
    prefix_tokens: int
    kernel_size: tuple[int, int]
    heads: int
    heads_before: int
    head_width: int
    heads_at_centre: int
    sharpness: float
    content: str
    content_share: float
    parameters: int
    parameters_before: int
    layers: tuple[InitialisedLayer, ...]
    left: tuple[LeftAlone, ...]
    exact: bool
    not_covered: tuple[str, ...] = ()

    def summary(self) -> str:
        """Returns the record in a few lines of plain text."""
        kernel, grid = (" x ".join(map(str, sizes)) for sizes in (self.kernel_size, self.grid))
        prefix = counted(self.prefix_tokens, "prefix token")
        added = self.heads - self.heads_before
        heads = f"{self.heads} of width {self.head_width}, {self.heads_at_centre} of them at the query's own patch"
        worst = max(self.layers, key=lambda layer: layer.measured_error - layer.bound - layer.rounding)
        error = f"error {worst.measured_error:.3g} of {worst.bound + worst.rounding:.3g} allowed, at {worst.name}"
        content = f"gated, a share of {self.content_share:.3g}" if self.content == "gated" else "none"
        lines = [
            f"convolutional init: {self.verdict} ({counted(len(self.layers), 'layer')} of {self.model})",
            f"  kernel          {kernel} on a grid of {grid} patches, after {prefix}",
            f"  heads           {heads}" + (f"; {added} of them new" if added else ""),
            f"  sharpness       {self.sharpness:.6g} per patch²",
            f"  content         {content}",
            f"  parameters      {self.parameters_before:,} before, {self.parameters:,} now",
            f"  measured        {error}",
        ]
        lines += [f"  left alone      {item.summary()}" for item in self.left]
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)
