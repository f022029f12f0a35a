"""Which heads of a report are replaced, by what, and the kernels that replace them."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite, isnan, prod
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a, require_name
from convattn.functional.convolution import convolve
from convattn.heads.catalogue import attention_class, is_own
from convattn.heads.fixed_attention import DisplacedHeads
from convattn.heads.head_report import HeadReport, HeadStatistics, LayerReport
from convattn.wording import ITSELF

Head: TypeAlias = tuple[str, int]
"""A head: the name of its layer, and its number there."""

Arm: TypeAlias = str | Head
"""What replaces a head: a name of `ARMS`, or the head whose kernel it takes."""

_TURNS: dict[tuple[str, int], Callable[..., tuple[float, ...]]] = {
    ("turned_90", 2): lambda row, col: (-col, row),
    ("turned_180", 2): lambda row, col: (-row, -col),
    ("turned_270", 2): lambda row, col: (col, -row),
    ("reversed", 1): lambda step: (-step,),
}
"""Where a weight was before its kernel was turned, clockwise as an image is seen, by the name and number of axes."""

_TURNED = [name for name, _ in _TURNS]

WITHOUT_KERNEL = ("mean_map", "zero", "uniform")
"""Replacements of a head that need no kernel of displacements."""

ARMS = ("kernel", *WITHOUT_KERNEL, "one_tap", *_TURNED)
"""Names of what can replace a head."""

LEAST_SHARE = 0.95
"""Share of its attention on positions that a head's kernel must hold; with less, the report's radius is too small."""


def every_head(report: HeadReport) -> list[Head]:
    """Lists the heads of a report: pairs of a layer's name and the number of a head."""
    heads = []
    for layer in report.layers:
        heads += [(layer.name, head.head) for head in layer.heads]
    return heads


def read_arms(report: HeadReport, heads: Any, by: Any) -> dict[Head, Arm]:
    """Returns what replaces each head that may be replaced; raises if the caller names what is not there.

    Heads that are not named are those of the report.
    """
    known = every_head(report)
    each = f"pairs of a layer's name and the number of a head of the report, as {known[0]}"
    if isinstance(by, Mapping):
        if heads is not None:
            raise ArgumentError("heads must be None where `by` names the head that each replaces")
        heads = list(by)
    elif heads is not None and not isinstance(heads, Collection):
        raise ArgumentError(must_be_a("heads", "pairs of a layer's name and a number", heads))
    arms: dict[Head, Arm] = {}
    for head in known if heads is None else heads:
        if head not in known:
            raise ArgumentError(must_be("heads", each, head))
        if head in arms:
            raise ArgumentError(f"heads must name each head once, but names {head} twice")
        arm = by[head] if isinstance(by, Mapping) else by
        if isinstance(arm, str):
            require_name("replacement", arm, ARMS)
        elif arm not in known:
            raise ArgumentError(must_be("by", f"one of {', '.join(ARMS)}, or {each}", arm))
        else:
            arm = known[known.index(arm)]  # its number may be a float
        arms[head] = arm
    return arms


def random_heads(report: HeadReport, heads: Collection[Head], *, seed: int = 0) -> tuple[Head, ...]:
    """Draws as many other heads of the same layers at random, as a control for `replace_heads`.

    Heads of other layers would be no control: layers differ in what replacing a head of them does.

    Args:
        report: The report.
        heads: Pairs of a layer's name and the number of a head, for which others are drawn.
        seed: Seed, a whole number that torch takes.

    Returns:
        Pairs of a layer's name and the number of a head, to be given as `heads`.

    Raises:
        ArgumentError: `heads` are not in the report, or are more than half of those of a layer.

    Example:
        >>> from convattn import RelativeAttention2d, analyze
        >>> layer = RelativeAttention2d(3, 8, num_heads=4, encoding="quadratic")
        >>> report = analyze(layer, torch.randn(4, 3, 8, 8), controls=(), progress=False)
        >>> len(random_heads(report, [("", 0), ("", 2)], seed=1))
        2
    """
    named = {*read_arms(report, list(heads), "zero")}
    generator = torch.Generator().manual_seed(seed)
    drawn: list[Head] = []
    for layer in report.layers:
        own = [(layer.name, head.head) for head in layer.heads]
        others = [head for head in own if head not in named]
        count = len(own) - len(others)
        if count > len(others):
            most = f"at most half of those of {layer.name or ITSELF}, of which as many others are drawn"
            raise ArgumentError(must_be("heads", most, f"{count} of {len(own)}"))
        order = torch.randperm(len(others), generator=generator, device="cpu")
        drawn += [others[at] for at in sorted(order[:count].tolist())]
    return tuple(drawn)


