"""What an `AttendedCalls` keeps of its module: hooks, sizes, numbers that it holds once, and what it calls."""

import pytest
import torch
from tests.convert.network.network_cases import converted, images
from timm.layers import BlurPool2d, StdConv2d
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from convattn import load_network, network_to_attention, network_to_conv, save_network
from convattn.errors import ArgumentError, ConversionError, UnsupportedModelError

IMAGES = images(2, 3, 9, 9)


class Cast(nn.Module):
    """Changes its weight by the way, which in evaluation and in one precision is no change."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, x):
        weight = F.dropout(self.weight, 0.5, self.training)
        return F.conv2d(x, weight.to(x.dtype), padding=1)


class Rectified(nn.Conv2d):
    """Activates."""

    def forward(self, x):
        return super().forward(x).relu()


class Upwards(nn.ConvTranspose2d):
    """Goes up to a size."""

    def forward(self, x, like):
        return super().forward(x, output_size=like.shape[2:])


class Renamed(nn.ConvTranspose2d):
    """A transposed convolution of another name."""


class Decoder(nn.Module):
    """Goes down and up again."""

    def __init__(self, up):
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.up = up(4, 3, 3, stride=2, padding=1)
        self.takes_a_size = up is Renamed

    def forward(self, x):
        y = self.down(x)
        if self.takes_a_size:
            return self.up(y, output_size=x.shape[2:])
        return self.up(y, x)


class Two(nn.Module):
    """Calls two convolutions of one shape, in either order, with weights that may be one."""

    def __init__(self, *, shared=False):
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 3, 3, 3))
        self.second = self.first if shared else nn.Parameter(torch.randn(3, 3, 3, 3))
        self.turned = False

    def forward(self, x):
        weights = [self.first, self.second]
        for weight in reversed(weights) if self.turned else weights:
            x = F.conv2d(x, weight, padding=1)
        return x


def attention(module, **options):
    torch.manual_seed(0)
    return network_to_attention(nn.Sequential(module).eval(), images=IMAGES, **options)[0]


def test_hooks_of_the_module_are_there_on_the_way_back():
    seen = []
    conv = prune.l1_unstructured(nn.Conv2d(3, 4, 3), "weight", 0.5)
    conv.register_forward_hook(lambda *_: seen.append("module"))
    made = attention(conv)
    made[0].register_forward_hook(lambda *_: seen.append("wrapper"))
    back, certificate = network_to_conv(made, images=IMAGES)
    assert certificate.verdict == "exact"
    seen.clear()
    before = back(IMAGES)
    assert seen == ["module", "wrapper"]
    with torch.no_grad():
        back[0].weight_orig.zero_()
    assert not torch.equal(back(IMAGES), before)
    prune.remove(back[0], "weight")


def test_a_network_that_returns_nothing_is_compared_by_layers_and_left_as_it_was():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1))
    for parameter in network[3].parameters():
        nn.init.zeros_(parameter)
    _, certificate = network_to_attention(network, images=IMAGES)
    assert certificate.verdict == "exact"
    assert "its layers were compared" in str(certificate.not_covered)
    assert int(network[1].num_batches_tracked) == 0


@pytest.mark.parametrize("up", [Upwards, Renamed])
def test_images_may_end_otherwise_than_at_the_conversion(up):
    network = Decoder(up).eval()
    made, _ = converted(network, IMAGES)
    for size in (8, 9):
        x = images(1, 3, size, size)
        assert torch.equal(made(x), network(x))


def test_heads_that_left_the_dilation_of_their_module_stay_in_its_wrapper():
    made = attention(Rectified(3, 4, 3, padding=2, dilation=2), sharpness=50.0)
    with torch.no_grad():
        made[0].layers[0].encoding.centres.mul_(0.5)
    back, certificate = network_to_conv(made, images=IMAGES)
    assert certificate.verdict == "exact"
    assert repr(back) != repr(nn.Sequential(Rectified(3, 4, 3, padding=2, dilation=2)))


def test_one_weight_cannot_hold_two_kernels():
    made = attention(Two(shared=True), sharpness=50.0)
    with torch.no_grad():
        made[0].layers[1].encoding.centres.neg_()
    with pytest.raises(ConversionError, match="came back with different kernels"):
        network_to_conv(made)


def test_calls_in_another_order_are_an_error():
    made = attention(Two())
    made[0].turned = True
    with pytest.raises(ConversionError, match="calls another convolution"):
        made(IMAGES)


MODULES = {
    "own weight": lambda: StdConv2d(3, 3, 3),
    "own twice": Two,
    "no state": lambda: BlurPool2d(3),
}


@pytest.mark.parametrize("sharpness", [None, 5.0], ids=["hard", "soft"])
@pytest.mark.parametrize("name", MODULES)
def test_a_state_holds_each_number_once_and_is_loaded(name, sharpness):
    made = attention(MODULES[name](), sharpness=sharpness)
    state = {key: tensor.clone() for key, tensor in made.state_dict().items()}
    places = [tensor.data_ptr() for tensor in made.state_dict().values()]
    assert len(places) == len(set(places))
    expected = made(IMAGES)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.5)
    for assign in (False, True):
        made.load_state_dict(state, assign=assign)
        assert torch.equal(made(IMAGES), expected)


def test_a_weight_that_is_changed_by_the_way_is_the_one_that_attends():
    network = nn.Sequential(nn.Conv2d(3, 3, 1), Cast()).eval()
    made, _ = converted(network, IMAGES)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made(IMAGES), network(IMAGES))
    outputs = []
    for one in (made, network):
        torch.manual_seed(0)
        outputs.append(one.train()(IMAGES))
    assert torch.equal(*outputs)


def noted(module, inputs, output):
    """A hook."""


def test_a_hook_on_a_wrapper_is_saved_if_it_is_that_of_the_module(tmp_path):
    given = nn.Sequential(StdConv2d(3, 4, 3)).eval()
    given[0].register_forward_hook(noted)
    made, _ = network_to_attention(given, images=IMAGES)
    loaded = load_network(save_network(made, tmp_path / "made"), model=given)
    assert torch.equal(loaded(IMAGES), made(IMAGES))
    made[0].register_forward_hook(noted)
    with pytest.raises(UnsupportedModelError, match=r"0 would not come back.*forward hook"):
        save_network(made, tmp_path / "again")


def test_a_wrapper_that_is_the_network_says_that_its_module_must_be_given(tmp_path):
    module = StdConv2d(3, 4, 3).eval()
    made, _ = network_to_attention(module, images=IMAGES)
    folder = save_network(made, tmp_path / "made")
    assert "model=" in (folder / "README.md").read_text()
    with pytest.raises(ArgumentError, match="model must be given"):
        load_network(folder)
    assert torch.equal(load_network(folder, model=module)(IMAGES), made(IMAGES))


def test_the_rest_of_a_network_is_converted_later():
    network = nn.Sequential(StdConv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).eval()
    first, _ = network_to_attention(network, images=IMAGES, include="0")
    both, certificate = network_to_attention(first, images=IMAGES)
    assert certificate.verdict == "exact"
    with pytest.raises(ConversionError, match="attention already"):
        network_to_attention(both, images=IMAGES)


def test_a_weight_may_be_a_buffer():
    conv = nn.Conv2d(3, 3, 3, bias=False)
    weight = conv.weight.detach()
    del conv.weight
    conv.register_buffer("weight", weight)
    assert torch.equal(attention(conv)(IMAGES), conv(IMAGES))


def test_a_layer_whose_weight_is_computed_has_none():
    for module, has in ((Two(), True), (StdConv2d(3, 3, 3), False)):
        assert hasattr(attention(module)[0].layers[0], "weight") is has


def test_values_of_a_wrapper_are_not_pruned():
    made = attention(Two())
    prune.l1_unstructured(made[0].layers[0].values, "weight", 0.5)
    with pytest.raises(ArgumentError, match=r"prune or normalise `layer\.module`"):
        made(IMAGES)


@pytest.mark.parametrize("sharpness", [None, 20.0])
def test_a_turned_weight_may_be_shared_by_two_strides(sharpness):
    network = nn.Sequential(
        nn.ConvTranspose2d(3, 3, 3, padding=1), nn.ConvTranspose2d(3, 3, 3, stride=2)
    ).eval()
    network[1].weight = network[0].weight
    _, certificate = network_to_attention(network, images=IMAGES, sharpness=sharpness)
    assert certificate.passed
