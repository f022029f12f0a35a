"""A small network for a short training: layers of attention with learned centres, or controls in their place."""

from collections.abc import Sequence
from typing import Literal, cast, final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from convattn.encodings import Quadratic, Shift
from convattn.encodings.quadratic import grid_centres
from convattn.errors import ArgumentError, ShapeError, must_be, require_name
from convattn.layers import RelativeAttention, RelativeAttention2d
from convattn.models.classifier import ImageClassifier, require_whole

_LEAST = 5e-4
"""Added to each variance, so that directions in which patches hardly vary are not blown up."""
_AT_ONCE = 500  # images whose patches are made at once


_MIXINGS = ("attention", "conv", "hard", "random", "random-frozen", "content")
_HEADS = 9
_DIVISOR = 9
"""What scores are divided by, so that the first steps are small."""
_NORM_MOMENTUM = 0.4
"""Share of a batch in the running statistics."""


@final
class SpeedNet(ImageClassifier):
    """Whitened patches, stages of two mixing layers, maximum over pixels, class scores.

    ``images → whitened patches → GELU → stages → maximum over pixels → Linear / 9``, and a stage is ``mix → maximum of
    2 x 2 → normalise → GELU → mix → normalise → GELU``. Sizes and start are those of a convolutional network that
    trains in ten epochs; here nine heads with learned centres and sharpness replace the nine taps of each
    convolution. Batch normalisation learns biases alone. The first outputs of a layer start as copies of its inputs, by
    the head nearest to the query, or by the middle tap.

    The stem maps each patch p of pixels to its whitened coordinates and their negatives, y = [V; −V] p + b. It is
    attention as well: a hard head for each pixel of a patch, four for 2 x 2. Row i of V is e_i / √(λ_i + 5·10⁻⁴), with
    e_i and λ_i the eigenvectors and eigenvalues of E[p pᵀ]. V does not learn: `whiten` takes it from images, and until
    then it is the identity.

    `mixing` names the layers, all of one shape, so that one training compares them:

    - "attention": nine quadratic heads, which start on the 3 x 3 grid; centres and sharpness learn;
    - "conv": 3 x 3 convolutions, padded with zeros, and a convolution as the stem;
    - "hard": heads exactly on the 3 x 3 grid, which stay there;
    - "random": as "attention", but centres start from N(0, 2²); "random-frozen": they and the sharpness stay there;
    - "content": as "attention", with scores that depend on the image behind gates that start closed, in all layers but
      the first, whose image is the largest.

    At the defaults it has 1,971,514 trainable parameters with "attention": 1,971,352, as with "conv", "hard" and
    "random-frozen", and the nine centres and sharpnesses (27 numbers) of each of six layers.

    Source: the sizes, the start and the frozen stem with negatives: Jordan, "94 % on CIFAR-10 in 3.29 seconds on a
    single GPU", arXiv 2404.00498; whitened patches: Page, "How to train your ResNet 8: bag of tricks", 2019.

    Attributes:
        stem: The layer of patches, without padding.
        stages: The stages, first to last; each has `first` and `second`, the mixing layers.
        head: Linear map of the largest values to class scores.

    Example:
        >>> import torch
        >>> network = SpeedNet(widths=[8, 12], in_channels=1)
        >>> network(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 10])
    """

    def __init__(
        self,
        mixing: str = "attention",
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        widths: Sequence[int] = (64, 256, 256),
        sharpness: float = 3.0,
        patch: int = 2,
    ) -> None:
        """Builds the network and draws its weights.

        Args:
            mixing: Which layers mix pixels.
            num_classes: Number of classes, ≥ 1.
            in_channels: Channels of the images, ≥ 1.
            widths: Channels of each stage, ≥ 1; one or more stages.
            sharpness: α > 0 in 1/pixel² at which heads start; no effect on "conv" and "hard".
            patch: Rows and columns of the patches of the stem, ≥ 1; with 1 the stem mixes no pixels.

        Raises:
            ArgumentError: A size or the sharpness is out of range.
            UnknownNameError: There is no such mixing.
        """
        super().__init__()
        require_name("mixing", mixing, _MIXINGS)
        require_whole(num_classes=num_classes, in_channels=in_channels, patch=patch)
        if not isinstance(widths, Sequence) or not widths:
            raise ArgumentError(must_be("widths", "the channels of one stage or more", widths))
        for width in widths:
            require_whole(widths=width)
        self.in_channels = in_channels
        self.stem = _draw_stem(mixing, in_channels, patch)
        stages, channels = [], self.stem.out_channels
        for width in widths:
            first = "attention" if mixing == "content" and not stages else mixing
            mixer = _mixer(first, channels, width, sharpness)
            stages.append(_Stage(mixer, _mixer(mixing, width, width, sharpness), width))
            channels = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, num_classes, bias=False)

    def forward(
        self, images: Float[Tensor, "batch channels rows cols"]
    ) -> Float[Tensor, "batch classes"]:
        """Scores the classes.

        Args:
            images: Normalised images, at least 2^stages + patch − 1 pixels high and wide.

        Returns:
            One score (logit) per class.

        Raises:
            ShapeError: The images have other channels, or are too small for the stages.
        """
        least = 2 ** len(self.stages) + self.stem.kernel_size[0] - 1
        if images.shape[1] != self.in_channels or min(images.shape[2:]) < least:
            raise ShapeError(
                f"images must be of shape (batch, {self.in_channels}, rows, cols) with at least {least} rows and "
                f"columns, but are {tuple(images.shape)}"
            )
        features = self.stages(F.gelu(self.stem(images)))
        return self.head(features.amax(dim=(2, 3))) / _DIVISOR

    @torch.no_grad()
    def whiten(self, images: Float[Tensor, "batch channels rows cols"]) -> None:
        """Takes V from the patches of normalised images, in float64.

        Args:
            images: Normalised images, at least as high and wide as a patch.
        """
        inputs = self.stem.out_channels // 2
        products = torch.zeros(inputs, inputs, dtype=torch.float64, device=images.device)
        count = 0
        for part in images.split(_AT_ONCE):
            windows = F.unfold(part, self.stem.kernel_size)
            patches = rearrange(windows, "batch inputs places -> (batch places) inputs").double()
            products += patches.T @ patches
            count += len(patches)
        variances, directions = torch.linalg.eigh(products / count)
        _set_directions(self.stem, (directions / (variances + _LEAST).sqrt()).T)


