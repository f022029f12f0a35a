"""Times of layers on every path beside a convolution, of content beside torch's attention, and of whole networks.

The first contender of a group is its baseline. It takes turns with each other one, and a ratio is the median of the
rounds' ratios. A time is that of several calls one after the other, divided by their number, so that the device need
not wait for the program.
"""

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import extra_memory, make_call, ratios, time_rounds
from convattn import Content, LearnedAxial, RelativeAttention2d, load_recipe
from convattn.encodings import AxisAdditiveEncoding, Quadratic, create_encoding
from convattn.functional import displacement_scores, position_channels, quadratic_channels
from convattn.grid import Axis
from convattn.layers import RelativeAttention
from convattn.models import AttentionNet, resnet18
from evidence.card.rows import Stage, use_tf32
from evidence.positions.contenders import PLAIN, Plain, layer

HEADS = 9
CONVOLUTION = "nn.Conv2d, 3 × 3"
SDPA = "SDPA"
FLEX = "FlexAttention, a table that learns"

LAYERS = ((16, 400, 100), (32, 64, 128), (16, 400, 512))
"""Pixels along an axis, channels and images of the layers that are timed."""

CONTENT = (64, 32, 16)
"""Pixels along an axis of images whose content is attended to."""

_ROUNDS = 5
_SPAN = 0.01
"""Seconds that the calls of a contender take in a round, about."""
_MOST = 20
"""Most calls in a round."""
_SLOW = 0.25
"""Seconds of a call whose kernels are not counted, and which has one round."""


class Autocast(nn.Module):
    """A module under autocast to bfloat16, or as it is."""

    def __init__(self, inner: nn.Module, *, enabled: bool) -> None:
        """Takes the module."""
        super().__init__()
        self.inner, self.enabled = inner, enabled

    def forward(self, x: Tensor) -> Tensor:
        """Calls the module."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.enabled):
            return self.inner(x)


@dataclass(frozen=True)
class Contender:
    """What takes part in a group.

    Attributes:
        name: Its name.
        build: Makes the module.
        x: What it is called with, on the device.
        autocast: Whether it runs under autocast to bfloat16.
    """

    name: str
    build: Callable[[], nn.Module]
    x: Tensor
    autocast: bool = True

    def calls(self, module: nn.Module) -> dict[str, Callable[[], None]]:
        """Returns a forward pass and a training step."""
        placed = Autocast(module.to(self.x.device), enabled=self.autocast)
        with torch.no_grad():
            upstream = torch.randn_like(placed(self.x))
        return {
            "forward": make_call(placed, self.x, training=False),
            "step": make_call(placed, self.x, training=True, upstream=upstream),
        }


def run(stage: Stage) -> None:
    """Times networks, then layers and attention of content by turns, so that a stop leaves some of each."""
    use_tf32(True)
    gc.freeze()  # each time begins with a collection, which is quick if there is little to look at
    torch.backends.cudnn.benchmark = True  # so that convolutions are as fast as they can be
    for contender in networks(stage):
        measured = partial(measure, stage, contender, None)
        stage.case("network", measured, contender=contender.name, images=len(contender.x))
    of_layers, of_content = (LAYERS, CONTENT) if not stage.tiny else (((8, 16, 2),), (8,))
    for number in range(max(len(of_layers), len(of_content))):
        for sizes in of_layers[number : number + 1]:
            time_layers(stage, *sizes, autocast=True)
        for side in of_content[number : number + 1]:
            time_content(stage, side)
    time_layers(stage, *of_layers[0], autocast=False)


def time_layers(stage: Stage, side: int, channels: int, batch: int, *, autocast: bool) -> None:
    """Times layers beside a convolution; images lie channels-last."""
    setting = {
        "side": side,
        "channels": channels,
        "images": batch,
        "precision": "bfloat16 autocast" if autocast else "TF32",
    }
    x = torch.randn(batch, channels, side, side, device=stage.device)
    group(stage, "layer", layers(x, autocast=autocast), **setting)


def time_content(stage: Stage, side: int) -> None:
    """Times attention of content, between projections and by itself."""
    heads, width, tokens = (2, 8, side**2) if stage.tiny else (16, 64, 8192)
    batch = max(1, tokens // side**2)
    setting = {"side": side, "heads": heads, "width": width, "images": batch}
    x = torch.randn(batch, heads * width, side, side, device=stage.device)
    group(stage, "content", attentions(x, heads), **setting, precision="bfloat16 autocast")
    shape = (3, batch, heads, side**2, width)
    x = torch.randn(shape, device=stage.device, dtype=torch.bfloat16)
    group(stage, "kernel", kernels(x, side), **setting, precision="all bfloat16")


def group(stage: Stage, case: str, contenders: Iterator[Contender], **setting: Any) -> None:
    """Measures contenders, each beside the first; `setting` are cells of every row."""
    baseline = None
    for contender in contenders:
        measured = partial(measure, stage, contender, baseline)
        stage.case(case, measured, contender=contender.name, **setting)
        baseline = baseline or contender


def measure(stage: Stage, contender: Contender, baseline: Contender | None) -> dict[str, Any]:
    """Times a contender in turns with the baseline, counts its kernels, and measures its memory."""
    cells: dict[str, Any] = {}
    module = contender.build()
    if isinstance(module, RelativeAttention):
        plan = module.plan(contender.x.shape, dtype=contender.x.dtype)
        cells["path"] = plan.path
    beside = {} if baseline is None else baseline.calls(baseline.build())
    for word, call in contender.calls(module).items():
        seconds = _seconds(stage, call)
        if seconds < _SLOW:
            cells[f"{word}_kernels"] = count_kernels(call, on_cuda=stage.on_cuda)
        if stage.on_cuda:
            cells[f"{word}_MiB"] = (extra_memory(call, stage.device) or 0) / 2**20
        for name, value in timed(stage, call, beside.get(word), seconds).items():
            cells[f"{word}_{name}"] = value
    return cells


def timed(
    stage: Stage, call: Callable[[], None], beside: Callable[[], None] | None, seconds: float
) -> dict[str, float]:
    """Times a call in turns with that of the baseline.

    Args:
        stage: The stage.
        call: What is timed.
        beside: The baseline's, or None.
        seconds: What one call takes, about.

    Returns:
        Milliseconds of a call and, beside a baseline, the ratio of the times.
    """
    calls = {"own": call} if beside is None else {"own": call, "base": beside}
    counts = {"own": _count(seconds)}
    if beside is not None:
        counts["base"] = _count(_seconds(stage, beside))
    repeated = {name: partial(_repeat, one, counts[name]) for name, one in calls.items()}
    rounds = 1 if seconds >= _SLOW else _ROUNDS
    found = time_rounds(repeated, rounds=rounds, device=stage.device)
    times = {name: [one / counts[name] for one in own] for name, own in found.items()}
    cells = {"ms": 1000 * median(times["own"])}
    if beside is not None:
        cells["ratio"] = median(ratios(times, "base")["own"])
    return cells


def _repeat(call: Callable[[], None], count: int) -> None:
    """Calls a number of times."""
    for _ in range(count):
        call()


def _count(seconds: float) -> int:
    """Returns how many calls a round has."""
    return min(_MOST, max(1, math.ceil(_SPAN / seconds)))


def _seconds(stage: Stage, call: Callable[[], None]) -> float:
    """Returns what a call takes, about, after one that compiles and loads what it needs."""
    return time_rounds({"own": call}, rounds=1, device=stage.device)["own"][0]


class Operations(TorchDispatchMode):
    """Counts the operations inside the block."""

    def __init__(self) -> None:
        """Has counted none."""
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls an operation."""
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_kernels(call: Callable[[], None], *, on_cuda: bool) -> int:
    """Counts the kernels and copies of a call on CUDA, elsewhere its operations."""
    if not on_cuda:
        with Operations() as operations:
            call()
        return operations.count
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type == DeviceType.CUDA for event in seen.events())


