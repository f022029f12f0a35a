"""What is timed and measured: layers of this library, plain attention of torch, and their peers."""

from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.measure import extra_memory, make_call
from convattn import Content, LearnedAxial, RelativeAttention2d
from convattn.functional import displacement_scores, position_channels
from convattn.grid import Axis

HEADS = 6
PLAIN = "plain attention"
LAYER, THREE = "layer, quadratic", "layer, quadratic, three channels"
ONE_HOT = "one-hot channels, learned axial"
FLEX = "FlexAttention of torch, compiled"
LAYERS = {
    "layer, learned axial": ("learned_axial", "auto"),
    LAYER: ("quadratic", "auto"),
    THREE: ("quadratic", "quadratic"),
}
"""Encoding and way of this library's layers."""

MEASURED = (PLAIN, LAYER, THREE, ONE_HOT)
"""Whose memory is measured."""


class Plain(nn.Module):
    """Attention of torch with projections; a mask of all pairs is added if there is one."""

    def __init__(self, width: int, mask: Tensor | None = None, heads: int = HEADS) -> None:
        """Draws the projections."""
        super().__init__()
        channels = heads * width
        self.heads, self.width, self.mask = heads, width, mask
        self.inputs = nn.Linear(channels, 3 * channels)
        self.outputs = nn.Linear(channels, channels)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends between the projections."""
        return scaled_dot_product_attention(query, key, value, self.mask)

    def forward(self, x: Tensor) -> Tensor:
        """Maps an image to an image."""
        parts = self.inputs(x.flatten(2).mT).unflatten(-1, (3, self.heads, self.width))
        y = self.attend(*parts.permute(2, 0, 3, 1, 4))
        return self.outputs(y.transpose(1, 2).flatten(2)).mT.view(x.shape)


class OneHot(Plain):
    """The same with `position_channels` in longer queries and keys, and values as wide as these."""

    def __init__(self, width: int, size: int) -> None:
        """Draws the scores."""
        super().__init__(width)
        self.encoding = LearnedAxial(HEADS, 2, extent=size)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends with scores of displacements."""
        scale, side = self.width**-0.5, isqrt(query.shape[2])
        channels = position_channels(self.encoding, (side, side), scale=scale)
        query, key = channels.append(query, key)
        value = functional.pad(value, (0, query.shape[-1] - self.width))
        y = scaled_dot_product_attention(query, key, value, scale=scale)
        return y[..., : self.width]


class Flex(Plain):
    """The same with FlexAttention and a score for each displacement along each axis."""

    def __init__(self, width: int, size: int) -> None:
        """Draws the scores."""
        super().__init__(width)
        rows, cols = torch.randn(2, HEADS, 2 * size - 1)

        def scored(score: Tensor, _: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            along_rows = key // size - query // size + size - 1
            along_cols = key % size - query % size + size - 1
            return score + rows[head, along_rows] + cols[head, along_cols]

        self.scored = scored
        torch.compiler.reset()  # each size is compiled anew, and torch gives up after eight
        self.compiled = torch.compile(flex_attention)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends with scores of displacements."""
        return self.compiled(query, key, value, score_mod=self.scored)


class Tokens(nn.Module):
    """A module of tokens, called with images."""

    def __init__(self, inner: nn.Module) -> None:
        """Takes the module."""
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Calls the module."""
        return self.inner(x.flatten(2).mT).mT.view(x.shape)


def layer(
    width: int,
    encoding: str,
    impl: str,
    content: Content | bool = True,
    heads: int = HEADS,
) -> nn.Module:
    """Makes a layer of this library."""
    channels = heads * width
    options = {"head_width": width, "content": content, "impl": impl}
    return RelativeAttention2d(channels, channels, num_heads=heads, encoding=encoding, **options)


def contenders(width: int, size: int, *, training: bool) -> dict[str, nn.Module]:
    """Returns what is timed, by name; plain attention first."""
    from timm.layers.pos_embed_rel import RelPosBias
    from timm.models.vision_transformer_relpos import RelPosAttention

    axes = [Axis(range(size), size)] * 2
    mask = displacement_scores(LearnedAxial(HEADS, 2).table(axes), axes).detach()[None]
    timm_attention = RelPosAttention(HEADS * width, HEADS)
    timm_attention.rel_pos = RelPosBias(window_size=(size, size), num_heads=HEADS)
    modules: dict[str, nn.Module] = {PLAIN: Plain(width)}
    alone = Content(position=False, content_bias=False)
    for name, (encoding, impl) in LAYERS.items():
        modules[name] = layer(width, encoding, impl)
        modules[f"{name}, without q·Ŵ r"] = layer(width, encoding, impl, alone)
    modules[ONE_HOT] = OneHot(width, size)
    modules["explicit formula, learned axial"] = layer(width, "learned_axial", "reference")
    modules["torch, a fixed mask"] = Plain(width, mask)
    modules["torch, a mask that learns"] = Plain(width, nn.Parameter(mask))
    modules["RelPosAttention of timm"] = Tokens(timm_attention)
    if not training:
        modules[FLEX] = Flex(width, size)
    return modules


def memory(name: str, size: int) -> int | None:
    """Measures the bytes of a training step of a layer of head width 32 beyond what is held before it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    modules = {PLAIN: lambda: Plain(32), ONE_HOT: lambda: OneHot(32, size)}
    module = modules[name]() if name in modules else layer(32, *LAYERS[name])
    make_call(module, torch.randn(1, HEADS * 32, 7, 7), training=True)()
    x = torch.randn(1, HEADS * 32, size, size)
    return extra_memory(make_call(module, x, training=True), x.device)