def require_known(module: nn.Module) -> None:
    """Raises UnsupportedModelError, with the reason alone, unless heads of a module can be replaced."""
    if is_own(module):
        raise UnsupportedModelError(
            "heads of this library's layers are not replaced; attention_to_conv converts those without content"
        )
    known = attention_class(type(module))
    if known is None or known.layout is None:
        raise UnsupportedModelError(
            "its class is not known; register_attention says where its tokens lie"
        )


def kernel_by(
    report: HeadReport, layer: LayerReport, number: int, arm: Arm
) -> tuple[float, ...] | None:
    """Returns the weights at the layer's displacements by which a head is replaced; None if it takes no kernel.

    Raises UnsupportedModelError, with the reason alone, if there are none.
    """
    if arm in WITHOUT_KERNEL:
        return None
    if not layer.normalised:
        raise UnsupportedModelError("its layer's weights do not sum to one")
    displacements = torch.tensor(layer.displacements, dtype=torch.float64)
    if not torch.equal(displacements, displacements.round()):
        raise UnsupportedModelError("its keys lie between the positions")
    axes = len(layer.grid)
    if arm in _TURNED and (arm, axes) not in _TURNS:
        raise UnsupportedModelError(
            "a kernel of one axis is only reversed, and one of two axes only turned"
        )
    before = _TURNS.get((str(arm), axes), lambda *step: step)
    name, head = (layer.name, number) if isinstance(arm, str) else arm
    source = report.layer(name)
    if len(source.grid) != axes:
        raise UnsupportedModelError(
            f"the kernel of {name} has {len(source.grid)} axes, where its layer's has {axes}"
        )
    told = source.heads[head]
    kernel: Sequence[float] = told.position_kernel
    if arm == "one_tap":
        kernel = [float(step == told.hard_shift) for step in layer.displacements]
    complete = len(kernel) == len(source.displacements) and isfinite(sum(kernel))
    if not complete or min(kernel, default=-1) < 0:
        raise UnsupportedModelError("the report holds no kernel of weights for it")
    taps = dict(zip(source.displacements, kernel, strict=True))
    moved = tuple(taps.get(before(*step), 0.0) for step in layer.displacements)
    if sum(moved) <= 0:
        raise UnsupportedModelError(
            "its kernel holds no weight: all of its attention is on prefix tokens, or beyond the report's radius"
        )
    return moved


def below(head: HeadStatistics, threshold: float) -> str:
    """Returns why a head's numbers do not make it a convolution; empty if they do, or if the threshold is nan."""
    if isnan(threshold):
        return ""
    score = head.position_score.value
    if isnan(score):
        return "its position score is not known: its weights do not vary, or it was measured on one image"
    if score < threshold:
        return "its position score is below the threshold"
    if not head.kernel_share.value >= LEAST_SHARE:
        return f"the report's radius holds less than {LEAST_SHARE:.0%} of its attention"
    return ""


_CUT = 2.0**-23
"""Share of a query's weights that may lie outside the box to which kernels are cut: what float32 rounds away."""