def layers(x: Tensor, *, autocast: bool) -> Iterator[Contender]:
    """Yields a convolution, and layers on every path; all but one get images that lie channels-last."""
    channels, side = x.shape[1:3]
    last = x.to(memory_format=torch.channels_last)
    yield Contender(CONVOLUTION, partial(convolution, channels), last, autocast)
    for name in ("quadratic", "learned_axial", "generalized_quadratic", "distance"):
        extent = {"extent": side} if name == "learned_axial" else {}
        encoding = create_encoding(name, HEADS, 2, **extent)
        impls = ["auto", "dense", "fourier"]
        if isinstance(encoding, AxisAdditiveEncoding):
            impls = ["auto", "dense", "separable"]
        for impl in impls:
            options = {"num_heads": HEADS, "encoding": encoding, "impl": impl}
            build = partial(RelativeAttention2d, channels, channels, **options)
            yield Contender(f"{name}, {impl}", build, last, autocast)
    of_default = partial(RelativeAttention2d, channels, channels, num_heads=HEADS)
    yield Contender("quadratic, auto, torch's default layout", of_default, x, autocast)
    hard = partial(RelativeAttention2d, channels, channels, 3, padding=1, encoding="shift")
    yield Contender("shift, auto", hard, last, autocast)


def convolution(channels: int) -> nn.Module:
    """Draws a convolution whose weights lie channels-last."""
    drawn = nn.Conv2d(channels, channels, 3, padding=1)
    return drawn.to(memory_format=torch.channels_last)


