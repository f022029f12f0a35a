"""Convolutions with large kernels: every path against torch's definition, and the plan that chooses one."""

import math
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional

from convattn.functional import large_kernel
from convattn.functional.large_kernel import Block, Choice, Sizes, few_taps, plan_convolution
from convattn.testing.budget import Sums, assert_within_budget, references

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
LARGEST = {1: 61, 2: 23, 3: 9}


def drawn(seed):
    """Draws the sizes of a convolution: groups, stride, padding, dilation and a kernel up to the padded image."""
    draw = random.Random(seed)
    dims, groups = draw.choice([1, 1, 2, 2, 3]), draw.choice([1, 2, 3])
    image = tuple(draw.randint(5, LARGEST[dims]) for _ in range(dims))
    padding, dilation = (
        tuple(draw.choice(some) for _ in range(dims)) for some in ((0, 1, 2, 5), (1, 1, 2))
    )
    kernel = [
        draw.randint(1, max(1, (n + 2 * pad - 1) // step))
        for n, pad, step in zip(image, padding, dilation, strict=True)
    ]
    return Sizes(
        batch=2,
        channels=groups * draw.choice([1, 2]),
        outputs=groups * draw.choice([1, 2, 3]),
        groups=groups,
        image=image,
        kernel=tuple(kernel),
        stride=tuple(draw.choice([1, 1, 2, 3]) for _ in range(dims)),
        padding=padding,
        dilation=dilation,
        dtype=torch.float64,
    )


def numbers_of(sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (sizes.batch, sizes.channels, *sizes.image),
        (sizes.outputs, sizes.channels // sizes.groups, *sizes.kernel),
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(sizes.dtype)
        for shape in shapes
    ]


def by_torch(sizes, x, kernel):
    geometry = (sizes.stride, sizes.padding, sizes.dilation, sizes.groups)
    return CONVOLUTIONS[len(sizes.image)](x, kernel, None, *geometry)


def derivatives(compute, x, kernel, upstream):
    """Returns the result and both gradients."""
    x, kernel = (t.detach().requires_grad_() for t in (x, kernel))
    y = compute(x, kernel)
    return [y.detach(), *torch.autograd.grad(y, [x, kernel], upstream.to(y))]


def cuts(sizes):
    """Yields the cuts that the plan looks at, one with short blocks, and one whose axes differ."""
    yield from large_kernel._cuts(sizes)
    whole, short = next(large_kernel._cuts(sizes)), []
    for one, span, outputs in zip(whole, sizes.extent, sizes.dense, strict=True):
        length = large_kernel._quick(span + 3)
        step = length - span + 1
        short.append(Block(length, step, math.ceil(outputs / step)) if outputs > step else one)
    yield tuple(short)
    yield (*short[:-1], whole[-1])


def largest_sums(sizes, x, kernel, upstream):
    """Returns what the result and both gradients are sums of; errors of transforms are a share of the largest."""
    absolute = derivatives(partial(by_torch, sizes), x.abs(), kernel.abs(), upstream.abs())
    terms = [
        kernel[0].numel(),
        len(kernel) // sizes.groups * math.prod(sizes.kernel),
        sizes.batch * math.prod(sizes.result),
    ]
    return [Sums(count, every.max()) for count, every in zip(terms, absolute, strict=True)]


def assert_all_within_budget(found, sizes, x, kernel, upstream):
    """Asserts that a result and both gradients are those of torch's convolution in float64; None is not compared."""
    every, lows = references(partial(derivatives, partial(by_torch, sizes)), x, kernel, upstream)
    limits = largest_sums(sizes, x, kernel, upstream)
    for place, name in enumerate(("result", "gradient of images", "gradient of kernel")):
        if found[place] is not None:
            several = [low[place] for low in lows]
            assert_within_budget(found[place], every[place], several, name, sums=limits[place])


def planned(choice):
    """Returns a plan with one choice for all."""
    return large_kernel.ConvolutionPlan(choice, choice, choice)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(8))
def test_transforms_are_the_convolution_and_its_gradients(seed, dtype):
    sizes = replace(drawn(seed), dtype=dtype)
    x, kernel = numbers_of(sizes)
    upstream, back = torch.randn_like(by_torch(sizes, x, kernel)), sizes.backwards()
    for blocks in cuts(sizes):
        y, by_kernel = (
            large_kernel._correlate(x, kernel, sizes, blocks),
            large_kernel._correlate_images(upstream, x, sizes, blocks),
        )
        assert_all_within_budget((y, None, by_kernel), sizes, x, kernel, upstream)
    for blocks in cuts(back) if min(back.padding) >= 0 else ():
        by_x = large_kernel._input_gradient(
            upstream, x, kernel, sizes, Choice("fft", "", 0.0, blocks)
        )
        assert_all_within_budget((None, by_x, None), sizes, x, kernel, upstream)


def test_a_fault_of_one_tap_is_found():
    sizes = replace(drawn(3), dtype=torch.float32)
    x, kernel = numbers_of(sizes)
    blocks = next(large_kernel._cuts(sizes))
    wrong = large_kernel._correlate(x, kernel.roll(1, -1), sizes, blocks)
    with pytest.raises(AssertionError, match="result: error"):
        assert_all_within_budget((wrong, None, None), sizes, x, kernel, torch.ones_like(wrong))


DEPTHWISE = Sizes(2, 8, 8, 8, (13, 17), (11, 15), (1, 1), (5, 7), (1, 1), torch.float32)
CASES = [
    DEPTHWISE,
    replace(DEPTHWISE, channels_last=True),
    replace(DEPTHWISE, stride=(2, 3)),
    replace(DEPTHWISE, dilation=(1, 2), padding=(5, 14)),
    replace(DEPTHWISE, groups=1),
    replace(DEPTHWISE, groups=2, outputs=6, channels_last=True),
    replace(DEPTHWISE, dtype=torch.float64),
    replace(DEPTHWISE, dtype=torch.float64, channels_last=True, kernel=(3, 3), padding=(1, 1)),
    replace(DEPTHWISE, channels=1, outputs=1, groups=1),
    replace(DEPTHWISE, kernel=(3, 3), padding=(5, 4)),
    Sizes(2, 8, 8, 8, (301,), (65,), (1,), (32,), (1,), torch.float32),
    Sizes(2, 8, 16, 1, (301,), (65,), (2,), (32,), (1,), torch.float32),
    Sizes(1, 8, 8, 8, (7, 11, 13), (3, 5, 9), (1, 1, 1), (1, 2, 4), (1, 1, 1), torch.float32),
    Sizes(
        1,
        8,
        8,
        8,
        (7, 11, 13),
        (3, 5, 9),
        (1, 1, 1),
        (1, 2, 4),
        (1, 1, 1),
        torch.float32,
        channels_last=True,
    ),
]


def laid_out(t, sizes):
    return (
        t.contiguous(memory_format=large_kernel._CHANNELS_LAST[t.ndim - 2])
        if sizes.channels_last
        else t
    )


def plans(sizes):
    """Yields every plan that can compute a convolution, with its name."""
    yield "planned", plan_convolution(sizes)
    yield "default", planned(Choice("default", "", 0.0))
    if len(sizes.image) > 1:
        yield "channels-last", planned(Choice("channels-last", "", 0.0))
    if min(sizes.backwards().padding) >= 0:
        by_x = Choice("fft", "", 0.0, next(large_kernel._cuts(sizes.backwards())))
        yield (
            "fft",
            replace(
                planned(Choice("fft", "", 0.0, next(large_kernel._cuts(sizes)))),
                input_gradient=by_x,
            ),
        )
        if sizes.depthwise and {*sizes.stride, *sizes.dilation} == {1}:
            yield "as convolution", planned(Choice("channels-last", "", 0.0, as_convolution=True))


PLANS = [
    pytest.param(sizes, plan, id=f"{sizes.image}-{sizes.kernel}-{sizes.groups}-{name}")
    for sizes in CASES
    for name, plan in plans(sizes)
]


@pytest.mark.parametrize(("sizes", "plan"), PLANS)
def test_every_path_is_the_convolution_in_the_layout_of_torch(sizes, plan):
    x, kernel = (laid_out(t, sizes) for t in numbers_of(sizes))
    upstream = torch.randn_like(by_torch(sizes, x, kernel))
    found = derivatives(partial(run, sizes, plan), x, kernel, upstream)
    assert_all_within_budget(found, sizes, x, kernel, upstream)
    expected = derivatives(partial(by_torch, sizes), x, kernel, upstream)
    assert [t.stride() for t in found[:2]] == [t.stride() for t in expected[:2]]


@pytest.mark.parametrize(("kernel", "image", "own"), [(3, 56, False), (31, 56, True)])
def test_what_the_plan_leaves_to_torch_altogether_is_torchs_in_training_too(kernel, image, own):
    x, weight = (
        torch.randn(1, 8, image, image),
        torch.randn(8, 1, kernel, kernel, requires_grad=True),
    )
    y = large_kernel.convolve_large(x, weight, None, ((1, 1), (kernel // 2,) * 2, (1, 1)), 8)
    assert y.grad_fn.name() == ("_ConvolutionBackward" if own else "ConvolutionBackward0")


def run(sizes, plan, x, kernel):
    return large_kernel._Convolution.apply(x, kernel, None, sizes, plan)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_reaches_what_it_reaches_in_torch(bad):
    """Found in every result that transforms make: an image, an upstream gradient, a kernel."""
    sizes = replace(DEPTHWISE, channels=3, outputs=3, groups=3)
    choice = Choice("fft", "", 0.0, next(large_kernel._cuts(sizes)))
    plan = replace(
        planned(choice),
        input_gradient=replace(choice, blocks=next(large_kernel._cuts(sizes.backwards()))),
    )
    for place in range(3):
        x, kernel = numbers_of(sizes)
        given = [x, kernel, torch.randn_like(by_torch(sizes, x, kernel))]
        given[place][0, 0, 3, 4] = bad
        found = derivatives(partial(run, sizes, plan), *given)
        expected = derivatives(partial(by_torch, sizes), *given)
        for one, other in zip(found, expected, strict=True):
            assert not one[~one.isfinite() & other.isfinite()].numel()
            assert one.isfinite().any()
            assert torch.equal(one.isfinite().flatten(1).all(1), other.isfinite().flatten(1).all(1))


def wide(**changes):
    """Sizes of a depthwise convolution of one image of 128 channels."""
    kernel = changes.pop("kernel", 31)
    changes = {"kernel": (kernel, kernel), "padding": (kernel // 2,) * 2, **changes}
    sizes = {"batch": 1, "channels": 128, "outputs": 128, "groups": 128, "image": (56, 56)}
    return replace(DEPTHWISE, **{**sizes, **changes})


def paths(sizes):
    plan = plan_convolution(sizes)
    return [choice.path for choice in (plan.forward, plan.input_gradient, plan.weight_gradient)]


@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "DEFAULT"])
def test_the_plan_leaves_the_slow_layout_and_takes_transforms_of_large_kernels(
    capability, monkeypatch
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert paths(wide(kernel=7))[:2] == ["default", "default"]
    assert paths(wide(kernel=15, image=(14, 14)))[0] == "channels-last"
    assert paths(wide(kernel=15, padding=(0, 0)))[0] == "default"
    assert paths(wide(kernel=51)) == ["fft", "fft", "fft"]
    line = Sizes(1, 64, 64, 64, (16000,), (255,), (1,), (127,), (1,), torch.float32)
    assert paths(replace(line, kernel=(8191,), padding=(4095,))) == ["fft"] * 3
    assert (
        paths(replace(line, batch=4, image=(64000,), kernel=(1023,), padding=(511,)))
        == ["overlap-add"] * 3
    )
    assert paths(replace(line, kernel=(3,), padding=(1,))) == ["default"] * 3


def test_the_border_of_the_fast_default_layout_depends_on_the_processor(monkeypatch):
    for capability, fast in (("AVX512", "default"), ("AVX2", "channels-last")):
        monkeypatch.setattr(
            torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability
        )
        assert paths(wide(kernel=11))[0] == fast


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_convolutions_left_to_torch_without_a_plan_are_left_to_it_by_the_plan(
    capability, monkeypatch
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    draw, seen = random.Random(0), 0
    for _ in range(3000):
        dims, channels = draw.randint(1, 3), draw.choice([1, 2, 32, 256])
        kernel, stride, dilation = (
            tuple(draw.choice([1, 2, 3, 5, 9, 81]) for _ in range(dims)) for _ in range(3)
        )
        stride, dilation = tuple(min(s, 3) for s in stride), tuple(min(d, 3) for d in dilation)
        padding = tuple(draw.randint(0, 5) for _ in range(dims))
        image = tuple(
            draw.choice([7, 56, 224 if dims < 3 else 28, 4000 if dims == 1 else 14])
            for _ in range(dims)
        )
        weight = torch.empty(
            channels, 1, *kernel, device="meta", dtype=draw.choice([torch.float32, torch.float64])
        )
        layout = {"channels_last": dims > 1 and draw.random() < 0.3, "dtype": weight.dtype}
        shape = (
            draw.choice([1, 16]),
            channels,
            channels,
            channels,
            image,
            kernel,
            stride,
            padding,
            dilation,
        )
        sizes = Sizes(*shape, **layout)
        if min(sizes.dense) > 0 and few_taps(weight, padding[-1], channels):
            choice, seen = plan_convolution(sizes).forward, seen + 1
            assert (choice.path, choice.blocks) == (
                "channels-last" if sizes.channels_last else "default",
                (),
            )
    assert seen > 100


@pytest.mark.parametrize(("n", "taps"), [(7, 3), (7, 7), (14, 31), (5, 9), (28, 31), (3, 13)])
def test_taps_that_meet_padding_are_not_counted(n, taps):
    pad = taps // 2
    met = sum(0 <= q - pad + tap < n for q in range(n) for tap in range(taps))
    sizes = replace(DEPTHWISE, image=(n, n), kernel=(taps, taps), padding=(pad, pad))
    assert sizes.inside == pytest.approx((met / (n * taps)) ** 2)


@pytest.mark.parametrize("capability", ["AVX512", "AVX2"])
def test_kernels_wider_than_the_image_are_left_to_torch(capability, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for taps in (15, 31):
        assert paths(wide(kernel=taps, image=(14, 14), batch=16))[0] == "channels-last"


def test_a_reason_names_the_layout_that_is_left(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    choice = plan_convolution(wide(kernel=31, image=(14, 14))).forward
    assert (choice.path, choice.blocks) == ("channels-last", ())
    assert "torch's default layout is slow" in choice.reason
    choice = plan_convolution(wide(kernel=51)).weight_gradient
    assert "times as fast as torch's channels-last layout" in choice.reason
