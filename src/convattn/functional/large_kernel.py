"""Convolutions with large kernels on a CPU: torch's own in the better layout, or fast Fourier transforms.

In torch's default layout a depthwise convolution leaves the fast code of the backend where more than six columns are
padded (four without AVX-512), and then takes 20 to 100 times as long; so do gradients of weights. The paths::

    default         torch's convolution in the default layout
    channels-last   the same with channels innermost in memory
    overlap-add     transforms of blocks, which overlap by the kernel
    fft             one transform of the whole image

`plan_convolution` chooses for the result and each gradient apart, from sizes, dtype and layout alone: nothing is
measured or kept. A transform spreads what is not finite over its channel: torch computes such a result again.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from einops import einsum
from jaxtyping import Complex, Float
from torch import Tensor
from torch.nn import functional

from convattn.functional.reference import dilate
from convattn.functional.torch_modes import backward_to_differentiate as differentiable
from convattn.functional.torch_modes import needs_own_operations, product_dtype, without_autocast

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
_CHUNK = 1 << 22  # bytes of transforms at a time, so that they stay in the cache


class Speed(NamedTuple):
    """What a multiplication and an addition take on one core, in nanoseconds; only their ratios decide."""

    padded: (
        int  # columns of padding up to which depthwise convolutions in the default layout are fast
    )
    depthwise: float
    turned: float  # torch's gradient of the images of a depthwise convolution
    weights: float  # gradient of a depthwise kernel, as a convolution
    dense: float  # with 16 channels or more in a group
    wide_weights: float  # gradient of a dense kernel with `_WIDE` columns or more


_AVX512, _OTHER = (
    Speed(6, 0.015, 0.022, 0.036, 0.008, 0.03),
    Speed(4, 0.043, 0.043, 0.13, 0.018, 0.06),
)
_SLOW = 30  # how many times longer a depthwise convolution takes off the fast code
_NARROW = 4  # how many times longer gradients take than the convolution, with less than 8 channels in a group
_WIDE = 14  # columns of a kernel from which the backend's gradients of weights are slow
_DOUBLE, _DOUBLE_NARROW = (
    0.06,
    0.3,
)  # nanoseconds in float64, which torch unfolds: 16 channels in a group, and one
_TRANSFORM = {
    torch.float32: 0.12,
    torch.float64: 0.22,
}  # nanoseconds of a transform of n numbers, over n log₂ n
_UNCACHED = 1 << 16  # numbers from which a transform leaves the cache, and takes twice as long
_START, _CALL = (
    6.0,
    1e5,
)  # nanoseconds to prepare a transform, for each number; of the operations around transforms
_MIX, _COPY = (
    1.0,
    0.8,
)  # nanoseconds of a complex product and its sum over channels; of a number in another layout
_FEW = 81  # taps up to which torch's depthwise convolution is the fastest
_GAIN = 0.75  # share of torch's time below which transforms are taken: both estimates may be 1 to 4 times too low


@dataclass(frozen=True)
class Sizes:
    """The sizes of one convolution."""

    batch: int
    channels: int
    outputs: int
    groups: int
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # zeros on each side
    dilation: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool = False  # whether the images or the kernel have channels innermost
    direct: bool = False  # whether no transforms are taken

    @property
    def extent(self) -> tuple[int, ...]:
        """Pixels that a kernel spans along each axis."""
        return tuple(
            step * (taps - 1) + 1 for taps, step in zip(self.kernel, self.dilation, strict=True)
        )

    @property
    def dense(self) -> tuple[int, ...]:
        """Outputs along each axis if the stride were one."""
        return tuple(
            n + 2 * p - s + 1 for n, p, s in zip(self.image, self.padding, self.extent, strict=True)
        )

    @property
    def result(self) -> tuple[int, ...]:
        """Outputs along each axis."""
        return tuple((n - 1) // step + 1 for n, step in zip(self.dense, self.stride, strict=True))

    @property
    def depthwise(self) -> bool:
        """Whether there are several channels, each with a kernel of its own."""
        return self.channels == self.outputs == self.groups > 1

    @property
    def width(self) -> int:
        """Channels of a group on the side that has more."""
        return max(self.channels, self.outputs) // self.groups

    @property
    def products(self) -> int:
        """Multiplications of the convolution."""
        return (
            self.batch
            * self.outputs
            * math.prod((*self.result, self.channels // self.groups, *self.kernel))
        )

    @property
    def inside(self) -> float:
        """Share of the multiplications that meet the image, at a stride of one; the others meet padding."""
        share = 1.0
        for n, pad, taps, step in zip(
            self.dense, self.padding, self.kernel, self.dilation, strict=True
        ):
            near = min(
                n, max(0, pad)
            )  # taps that look past one end for some outputs; farther ones do for all
            share *= 1 - 2 * (near * (near + step) / (2 * step) + max(0, pad - n) // step * n) / (
                n * taps
            )
        return share

    def backwards(self) -> "Sizes":
        """Returns the convolution of upstream gradients, spread by the stride, that the gradient of images is."""
        padding = tuple(span - 1 - pad for span, pad in zip(self.extent, self.padding, strict=True))
        channels, stride = (
            {"channels": self.outputs, "outputs": self.channels},
            (1,) * len(self.image),
        )
        return replace(self, **channels, image=self.dense, stride=stride, padding=padding)


class Block(NamedTuple):
    """How an axis is transformed."""

    length: int
    step: int  # outputs of a block
    blocks: int  # of one, all outputs come from the whole axis


@dataclass(frozen=True)
class Choice:
    """How the result, or a gradient, is computed."""

    path: str  # "default", "channels-last", "overlap-add" or "fft"
    reason: str
    nanoseconds: float  # estimate for one core; only ratios are meant
    blocks: tuple[Block, ...] = ()  # how each axis is transformed; none without transforms
    as_convolution: bool = (
        False  # whether a gradient without transforms is computed as a convolution
    )

    @property
    def by_torch(self) -> bool:
        """Whether a gradient is torch's own."""
        return not self.blocks and not self.as_convolution