def attentions(x: Tensor, heads: int) -> Iterator[Contender]:
    """Yields plain attention and layers, with projections."""
    width = x.shape[1] // heads
    yield Contender(PLAIN, partial(Plain, width, heads=heads), x)
    content = Content(key_width=width, query_bias=True, content_bias=False, position=False)
    for name, impl in (
        ("learned_axial", "auto"),
        ("quadratic", "auto"),
        ("quadratic", "quadratic"),
    ):
        build = partial(layer, width, name, impl, content, heads)
        yield Contender(f"{name}, {impl}", build, x)


class Kernel(nn.Module):
    """A kernel of attention called with queries, keys and values side by side, and what learns beside them."""

    def __init__(self, attend: Callable[..., Tensor], learns: nn.Module | None = None) -> None:
        """Takes the kernel, a function of queries, keys, values and what learns, if anything does."""
        super().__init__()
        self.attend, self.learns = attend, learns

    def forward(self, x: Tensor) -> Tensor:
        """Attends."""
        others = () if self.learns is None else (self.learns,)
        return self.attend(*x.unbind(), *others)


def kernels(x: Tensor, side: int) -> Iterator[Contender]:
    """Yields kernels alone: plain, with a mask that learns, with channels, and FlexAttention."""
    heads = x.shape[2]
    axial, quadratic = LearnedAxial(heads, 2, extent=side), Quadratic(heads, 2)
    one_hot = partial(with_channels, position_channels, side)
    three = partial(with_channels, quadratic_channels, side)
    plain = functional.scaled_dot_product_attention
    ways: dict[str, Callable[[], Kernel]] = {
        SDPA: partial(Kernel, plain),
        "learned axial, one-hot channels": partial(Kernel, one_hot, axial),
        "quadratic, three channels": partial(Kernel, three, quadratic),
        "SDPA, a mask that learns": partial(Kernel, partial(with_mask, side), axial),
    }
    if x.is_cuda:
        torch.compiler.reset()  # each size is compiled anew, and torch gives up after eight
        ways[FLEX] = partial(flex_kernel, heads, side)
    for name, build in ways.items():
        yield Contender(name, build, x, autocast=False)


def with_mask(
    side: int, query: Tensor, key: Tensor, value: Tensor, encoding: LearnedAxial
) -> Tensor:
    """Attends with a mask of all pairs, which is looked up in what learns."""
    axes = [Axis(range(side), side)] * 2
    wide = torch.promote_types(query.dtype, torch.float32)
    mask = displacement_scores(encoding.table(axes, wide, query.device), axes)
    return functional.scaled_dot_product_attention(query, key, value, mask[None].to(query.dtype))


def with_channels(
    channels_of: Callable[..., Any],
    side: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    encoding: nn.Module,
) -> Tensor:
    """Attends with scores in longer queries and keys, which are as wide as a multiple of eight."""
    scale = query.shape[-1] ** -0.5
    channels = channels_of(encoding, (side, side), query.dtype, query.device, scale=scale)
    longer = channels.append(query, key)
    missing = -longer[0].shape[-1] % 8
    query, key = (functional.pad(tensor, (0, missing)) for tensor in longer)
    wide = functional.pad(value, (0, query.shape[-1] - value.shape[-1]))
    y = functional.scaled_dot_product_attention(query, key, wide, scale=scale)
    return y[..., : value.shape[-1]]


def flex_kernel(heads: int, side: int) -> Kernel:
    """Makes FlexAttention, compiled, with a score for each displacement along each axis."""
    table = nn.ParameterList([*torch.randn(2, heads, 2 * side - 1)])
    rows, cols = table
    compiled = torch.compile(flex_attention)

    def scored(score: Tensor, _: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        along_rows = key // side - query // side + side - 1
        along_cols = key % side - query % side + side - 1
        return score + rows[head, along_rows] + cols[head, along_cols]

    def attend(query: Tensor, key: Tensor, value: Tensor, _: nn.Module) -> Tensor:
        return compiled(query, key, value, score_mod=scored)

    return Kernel(attend, table)


def networks(stage: Stage) -> Iterator[Contender]:
    """Yields the paper's network and ResNet-18, with as many images as a step of their recipes has."""
    recipe = load_recipe("sa-quadratic", scale="tiny" if stage.tiny else None)
    options = recipe.model.to_dict()
    del options["kind"]
    paper = partial(AttentionNet, **options, num_classes=10, image_size=32)
    x = torch.randn(recipe.training.batch_size, 3, 32, 32, device=stage.device)
    yield Contender("sa-quadratic", paper, x)
    if not stage.tiny:
        yield Contender("resnet18", resnet18, x.to(memory_format=torch.channels_last))
    if stage.on_cuda:
        yield Contender("sa-quadratic, compiled", partial(compiled, paper), x)


def compiled(build: Callable[[], nn.Module]) -> nn.Module:
    """Builds a module and compiles it."""
    module = build()
    module.compile()
    return module