class _Stage(nn.Module):
    """Two mixing layers, the first of which also halves the image."""

    def __init__(self, first: nn.Module, second: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.second = first, second
        norms = [nn.BatchNorm2d(width, momentum=_NORM_MOMENTUM) for _ in range(2)]
        for norm in norms:
            norm.weight.requires_grad_(False)
        self.first_norm, self.second_norm = norms

    def forward(
        self, x: Float[Tensor, "batch channels rows cols"]
    ) -> Float[Tensor, "batch outputs half_rows half_cols"]:
        """Mixes, halves, mixes."""
        x = F.gelu(self.first_norm(F.max_pool2d(self.first(x), 2)))
        return F.gelu(self.second_norm(self.second(x)))


def _mixer(
    mixing: str, inputs: int, outputs: int, sharpness: float
) -> RelativeAttention | nn.Conv2d:
    """Makes a layer whose first outputs copy the inputs."""
    if mixing == "conv":
        layer = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
        with torch.no_grad():
            nn.init.dirac_(layer.weight[:inputs])
        return layer
    if mixing == "hard":
        encoding: Quadratic | Shift = Shift(_HEADS, 2)
        centres = torch.tensor(grid_centres(_HEADS), dtype=torch.float32)
    else:
        given = None if mixing.startswith("random") else grid_centres(_HEADS)
        encoding = Quadratic(_HEADS, 2, centres=given, sharpness=sharpness)
        encoding.requires_grad_(mixing != "random-frozen")
        centres = encoding.centres.detach()
    gate: Literal["tanh"] | None = "tanh" if mixing == "content" else None
    layer = RelativeAttention2d(
        inputs, outputs, num_heads=_HEADS, encoding=encoding, gate=gate, bias=False
    )
    distances = centres.norm(dim=1)
    nearest = (distances == distances.min()).to(distances.dtype)
    copied = min(inputs, outputs)
    with torch.no_grad():
        weight = cast(Tensor, layer.values.weight)
        weight[:, :copied] = nearest[:, None, None] * torch.eye(copied, inputs)
    return layer


def _draw_stem(mixing: str, channels: int, patch: int) -> RelativeAttention2d | nn.Conv2d:
    """Makes the layer of patches: a hard head per pixel of a patch, or the convolution that they are.

    Its map is [I; −I] until `SpeedNet.whiten` takes V, and is no parameter that learns. b starts as that of
    `nn.Linear`.
    """
    outputs = 2 * channels * patch**2
    with torch.random.fork_rng(devices=[]):  # weights that are not kept use up no random numbers
        if mixing == "conv":
            layer = nn.Conv2d(channels, outputs, patch)
        else:
            layer = RelativeAttention2d(channels, outputs, patch, encoding="shift")
    _set_directions(layer, torch.eye(outputs // 2))
    layer.weight.requires_grad_(False)
    bound = (outputs // 2) ** -0.5
    nn.init.uniform_(cast(Tensor, layer.bias), -bound, bound)
    return layer


@torch.no_grad()
def _set_directions(
    layer: RelativeAttention2d | nn.Conv2d, rows: Float[Tensor, "inputs inputs"]
) -> None:
    """Gives a layer of patches the map [V; −V]."""
    layer.weight.copy_(torch.cat([rows, -rows]).view_as(layer.weight))