@dataclass(frozen=True)
class ConvolutionPlan:
    """How a convolution and its gradients are computed."""

    forward: Choice  # the result
    input_gradient: Choice  # the gradient of the images
    weight_gradient: Choice  # the gradient of the kernel


def plan_convolution(sizes: Sizes) -> ConvolutionPlan:
    """Chooses how a convolution of these sizes and its gradients are computed on a CPU."""
    return ConvolutionPlan(
        _plan_result(sizes), _plan_input_gradient(sizes), _plan_weight_gradient(sizes)
    )


def _plan_result(sizes: Sizes) -> Choice:
    return _with_transforms(sizes, _unfolded(sizes) or _layout(sizes, _speed()))


def _plan_input_gradient(sizes: Sizes) -> Choice:
    back, direct = sizes.backwards(), _unfolded(sizes) or _input_layout(sizes, _speed())
    return (
        _with_transforms(back, direct) if min(back.padding) >= 0 else direct
    )  # no more padding than kernel


def _plan_weight_gradient(sizes: Sizes) -> Choice:
    return _with_transforms(
        sizes, _unfolded(sizes) or _weight_layout(sizes, _speed()), of_weights=True
    )


def _speed() -> Speed:
    return _AVX512 if torch.backends.cpu.get_cpu_capability() == "AVX512" else _OTHER


def _unfolded(sizes: Sizes) -> Choice | None:
    """Returns how torch computes in float64, the same for the result and gradients; None for other dtypes."""
    if sizes.dtype != torch.float64:
        return None
    path = "channels-last" if sizes.channels_last and sizes.groups == 1 else "default"
    return Choice(path, "torch unfolds images in float64", _direct(sizes, _speed()))


