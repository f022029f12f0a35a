"""Outputs of mixed scale: no fault hides behind a mask, a box, a bright image or an infinity, and none fails."""

import copy
import itertools
from functools import partial

import pytest
import torch
from tests.convert.certify.certify_cases import Finds
from torch import nn

from convattn import certify, network_to_attention
from convattn.convert.network import network_to_conv
from convattn.convert.rounding import Roundings, differences, errors_of, scales

LOW = -1e9


class Masked(nn.Module):
    """Scores, of which three of ten columns are masked, by filling or by adding."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 10)
        self.how = how
        masked = torch.arange(10) % 4 == 1
        self.register_buffer("masked", masked)

    def forward(self, x):
        scores = self.head(self.conv(x).relu().mean((2, 3)))
        if self.how == "added":
            return scores + self.masked * LOW
        low = {"filled": LOW, "lowest": torch.finfo(x.dtype).min, "infinite": -torch.inf}[self.how]
        return scores.masked_fill(self.masked, low)


class Boxes(nn.Module):
    """Boxes in pixels beside a score, for each place of a grid or for each image."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 1)
        self.how = how
        self.register_buffer(
            "units", torch.tensor([500.0, 500.0, 300.0, 300.0, 1.0])[:, None, None]
        )

    def forward(self, x):
        found = self.head(self.conv(x).relu()).sigmoid() * self.units
        if self.how == "tokens":
            return found.flatten(2).transpose(1, 2)
        return found if self.how == "map" else found.amax((2, 3))


class Plain(nn.Module):
    """Scores, without anything that hides them."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 10)
        self.how = how

    def forward(self, x):
        y = self.conv(x).relu().mean((2, 3))
        return self.head(y) if self.how == "scores" else (self.head(y), y)


KINDS = [
    *((Masked, how) for how in ("added", "filled", "lowest", "infinite")),
    *((Boxes, how) for how in ("rows", "map", "tokens")),
    *((Plain, how) for how in ("scores", "two outputs")),
]
BRIGHT = [False, True]


def scale_score(network):
    """Makes scores, or the first of them, wrong by 5 %."""
    if isinstance(network, Boxes):
        network.units[4] *= 1.05
    else:
        network.head.weight.data[0] *= 1.05
        network.head.bias.data[0] *= 1.05


def drop_bias(network):
    network.conv.bias.data.zero_()


def other_weights(network):
    torch.manual_seed(99)
    for part in (network.conv, network.head):
        part.reset_parameters()


def shift_score(network):
    last = 4 if isinstance(network, Boxes) else 2
    network.head.bias.data[last] += 0.2


def swap_rows(network):
    weight = network.head.weight.data
    weight[[0, 2]] = weight[[2, 0]]


FAULTS = [scale_score, drop_bias, other_weights, shift_score, swap_rows]


def case(kind, how, bright, seed):
    torch.manual_seed(seed)
    network = kind(how).eval()
    nn.init.normal_(network.conv.bias)
    x = torch.randn(24, 3, 6, 7)
    if bright:
        x[5] *= 1e8
    return network, x


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(1), id="1"), pytest.param(range(1, 20), id="19", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("kind", "how"), KINDS, ids=lambda value: getattr(value, "__name__", value)
)
def test_no_fault_is_exact_or_close_and_no_right_one_differs(kind, how, seeds):
    """Nineteen seeds plant 1,710 faults, and one every second of 90, beside right ones that sum in another order."""
    missed, number = [], KINDS.index((kind, how))
    for bright, seed in itertools.product(BRIGHT, seeds):
        network, x = case(kind, how, bright, seed)
        made, _ = network_to_attention(network, impl="separable", images=x[:2])
        right = certify(network, partial(run, made.eval()), x)
        assert right.verdict == "exact", (bright, seed, right.summary())
        for fault in FAULTS if len(seeds) > 1 else FAULTS[(number + bright) % 2 :: 2]:
            wrong = copy.deepcopy(network)
            fault(wrong)
            certificate = certify(network, partial(run, wrong), x)
            if certificate.passed:
                missed.append((bright, seed, fault.__name__, certificate.summary()))
    assert not missed, missed[0]


def run(network, images):
    """Runs a network as a function of arrays, without names of layers."""
    with torch.no_grad():
        outputs = network(torch.from_numpy(images))
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return [output.numpy() for output in several]


@pytest.mark.parametrize(
    ("kind", "how"), KINDS, ids=lambda value: getattr(value, "__name__", value)
)
def test_right_conversions_there_and_back_are_exact(kind, how):
    for bright in BRIGHT:
        network, x = case(kind, how, bright, seed=0)
        made, there = network_to_attention(network, images=x)
        assert there.verdict == "exact", there.summary()
        _, back = network_to_conv(made, images=x)
        assert back.verdict == "exact", back.summary()


def test_soft_heads_behind_a_mask_are_not_close():
    network, x = case(Masked, "filled", False, 0)
    _, certificate = network_to_attention(network, images=x, sharpness=0.3)
    assert certificate.verdict == "different"
    assert certificate.difference > 0.1


def test_infinities_of_one_sign_are_equal():
    x = torch.tensor([torch.inf, -torch.inf, torch.inf, 3.4e38, 1.0])
    exact = torch.tensor([torch.inf, -torch.inf, -torch.inf, torch.inf, 2.0], dtype=torch.float64)
    assert errors_of(x, exact).tolist() == [0.0, 0.0, torch.inf, 0.0, 1.0]


def test_outputs_without_elements_are_compared_beside_the_others():
    network, x = Finds().eval(), torch.randn(3, 3, 5, 5)
    made, certificate = network_to_attention(network, images=x)
    assert certificate.verdict == "exact"
    assert certify(network, made, x).verdict == "exact"
    with torch.no_grad():
        made.conv.bias[2] += 0.1
    assert certify(network, made, x).verdict == "different"
    empty = torch.empty(0, 4, dtype=torch.float64)
    assert differences(empty, empty, empty)[0].same
    assert scales(empty).shape == (0, 4)


def test_scales_are_those_of_a_channel_in_images_of_one_brightness():
    table = torch.tensor([[1.0, 500.0, LOW], [-2.0, 400.0, LOW], [3e8, 5e10, LOW]]).double()
    table = torch.cat([table[:2].repeat(4, 1), table[2:]])
    scale = scales(table)
    assert scale[0].tolist() == pytest.approx([2.0, 500.0, -LOW])
    assert scale[-1, 0] >= 3e8


def test_a_few_draws_of_rounding_allow_more():
    torch.manual_seed(0)
    beyond = {}
    for samples in (1, 64):
        exact = torch.zeros(samples, 200, dtype=torch.float64)
        count = 0
        for _ in range(20):
            roundings = Roundings(exact)
            for _ in range(5):
                roundings.add(torch.randn(exact.shape))
            allowed = roundings.allowed(0.0)
            count += int((torch.randn(exact.shape).abs() > allowed).sum())
            assert differences(50 * torch.ones_like(exact), exact, allowed)[0].error == 50
        beyond[samples] = count
    assert beyond == {1: 0, 64: 0}


def test_where_rounding_hides_everything_only_equal_outputs_are_the_same():
    exact = torch.ones(2, 3, dtype=torch.float64)
    moved = exact.clone()
    moved[1, 2] += 1e-9
    allowed = 5 * exact
    assert [one.share for one in differences(exact, exact, allowed)] == [0, 0]
    assert differences(moved, exact, allowed)[0].share == torch.inf
