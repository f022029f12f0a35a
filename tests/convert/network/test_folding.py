"""What is folded into a new convolution, and what is not."""

import copy
from math import prod
from operator import call

import pytest
import torch
from tests.convert.network.network_cases import hard, hooked, images, with_statistics
from torch import nn

from convattn.convert import network_to_conv
from convattn.layers.block import MixingBlock
from convattn.testing.budget import Sums, assert_within_budget, references, roundings


def test_batch_normalisation_in_training_is_not_folded():
    made, record = network_to_conv(
        nn.Sequential(hard(nn.Conv2d(3, 6, 3)), with_statistics(nn.BatchNorm2d(6))).train()
    )
    assert made.training
    assert isinstance(made[1], nn.BatchNorm2d)
    assert record.layers[0].notes == ()


class Twice(nn.Sequential):
    """Does something else with its children."""

    def forward(self, x):
        return super().forward(x) + self[0](x)


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        lambda conv, norm: nn.Sequential(conv, nn.ReLU(), norm),
        lambda conv, norm: nn.Sequential(conv, norm, norm),
        lambda conv, norm: nn.Sequential(conv, norm, nn.ReLU(), conv),
        lambda conv, norm: nn.Sequential(conv, hooked(norm)),
        lambda conv, norm: hooked(nn.Sequential(conv, norm)),
        lambda conv, _: nn.Sequential(conv, nn.BatchNorm2d(3, track_running_stats=False).eval()),
    ],
)
def test_what_does_not_certainly_follow_is_not_folded(make):
    torch.manual_seed(0)
    model = make(hard(nn.Conv2d(3, 3, 3, padding=1)), with_statistics(nn.BatchNorm2d(3))).eval()
    made, record = network_to_conv(model, images=images(2, 3, 5, 7))
    assert record.passed
    assert not any(isinstance(module, nn.Identity) for module in made.modules())


def test_nothing_is_folded_within_a_sequence_whose_forward_was_replaced():
    inner = nn.Sequential(hard(nn.Conv2d(3, 6, 3)), with_statistics(nn.BatchNorm2d(6)))
    model = nn.Sequential(inner).eval()
    model.forward = inner[0].forward
    made, record = network_to_conv(model)
    assert isinstance(made[0][1], nn.BatchNorm2d)
    assert record.layers[0].notes == ()


def test_what_the_dtype_does_not_hold_is_not_folded():
    norm = with_statistics(nn.BatchNorm2d(6))
    norm.running_var.fill_(1e-12)
    norm.weight.data.fill_(3e4)
    model = nn.Sequential(hard(nn.Conv2d(3, 6, 3)), norm).half().eval()
    made, record = network_to_conv(model)
    assert all(parameter.isfinite().all() for parameter in made.parameters())
    assert record.layers[0].notes == (
        "BatchNorm2d not folded in: the kernel would not be finite in torch.float16",
    )


class Parts(nn.Module):
    """Runs a sequence in its own way."""

    def __init__(self, conv, norm, way):
        super().__init__()
        self.features, self.way = nn.Sequential(conv, norm), way

    def forward(self, x):
        return self.way(self.features, x)


def taps(features, x):
    for layer in features:
        x = layer(x)
        yield x


WAYS = {
    "one module again": lambda features, x: features(x) + features[0](x),
    "a slice": lambda features, x: features[1:](features[0](x).relu()),
    "between the modules": lambda features, x: sum(taps(features, x)),
    "as a whole": lambda features, x: features(x),
}


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_only_a_sequence_that_runs_as_a_whole_is_folded(way, given):
    torch.manual_seed(0)
    model = Parts(
        hard(nn.Conv2d(3, 3, 3, padding=1)), with_statistics(nn.BatchNorm2d(3)), WAYS[way]
    ).eval()
    x = images(2, 3, 5, 7)
    made, record = network_to_conv(model, images=x if given else None)
    assert record.passed
    assert isinstance(
        made.features[1], nn.Identity if given and way == "as a whole" else nn.BatchNorm2d
    )
    high = copy.deepcopy(model).double()(x.double())
    assert_within_budget(made(x), high, roundings(call, model, x))


@pytest.mark.parametrize("inside", [False, True])
def test_a_sequence_of_sequences_is_folded_without_images(inside):
    model = nn.Sequential(
        hard(nn.Conv2d(3, 3, 3, padding=1)), with_statistics(nn.BatchNorm2d(3))
    ).eval()
    made, _ = network_to_conv(nn.Sequential(model) if inside else model)
    assert isinstance((made[0] if inside else made)[1], nn.Identity)


@pytest.mark.parametrize("shared", [False, True])
def test_the_linear_map_of_a_block_is_folded_unless_it_is_shared(shared):
    torch.manual_seed(0)
    blocks = [MixingBlock(hard(nn.Conv2d(4, 4, 3, padding=1)), 4, ffn=5) for _ in range(2)]
    if shared:
        blocks[1].dense = blocks[0].dense
    made, record = network_to_conv(nn.Sequential(*blocks).eval(), images=images(2, 4, 5, 7))
    assert record.exact
    assert record.passed
    assert isinstance(made[0].dense, nn.Linear if shared else nn.Identity)


