"""Times layers with relative positions against plain attention of the same sizes: python -m evidence.positions.

Contenders take turns in one process. Each cell is the median over rounds of a time divided by that of plain attention,
which is torch's fused kernel between the same projections, without positions. `--width 64` takes wider heads,
`--rounds` more turns. Needs timm.
"""

import argparse
import statistics

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import make_call, time_rounds
from convattn import Content, LearnedAxial, RelativeAttention2d
from convattn.functional import displacement_scores
from convattn.grid import Axis

HEADS = 6
SIZES = ((14, 8), (28, 2), (38, 1))
"""Pixels along an axis, and images."""


class Plain(nn.Module):
    """Attention of torch with projections; a mask of all pairs is added if there is one."""

    def __init__(self, width: int, mask: Tensor | None = None) -> None:
        """Draws the projections."""
        super().__init__()
        channels = HEADS * width
        self.width, self.mask = width, mask
        self.inputs = nn.Linear(channels, 3 * channels)
        self.outputs = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Attends."""
        parts = self.inputs(x.flatten(2).mT).unflatten(-1, (3, HEADS, self.width))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(query, key, value, self.mask)
        return self.outputs(y.transpose(1, 2).flatten(2)).mT.view(x.shape)


class Tokens(nn.Module):
    """A module of tokens, called with images."""

    def __init__(self, inner: nn.Module) -> None:
        """Takes the module."""
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Calls the module."""
        return self.inner(x.flatten(2).mT).mT.view(x.shape)


def contenders(width: int, size: int) -> dict[str, nn.Module]:
    """Returns what is timed, by name; plain attention first."""
    from timm.layers.pos_embed_rel import RelPosBias
    from timm.models.vision_transformer_relpos import RelPosAttention

    channels = HEADS * width

    def layer(encoding: str, impl: str = "auto", content: Content | bool = True) -> nn.Module:
        options = {"head_width": width, "content": content, "impl": impl}
        return RelativeAttention2d(
            channels, channels, num_heads=HEADS, encoding=encoding, **options
        )

    axes = [Axis(range(size), size)] * 2
    mask = displacement_scores(LearnedAxial(HEADS, 2).table(axes), axes).detach()
    timm_attention = RelPosAttention(channels, HEADS)
    timm_attention.rel_pos = RelPosBias(window_size=(size, size), num_heads=HEADS)
    alone = Content(position=False, content_bias=False)
    return {
        "plain": Plain(width),
        "one-hot channels, learned axial": layer("learned_axial"),
        "one-hot channels, quadratic": layer("quadratic"),
        "the same, without q·r": layer("quadratic", content=alone),
        "3 channels, quadratic": layer("quadratic", "quadratic"),
        "the same, without q·r, 3 channels": layer("quadratic", "quadratic", alone),
        "explicit formula, learned axial": layer("learned_axial", "reference"),
        "torch, fixed mask": Plain(width, mask[None]),
        "torch, mask that learns": Plain(width, nn.Parameter(mask[None])),
        "timm, RelPosAttention": Tokens(timm_attention),
    }


def main() -> None:
    """Prints a table of ratios."""
    parser = argparse.ArgumentParser(description="Times layers with relative positions.")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    rows: dict[str, list[str]] = {}
    for size, batch in SIZES:
        torch.manual_seed(0)
        x = torch.randn(batch, HEADS * arguments.width, size, size)
        modules = contenders(arguments.width, size)
        for training in (False, True):
            calls = {}
            for name, module in modules.items():
                calls[name] = make_call(module.train(training), x, training=training)
            times = time_rounds(calls, rounds=arguments.rounds, device=x.device)
            for name, taken in times.items():
                ratios = [own / plain for own, plain in zip(taken, times["plain"], strict=True)]
                rows.setdefault(name, []).append(f"{statistics.median(ratios):.2f}")
    print(
        f"{HEADS} heads of width {arguments.width}, {torch.get_num_threads()} threads, {arguments.rounds} rounds"
    )
    print(
        "| | "
        + " | ".join(
            f"{size} × {size}, {task}" for size, _ in SIZES for task in ("forward", "step")
        )
        + " |"
    )
    print("|---" * (1 + 2 * len(SIZES)) + "|")
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