def _direct(
    sizes: Sizes, speed: Speed, depthwise: float | None = None, *, gradient: bool = False
) -> float:
    """Estimates the nanoseconds of torch's fast code; the least that it may take, where that varies."""
    if sizes.dtype == torch.float64:
        return sizes.products * min(_DOUBLE_NARROW, _DOUBLE * 16 / min(16, sizes.width))
    if sizes.depthwise:
        return sizes.products * sizes.inside * (depthwise or speed.depthwise)
    narrow = _NARROW if gradient and sizes.width < 8 else 1
    return sizes.products * narrow * speed.dense * 16 / min(16, sizes.width)


def _copies(sizes: Sizes) -> float:
    """Estimates the nanoseconds of putting images and results in the other layout."""
    return (
        sizes.batch
        * _COPY
        * (sizes.channels * math.prod(sizes.image) + sizes.outputs * math.prod(sizes.result))
    )


def _layout(sizes: Sizes, speed: Speed) -> Choice:
    """Chooses the layout of torch's convolution."""
    time, volume = _direct(sizes, speed), len(sizes.image) == 3
    if sizes.channels_last:
        return Choice("channels-last", "the layout given is fast", time)
    wide = sizes.padding[-1] > speed.padded and not volume
    slow = time * (_SLOW if sizes.depthwise else 2)
    mixed = min(sizes.channels, sizes.outputs) >= 8 * sizes.groups
    if volume and mixed and sizes.kernel[-1] >= 7:
        return Choice(
            "channels-last",
            "torch's default layout is slow for such volumes",
            time + _copies(sizes),
        )
    if wide and (sizes.depthwise or mixed) and time + _copies(sizes) < slow:
        reason = f"torch's default layout is slow where more than {speed.padded} columns are padded"
        return Choice("channels-last", reason, time + _copies(sizes))
    return Choice(
        "default", "torch's default layout is fast", slow if wide and sizes.depthwise else time
    )


def _input_layout(sizes: Sizes, speed: Speed) -> Choice:
    """Chooses how torch computes the gradient of the images."""
    back, given = sizes.backwards(), "channels-last" if sizes.channels_last else "default"
    if set(sizes.stride) != {1} or min(back.padding) < 0:
        return Choice(given, "torch's gradient", _direct(sizes, speed, speed.turned, gradient=True))
    if not sizes.depthwise:
        choice = _layout(back, speed)
        least, turned = _direct(back, speed, gradient=True), choice.path != given
        return replace(choice, nanoseconds=max(choice.nanoseconds, least), as_convolution=turned)
    if len(sizes.image) == 3:
        return Choice(
            given,
            "a convolution with the kernel turned round",
            _direct(back, speed),
            as_convolution=True,
        )
    other, copied = _direct(back, speed, speed.turned), 0 if sizes.channels_last else _copies(back)
    if _direct(back, speed) + copied < other:
        reason = "a convolution with the kernel turned round, whose fast code is channels-last"
        return Choice("channels-last", reason, _direct(back, speed) + copied, as_convolution=True)
    return Choice(given, "torch's gradient is fast in the layout given", other)


def _weight_layout(sizes: Sizes, speed: Speed) -> Choice:
    """Chooses how torch computes the gradient of the kernel."""
    time = _direct(sizes, speed, speed.weights, gradient=True)
    large = max(sizes.kernel) >= 5 or len(sizes.kernel) == 3
    if sizes.depthwise and large and set(sizes.stride) == set(sizes.dilation) == {1}:
        reason = "a convolution of the images with upstream gradients as its kernel"
        return Choice("channels-last", reason, time + _copies(sizes), as_convolution=True)
    if sizes.depthwise or sizes.kernel[-1] < _WIDE:
        volume = len(sizes.kernel) == 3 and not sizes.depthwise
        return Choice(
            "channels-last" if sizes.channels_last or volume else "default",
            "torch's gradient",
            time,
        )
    reason = f"from {_WIDE} columns on torch's channels-last layout is the slower one"
    return Choice(
        "default", reason, max(time, _direct(sizes, speed) * speed.wide_weights / speed.dense)
    )