def agrees(made, model, x, sums=None):
    """Within rounding, at the same shape."""
    hi, lows = references(lambda network, images: network(images), model, x)
    assert_within_budget(made(x), hi, lows, "output", sums=sums)


def sums_of(conv, norm, x):
    """What the outputs of a normalised convolution are sums of: torch's kernels differ in how far they round them."""
    convolution, norm = copy.deepcopy(conv).double(), copy.deepcopy(norm).double()
    for parameter in convolution.parameters():
        parameter.data = parameter.data.abs()
    norm.weight.data, norm.bias.data, norm.running_mean = (
        norm.weight.abs(),
        norm.bias.abs(),
        -norm.running_mean.abs(),
    )
    terms = conv.in_channels // conv.groups * prod(conv.kernel_size)
    return Sums(terms, norm(convolution(x.double().abs())).detach())


@pytest.mark.parametrize("given", [False, True])
def test_a_linear_map_after_a_grid_acts_on_the_width_and_stays(given):
    torch.manual_seed(0)
    model = nn.Sequential(hard(nn.Conv2d(3, 10, 3, padding=1)), nn.Linear(10, 7)).eval()
    x = images(3, 3, 11, 10)
    made, record = network_to_conv(model, images=x if given else None)
    assert record.exact
    assert record.passed
    assert made(x).shape == (3, 10, 11, 7)
    agrees(made, model, x)


SIZES = {1: (11,), 2: (5, 7), 3: (3, 5, 7)}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
NORMALISED = [
    *(nn.Conv1d(6, 10, 3, groups=2), nn.Conv2d(6, 10, 3, bias=False), nn.Conv3d(6, 10, 2)),
    *(
        nn.ConvTranspose1d(6, 10, 3, 2, groups=2),
        nn.ConvTranspose2d(6, 10, 2),
        nn.ConvTranspose3d(6, 10, 2),
    ),
]


@pytest.mark.parametrize("conv", NORMALISED, ids=str)
def test_a_folded_batch_normalisation_computes_the_same(conv):
    torch.manual_seed(0)
    dims = len(conv.kernel_size)
    norm = with_statistics(NORMS[dims](10)).eval()
    model, x = nn.Sequential(hard(conv), norm).eval(), images(2, 6, *SIZES[dims])
    made, record = network_to_conv(model)
    assert record.layers[0].notes == (f"BatchNorm{dims}d folded in",)
    agrees(made, model, x, sums_of(conv, norm, x))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_folded_linear_map_of_a_block_computes_the_same(dims):
    torch.manual_seed(0)
    model = MixingBlock(hard(CONVOLUTIONS[dims](4, 4, 3, padding=1)), 4, ffn=5).eval()
    made, record = network_to_conv(model)
    assert record.layers[0].notes == ("Linear folded in",)
    agrees(made, model, images(2, 4, *SIZES[dims]))


def replaced(module):
    """Computes something else than its class."""
    module.forward = lambda x: x + 1
    return module


def watched(register):
    def add(module):
        getattr(module, register)(lambda *_: None)
        return module

    return add


LOST = {
    "forward of a {} was replaced on the instance": [replaced],
    "a {} has hooks": [
        watched(f"register_{kind}_hook")
        for kind in ("forward", "forward_pre", "full_backward", "full_backward_pre")
    ],
}


@pytest.mark.parametrize(
    ("reason", "change"), [(reason, change) for reason in LOST for change in LOST[reason]]
)
@pytest.mark.parametrize("follower", ["norm", "dense"])
def test_what_folding_would_lose_is_not_folded(reason, change, follower):
    torch.manual_seed(0)
    conv = hard(nn.Conv2d(4, 4, 3, padding=1))
    if follower == "norm":
        model, name = nn.Sequential(conv, change(with_statistics(nn.BatchNorm2d(4)))).eval(), "1"
    else:
        model, name = MixingBlock(conv, 4, ffn=5).eval(), "dense"
        change(model.dense)
    made, record = network_to_conv(model)
    kind = type(model.get_submodule(name)).__name__
    assert type(made.get_submodule(name)).__name__ == kind
    assert record.layers[0].notes == (f"{kind} not folded in: {reason.format(kind)}",)
    agrees(made, model, images(2, 4, 5, 7))


@pytest.mark.parametrize("place", ["", "0"])
def test_hooks_of_gradients_see_what_they_saw(place):
    """Of the sequence, or of the layer whose output the folded one would change."""
    model = nn.Sequential(hard(nn.Conv2d(3, 6, 3)), with_statistics(nn.BatchNorm2d(6))).eval()
    watched("register_full_backward_hook")(model.get_submodule(place))
    made, record = network_to_conv(model)
    assert isinstance(made[1], nn.BatchNorm2d)
    assert record.layers[0].notes[0].endswith("has hooks")