_Box: TypeAlias = tuple[slice, ...]
"""Taps of a kernel along each axis, of which the middle one is displacement 0."""


def measured_heads(
    layer: LayerReport, kernels_of_heads: Mapping[int, Sequence[float]], *, whole: bool = False
) -> DisplacedHeads:
    """Puts the kernels of some heads into one box, the smallest on the grid, with what prefix tokens get."""
    heads = tuple(kernels_of_heads)
    kernels = _whole_kernels(layer, [*kernels_of_heads.values()])
    radius = kernels.shape[1] // 2
    box: _Box = (slice(0, None),) * len(layer.grid)
    if not whole:
        box = _smallest_box(kernels, layer.grid)
    kernel = kernels[:, *box]
    totals = kernel.flatten(1).sum(1)
    kernel = kernel / totals.view(-1, *(1,) * len(layer.grid))
    statistics = [layer.heads[head] for head in heads]
    shares = torch.tensor([head.prefix_weights for head in statistics], dtype=torch.float64)
    maps = torch.tensor([head.prefix_maps for head in statistics], dtype=torch.float64)
    if not layer.prefix:
        maps = maps.view(len(heads), 0, prod(layer.grid))
    return DisplacedHeads(
        heads=heads,
        kernel=kernel,
        first=tuple(side.start - radius for side in box),
        prefix_shares=shares,
        prefix_maps=maps / maps.sum(-1, keepdim=True),
    )


def _whole_kernels(
    layer: LayerReport, rows: Sequence[Sequence[float]]
) -> Float[Tensor, "heads *whole"]:
    """Returns kernels of sum 1, in a box as far to all sides as the report's displacements."""
    displacements = torch.tensor(layer.displacements, dtype=torch.float64).round().long()
    radius = int(displacements.abs().max())
    places = (displacements + radius).unbind(1)
    weights = torch.tensor(rows, dtype=torch.float64)
    kernels = weights.new_zeros(len(rows), *(2 * radius + 1,) * len(layer.grid))
    kernels[:, *places] = weights / weights.sum(1, keepdim=True)
    return kernels


def _without_a_side(kernels: Float[Tensor, "heads *whole"], box: _Box) -> _Box | None:
    """Cuts off the side of a box that weighs least; None if only displacement 0 is left."""
    middle = kernels.shape[1] // 2
    inside = kernels[:, *box]
    sides = []
    for axis, taps in enumerate(box):
        without_first = slice(taps.start + 1, taps.stop)
        without_last = slice(taps.start, taps.stop - 1)
        for end, rest in ((0, without_first), (-1, without_last)):
            if rest.start <= middle < rest.stop:
                weight = inside.select(axis + 1, end).sum()
                sides.append((weight.item(), (*box[:axis], rest, *box[axis + 1 :])))
    _, smaller = min(sides, key=itemgetter(0), default=(0.0, None))
    return smaller


def _smallest_box(kernels: Float[Tensor, "heads *whole"], grid: tuple[int, ...]) -> _Box:
    """Cuts sides off the kernels, the lightest first, until more than `_CUT` of a query's weights would be outside."""
    axes = len(grid)
    radius = kernels.shape[1] // 2
    ones = torch.ones(1, 1, *grid, dtype=kernels.dtype)
    steps = (1,) * axes

    def seen(kernels: Tensor) -> Tensor:
        return convolve(ones, kernels[:, None], None, steps, (radius,) * axes, steps, 1)

    spare = _CUT * seen(kernels)

    def cuts_too_much(box: _Box) -> bool:
        outside = kernels.clone()
        outside[:, *box] = 0
        return bool((seen(outside) > spare).any())

    boxes: list[_Box] = []
    box: _Box | None = (slice(0, 2 * radius + 1),) * axes
    while box is not None:
        boxes.append(box)
        box = _without_a_side(kernels, box)
    return boxes[bisect_left(boxes, True, key=cuts_too_much) - 1]