def _with_transforms(sizes: Sizes, direct: Choice, *, of_weights: bool = False) -> Choice:
    """Takes transforms in place of torch's convolution where they are estimated to be clearly faster."""
    numbers = sizes.batch * min(sizes.channels, sizes.outputs) * math.prod(sizes.image)
    if sizes.direct or direct.nanoseconds < _CALL + numbers:
        return direct  # not worth a look
    time, blocks = min(
        (_transform_time(sizes, blocks, of_weights=of_weights), blocks) for blocks in _cuts(sizes)
    )
    if time >= _GAIN * direct.nanoseconds:
        return direct
    path = "fft" if all(block.blocks == 1 for block in blocks) else "overlap-add"
    ratio = (
        f"{direct.nanoseconds / time:.2g} times as fast as torch's {direct.path} layout by estimate"
    )
    return Choice(path, ratio, time, blocks)


def _cuts(sizes: Sizes) -> Iterator[tuple[Block, ...]]:
    """Yields the ways of cutting that are looked at: none, and blocks of 2, 4 or 8 times the kernel."""
    axes = zip(sizes.image, sizes.padding, sizes.extent, sizes.dense, strict=True)
    whole = tuple(
        Block(_quick(max(n + pad, span, least)), least, 1) for n, pad, span, least in axes
    )
    yield whole
    for factor in (2, 4, 8):
        cut = []
        for block, span, outputs in zip(whole, sizes.extent, sizes.dense, strict=True):
            length = 1 << max(5, (factor * span - 1).bit_length())
            step = length - span + 1
            cut.append(
                Block(length, step, -(-outputs // step)) if 2 * length <= block.length else block
            )
        if cut != list(whole):
            yield tuple(cut)


def _quick(least: int) -> int:
    """Returns the smallest even length ≥ `least` that is a power of two, or 3 or 9 times one: these are fastest."""
    return min(odd << max(1, (-(-least // odd) - 1).bit_length()) for odd in (1, 3, 9))


def _transform_time(sizes: Sizes, blocks: Sequence[Block], *, of_weights: bool) -> float:
    """Estimates the nanoseconds of transforms, their products and transforms back."""
    numbers, count = (
        math.prod(block.length for block in blocks),
        math.prod(block.blocks for block in blocks),
    )
    images, kernels = (
        sizes.batch * (sizes.channels + sizes.outputs) * count,
        sizes.outputs * sizes.channels,
    )
    kernels //= sizes.groups
    one = (
        numbers * math.log2(numbers) * _TRANSFORM[sizes.dtype] * (2 if numbers >= _UNCACHED else 1)
    )
    copied = 0 if count == 1 else images * numbers * _COPY
    mixed = 0 if sizes.width == 1 else sizes.batch * kernels * count * numbers / 2 * _MIX
    return (
        (images + kernels) * one
        + mixed * (2 if of_weights else 1)
        + copied
        + 3 * _START * numbers
        + _CALL
    )


def sizes_of(x: Tensor, kernel: Tensor, geometry: Sequence[Sequence[int]], groups: int) -> Sizes:
    """Returns the sizes of a call; `geometry` is stride, padding and dilation along each axis."""
    last = any(
        t.ndim > 3 and not t.is_contiguous() and t.movedim(1, -1).is_contiguous()
        for t in (x, kernel)
    )
    stride, padding, dilation = (tuple(along) for along in geometry)
    shape = (tuple(x.shape[2:]), tuple(kernel.shape[2:]), stride, padding, dilation)
    return Sizes(len(x), x.shape[1], len(kernel), groups, *shape, dtype=x.dtype, channels_last=last)


def convolve_large(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    geometry: Sequence[Sequence[int]],
    groups: int,
    direct: bool = False,
) -> Float[Tensor, "batch outputs *queries"]:
    """Computes a convolution by the plan; `geometry` is stride, padding and dilation along each axis.

    On other devices than a CPU, in other dtypes than float32 and float64, in compiled graphs, in `torch.func` and for
    derivatives above the first torch computes it. The output has the layout of torch's. `direct` takes no transforms,
    which lose results that are small beside others.
    """
    learns = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, kernel, bias)
    )
    stride, padding, dilation = map(tuple, geometry)
    if not learns and few_taps(kernel, padding[-1], groups):  # a plan takes 0.1 ms
        return _CONVOLUTIONS[kernel.ndim - 2](x, kernel, bias, stride, padding, dilation, groups)
    sizes = replace(sizes_of(x, kernel, geometry, groups), direct=direct)
    if not _is_own(x, kernel, bias, sizes):
        return _by_torch(sizes, x, kernel, bias)
    if not learns:
        return _forward(x, kernel, bias, sizes, _plan_result(sizes))
    plan, given = plan_convolution(sizes), "channels-last" if sizes.channels_last else "default"
    if all(choice.by_torch and choice.path == given for choice in vars(plan).values()):
        return _by_torch(sizes, x, kernel, bias)
    return cast(Tensor, _Convolution.apply(x, kernel, bias, sizes, plan))


def few_taps(kernel: Tensor, columns: int, groups: int) -> bool:
    """Tells whether every plan leaves the result of a depthwise convolution that pads so many columns to torch."""
    depthwise = len(kernel) == groups > 1 == kernel.shape[1] and kernel.dtype == torch.float32
    return depthwise and math.prod(kernel.shape[2:]) <= _FEW and columns <= _OTHER.padded


def _is_own(x: Tensor, kernel: Tensor, bias: Tensor | None, sizes: Sizes) -> bool:
    """Tells whether the plan applies to a call; whatever torch would refuse is left to torch."""
    given = [t for t in (x, kernel, bias) if t is not None]
    if (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or needs_own_operations(*given)
    ):
        return False
    plain = all(type(t) in (Tensor, torch.nn.Parameter) and t.device.type == "cpu" for t in given)
    if (
        not plain
        or x.dtype not in _TRANSFORM
        or {t.dtype for t in given} != {x.dtype}
        or product_dtype(x) != x.dtype
    ):
        return False
    return min(x.numel(), kernel.numel(), *sizes.dense) > 0


def _by_torch(sizes: Sizes, x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes by torch in the layout given."""
    geometry = (sizes.stride, sizes.padding, sizes.dilation, sizes.groups)
    return _CONVOLUTIONS[len(geometry[0])](x, kernel, bias, *geometry)


class _Convolution(torch.autograd.Function):
    """A convolution whose result and gradients follow a plan."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, sizes: Sizes, plan: Any
    ) -> Tensor:
        ctx.save_for_backward(x, kernel, bias)
        ctx.sizes, ctx.plan = sizes, plan
        return _forward(x, kernel, bias, sizes, plan.forward)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, kernel, bias = ctx.saved_tensors
        sizes, plan, wanted = ctx.sizes, ctx.plan, ctx.needs_input_grad
        if torch.is_grad_enabled() or needs_own_operations(gradient):
            inputs = (x, kernel) if bias is None else (x, kernel, bias)
            found = differentiable(
                partial(_by_torch, sizes), inputs, wanted[: len(inputs)], gradient
            )
            return *found, *[None] * (5 - len(found))
        with without_autocast(x.device):
            by_input = plan.input_gradient if wanted[0] else None
            by_weight = plan.weight_gradient if wanted[1] else None
            if (
                by_input
                and by_weight
                and by_input.by_torch
                and by_weight.by_torch
                and by_input.path == by_weight.path
            ):
                by_x, by_kernel = _gradients_by_torch(
                    gradient, x, kernel, sizes, by_input.path, (True, True)
                )
            else:
                by_x = _input_gradient(gradient, x, kernel, sizes, by_input) if by_input else None
                by_kernel = (
                    _weight_gradient(gradient, x, kernel, sizes, by_weight) if by_weight else None
                )
        by_bias = gradient.sum((0, *range(2, gradient.ndim))) if wanted[2] else None
        return by_x, by_kernel, by_bias, None, None


def _forward(
    x: Tensor, kernel: Tensor, bias: Tensor | None, sizes: Sizes, choice: Choice
) -> Tensor:
    """Computes the result as chosen."""
    if not choice.blocks:
        return _in_layout(x, kernel, bias, sizes, choice.path).contiguous(
            memory_format=_format(sizes)
        )
    y = _correlate(x, kernel, sizes, choice.blocks)
    for image in _not_finite(y):
        y[image] = _in_layout(
            x[image], kernel, None, sizes, "channels-last" if sizes.depthwise else "default"
        )
    return y if bias is None else y.add_(bias.view(-1, *(1,) * len(sizes.image)))


def _not_finite(y: Tensor) -> list[slice]:
    """Returns the images that hold a number that is not finite."""
    bad = (
        () if y.sum().isfinite() else (~y.flatten(1).isfinite().all(1)).nonzero().flatten().tolist()
    )
    return [slice(image, image + 1) for image in bad]


def _format(sizes: Sizes) -> torch.memory_format:
    """Returns the layout that torch would give a result."""
    return _CHANNELS_LAST[len(sizes.image)] if sizes.channels_last else torch.contiguous_format


def _in_layout(x: Tensor, kernel: Tensor, bias: Tensor | None, sizes: Sizes, layout: str) -> Tensor:
    """Computes by torch in one of its layouts, in which the result stays; sequences become images of one row."""
    if layout == "default":
        return _by_torch(sizes, x.contiguous(), kernel.contiguous(), bias)
    line = x.ndim == 3
    if line:
        x, kernel = x[:, :, None], kernel[:, :, None]
        geometry = {
            "stride": (1, *sizes.stride),
            "padding": (0, *sizes.padding),
            "dilation": (1, *sizes.dilation),
        }
        sizes = replace(sizes, image=(1, *sizes.image), **geometry)
    x, kernel = (t.contiguous(memory_format=_CHANNELS_LAST[t.ndim - 2]) for t in (x, kernel))
    y = _by_torch(sizes, x, kernel, bias)
    return y[:, :, 0] if line else y


def _input_gradient(
    gradient: Tensor, x: Tensor, kernel: Tensor, sizes: Sizes, choice: Choice
) -> Tensor:
    """Computes the gradient of the images: a convolution of upstream gradients with the kernel turned round."""
    if choice.by_torch:
        return _gradients_by_torch(gradient, x, kernel, sizes, choice.path, (True, False))[0]
    back = sizes.backwards()
    turned = (
        kernel.unflatten(0, (sizes.groups, -1))
        .transpose(1, 2)
        .flatten(0, 1)
        .flip(*range(2, kernel.ndim))
    )
    if choice.as_convolution:
        return _in_layout(gradient, turned, None, back, choice.path).contiguous(
            memory_format=_format(sizes)
        )
    found = _correlate(dilate(gradient, sizes.stride), turned, back, choice.blocks)
    for image in _not_finite(found):
        found[image] = _gradients_by_torch(
            gradient[image], x[image], kernel, sizes, "default", (True, False)
        )[0]
    return found


def _weight_gradient(
    gradient: Tensor, x: Tensor, kernel: Tensor, sizes: Sizes, choice: Choice
) -> Tensor:
    """Computes the gradient of the kernel: a convolution of the images with upstream gradients."""
    if choice.blocks:
        found = _correlate_images(gradient, x, sizes, choice.blocks)
        if found.sum().isfinite():
            return found
        return _gradients_by_torch(gradient, x, kernel, sizes, "default", (False, True))[0]
    if choice.by_torch:
        return _gradients_by_torch(gradient, x, kernel, sizes, choice.path, (False, True))[0]
    every = sizes.batch * sizes.channels
    images, upstream = x.reshape(1, every, *sizes.image), gradient.reshape(every, 1, *sizes.result)
    found = _in_layout(images, upstream, None, replace(sizes, groups=every), choice.path)
    return found.reshape(sizes.batch, sizes.channels, 1, *sizes.kernel).sum(0)


def _gradients_by_torch(
    gradient: Tensor,
    x: Tensor,
    kernel: Tensor,
    sizes: Sizes,
    layout: str,
    wanted: tuple[bool, bool],
) -> list[Tensor]:
    """Computes torch's gradients of the images and of the kernel in one of its layouts; lists those that are wanted."""
    dims = len(sizes.image)
    form = _CHANNELS_LAST[dims] if layout == "channels-last" else torch.contiguous_format
    given = [t.contiguous(memory_format=form) for t in (gradient, x, kernel)]
    geometry = (sizes.stride, sizes.padding, sizes.dilation, False, [0] * dims, sizes.groups)
    found = torch.ops.aten.convolution_backward(*given, None, *geometry, [*wanted, False])
    return [
        found[place].contiguous(memory_format=_format(sizes)) for place in range(2) if wanted[place]
    ]


def _parts(sizes: Sizes, blocks: Sequence[Block]) -> Iterator[tuple[slice, slice, list[slice]]]:
    """Yields groups, outputs of a group, and batches of images, whose transforms are computed together."""
    numbers = 2 * math.prod(block.length * block.blocks for block in blocks) * sizes.dtype.itemsize
    inputs, outputs = sizes.channels // sizes.groups, sizes.outputs // sizes.groups
    groups = min(sizes.groups, max(1, _CHUNK // (numbers * max(inputs, outputs))))
    some = outputs if groups > 1 else max(1, 8 * _CHUNK // (numbers * inputs))
    images = max(1, _CHUNK // (numbers * groups * max(inputs, min(some, outputs))))
    batches = [slice(image, image + images) for image in range(0, sizes.batch, images)]
    for group in range(0, sizes.groups, groups):
        for output in range(0, outputs, some):
            yield slice(group, group + groups), slice(output, output + some), batches


def _correlate(x: Tensor, kernel: Tensor, sizes: Sizes, blocks: Sequence[Block]) -> Tensor:
    """Computes a convolution by transforms: the transform of each piece times the conjugate one of the kernel."""
    shape, kind = (
        (sizes.batch, sizes.outputs, *sizes.result),
        {"dtype": x.dtype, "device": x.device},
    )
    y = torch.empty(shape, memory_format=_format(sizes), **kind)
    grouped, kernels = x.unflatten(1, (sizes.groups, -1)), kernel.unflatten(0, (sizes.groups, -1))
    of_groups = y.unflatten(1, (sizes.groups, -1))
    for groups, outputs, batches in _parts(sizes, blocks):
        factors = (
            _of_kernel(kernels[groups, outputs], sizes, blocks).conj().resolve_conj()[:, :, :, None]
        )
        for images in batches:
            pieces = _windows(grouped[images, groups], sizes, blocks)[:, :, None]
            mixed = pieces[:, :, :, 0] * factors[:, :, 0]
            for channel in range(1, factors.shape[2]):
                mixed.addcmul_(pieces[:, :, :, channel], factors[:, :, channel])
            of_groups[images, groups, outputs] = _joined(mixed, sizes, blocks)
    return y


def _correlate_images(gradient: Tensor, x: Tensor, sizes: Sizes, blocks: Sequence[Block]) -> Tensor:
    """Computes the gradient of the kernel by transforms; products are summed over images and blocks."""
    upstream = dilate(gradient, sizes.stride)
    ends = [
        0 if b.blocks == 1 else b.blocks * b.step - n
        for b, n in zip(blocks, upstream.shape[2:], strict=True)
    ]
    upstream = functional.pad(upstream, [pixels for end in reversed(ends) for pixels in (0, end)])
    upstream, grouped = (t.unflatten(1, (sizes.groups, -1)) for t in (upstream, x))
    found = x.new_empty(sizes.outputs, sizes.channels // sizes.groups, *sizes.kernel)
    of_groups, dims = found.unflatten(0, (sizes.groups, -1)), tuple(range(-len(blocks), 0))
    wanted = [
        slice(None, span, step) for span, step in zip(sizes.extent, sizes.dilation, strict=True)
    ]
    for groups, outputs, batches in _parts(sizes, blocks):
        total = x.new_zeros(())
        for images in batches:
            factors = _transformed(
                upstream[images, groups, outputs], blocks, [(b.step, b.step) for b in blocks]
            )
            pieces = _windows(grouped[images, groups], sizes, blocks)
            if sizes.width == 1:
                total = total + (factors.conj() * pieces).sum((0, 3))[:, :, None]
            else:
                total = total + einsum(factors.conj(), pieces, _BY_KERNEL)
        taps = torch.roll(
            _inverse(total, blocks), [-shift for shift in _shifts(sizes, blocks)], dims
        )
        of_groups[groups, outputs] = taps[(..., *wanted)]
    return found


_BY_KERNEL = (
    "images groups outputs blocks f, images groups inputs blocks f -> groups outputs inputs f"
)


def _windows(x: Tensor, sizes: Sizes, blocks: Sequence[Block]) -> Complex[Tensor, "..."]:
    """Transforms images in blocks that overlap: (images, groups, channels, blocks, numbers)."""
    margins = list[int]()
    for block, pad, n in reversed(
        list(zip(blocks, sizes.padding, x.shape[-len(blocks) :], strict=True))
    ):
        after = (block.blocks - 1) * block.step + block.length - pad - n
        margins += [0, 0] if block.blocks == 1 else [pad, after]
    x = functional.pad(x, margins) if any(margins) else x
    return _transformed(x, blocks, [(block.length, block.step) for block in blocks])


def _transformed(
    x: Tensor, blocks: Sequence[Block], cuts: Sequence[tuple[int, int]]
) -> Complex[Tensor, "..."]:
    """Transforms all pieces of images, each of a length and so many pixels after the one before."""
    dims = len(blocks)
    for block, (length, step) in zip(blocks, cuts, strict=True):
        x = x.unfold(x.ndim - dims, x.shape[-dims] if block.blocks == 1 else length, step)
    pieces = x.flatten(-2 * dims, -dims - 1) if dims > 1 else x
    return torch.fft.rfftn(
        pieces, [block.length for block in blocks], tuple(range(-dims, 0))
    ).flatten(-dims)


def _of_kernel(kernels: Tensor, sizes: Sizes, blocks: Sequence[Block]) -> Complex[Tensor, "..."]:
    """Transforms kernels, tap δ at the displacement at which it looks: (groups, outputs, channels, numbers)."""
    lengths, dims = [block.length for block in blocks], tuple(range(-len(blocks), 0))
    placed = kernels.new_zeros(*kernels.shape[:3], *lengths)
    placed[(..., *map(slice, [0] * len(dims), sizes.extent, sizes.dilation))] = kernels
    return torch.fft.rfftn(torch.roll(placed, _shifts(sizes, blocks), dims), dim=dims).flatten(
        -len(blocks)
    )


def _shifts(sizes: Sizes, blocks: Sequence[Block]) -> list[int]:
    """Returns the displacement of the first tap along axes in one block; pieces of others begin in the padding."""
    return [
        -pad if block.blocks == 1 else 0 for block, pad in zip(blocks, sizes.padding, strict=True)
    ]


def _inverse(numbers: Complex[Tensor, "..."], blocks: Sequence[Block]) -> Float[Tensor, "..."]:
    """Transforms back."""
    *others, last = lengths = [block.length for block in blocks]
    return torch.fft.irfftn(
        numbers.unflatten(-1, [*others, last // 2 + 1]), lengths, tuple(range(-len(blocks), 0))
    )


def _joined(
    numbers: Complex[Tensor, "..."], sizes: Sizes, blocks: Sequence[Block]
) -> Float[Tensor, "..."]:
    """Transforms back, and puts the outputs of all blocks side by side: (images, groups, outputs, *queries)."""
    dims = len(blocks)
    y = _inverse(numbers, blocks)[(..., *(slice(b.step) for b in blocks))].unflatten(
        3, [b.blocks for b in blocks]
    )
    y = y.permute(0, 1, 2, *(place for axis in range(3, 3 + dims) for place in (axis, axis + dims)))
    for axis in range(3, 3 + dims):
        y = y.flatten(axis, axis + 1)
    return y[(..., *map(slice, [0] * dims, sizes.dense, sizes.stride))]
