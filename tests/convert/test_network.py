"""Whole networks: what a conversion keeps, and what its certificate says."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from convattn import NetworkCertificate, network_to_attention
from convattn.errors import ArgumentError, CheckpointError, ConversionError, UnknownNameError
from convattn.layers import RelativeAttention, RelativeAttention1d, RelativeAttention2d, RelativeAttention3d
from convattn.testing.budget import assert_within_budget
from convert.network_cases import Branches, Functional, Renamed, Results, assert_unchanged, filled, fingerprint, images

PATHS = ("auto", "separable")
NETWORKS = {
    "1d": (nn.Sequential(nn.Conv1d(2, 6, 5, stride=2), nn.ReLU(), nn.Conv1d(6, 4, 3, groups=2)), (2, 23)),
    "depthwise": (nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 12, 5, groups=6)), (3, 11, 13)),
    "reflect": (nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), nn.ReLU()), (3, 11, 13)),
    "3d": (nn.Sequential(nn.Conv3d(2, 3, (1, 3, 2)), nn.BatchNorm3d(3), nn.Conv3d(3, 5, 1)), (2, 3, 5, 7)),
    "transposed 1d": (nn.Sequential(nn.ConvTranspose1d(2, 3, 4, stride=2, padding=1), nn.Conv1d(3, 2, 1)), (2, 11)),
    "transposed 2d": (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2)), (4, 7, 9)),
    "transposed 3d": (nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 3, 4, 5)),
    "same": (nn.Sequential(nn.Conv2d(3, 5, 3, padding="same", dilation=2), nn.Conv2d(5, 2, (1, 7))), (3, 9, 13)),
}


def converted(network, x, **options):
    """Converts a network; asserts that it was left as it was, that the certificate passed, and that results agree."""
    before = fingerprint(network)
    made, certificate = network_to_attention(network, images=x, **options)
    assert_unchanged(network, before)
    assert certificate.passed
    low, high = copy.deepcopy(network).eval()(x), copy.deepcopy(network).eval().double()(x.double())
    assert certificate.measured_error <= certificate.rounding
    result = copy.deepcopy(made).eval()(x)
    assert_within_budget(result.detach(), high.detach(), low.detach(), "converted")
    return made, certificate


def convolutions(network):
    return [module for module in network.modules() if isinstance(module, nn.modules.conv._ConvNd)]


@pytest.mark.parametrize("impl", PATHS)
@pytest.mark.parametrize(("network", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_every_kind_of_convolution(network, shape, impl):
    network = filled(network)
    made, certificate = converted(network, images(2, *shape), impl=impl)
    assert not convolutions(made)
    assert len(certificate.layers) == len(convolutions(network))
    assert certificate.exact
    assert {layer.path for layer in certificate.layers} == {"shift" if impl == "auto" else "separable"}
    kinds = {1: RelativeAttention1d, 2: RelativeAttention2d, 3: RelativeAttention3d}
    assert all(isinstance(module, kinds[len(shape) - 1]) for module in made.modules() if hasattr(module, "encoding"))


def test_a_module_in_several_places_stays_one_and_tied_weights_stay_tied():
    network = Branches()
    made, certificate = converted(network, images(2, 3, 7, 9))
    assert made.first is made.again
    assert made.left is not made.right
    assert made.left.values.weight is made.right.values.weight
    assert made.left.bias is not made.right.bias
    entry = certificate.layers[0]
    assert (entry.name, entry.aliases, entry.notes) == ("first", ("again",), ())
    assert len(certificate.layers) == 3


def test_a_tie_that_cannot_be_kept_is_said():
    network = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3))
    network[1].weight = network[0].weight
    _, certificate = converted(network, images(1, 4, 7, 9))
    assert [layer.notes for layer in certificate.layers] == [
        ("it no longer shares its weight with 1.weight",),
        ("it no longer shares its weight with 0.weight",),
    ]


def test_a_bias_tied_to_another_module_stays_tied():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    network[0].bias = network[1].bias
    made, _ = converted(filled(network), images(1, 3, 7, 9))
    assert made[0].bias is made[1].bias


def test_mode_and_what_learns_are_kept():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1))
    network[0].eval()
    network[0].weight.requires_grad_(False)
    network[2].bias.requires_grad_(False)
    made, _ = converted(network, images(1, 3, 9, 11))
    assert [module.training for module in made] == [False, True, True, True]
    assert [m.values.weight.requires_grad for m in (made[0], made[2])] == [False, True]
    assert [m.encoding.centres.requires_grad for m in (made[0], made[2])] == [False, True]
    assert [m.bias.requires_grad for m in (made[0], made[2])] == [True, False]
    assert made[0].values.training is made[0].encoding.training is False


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_dtype_is_kept(dtype):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)).to(dtype)
    made, certificate = converted(network, images(2, 3, 9, 11, dtype=dtype))
    assert made[0].values.weight.dtype == made[0].bias.dtype == dtype
    assert certificate.reference == "float64"


def test_hooks_are_kept_and_called_with_the_layer():
    network, seen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), []

    def double(module, given):
        seen.append(type(module).__name__)
        return (2 * given[0],)

    network[0].register_forward_pre_hook(double)
    network[0].register_forward_hook(lambda *arguments: arguments[-1] + 1)
    network[0].register_full_backward_hook(lambda *_: seen.append("backward"))
    x = images(2, 3, 7, 9)
    made, certificate = converted(network, x)
    assert certificate.layers[0].notes == ("its hooks were kept; they are called with the attention layer",)
    seen.clear()
    made(x.requires_grad_()).sum().backward()
    assert seen == ["RelativeAttention2d", "backward"]


def spectral(conv):
    return parametrizations.spectral_norm(conv)


def weight_normed(conv):
    return parametrizations.weight_norm(conv)


def pruned(conv):
    return prune.random_unstructured(conv, "weight", 0.5)


def old_spectral(conv):
    return nn.utils.spectral_norm(conv)


def old_weight_normed(conv):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(conv)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("wrap", "how"),
    [
        (spectral, "SpectralNorm"),
        (weight_normed, "WeightNorm"),
        (pruned, "pruning"),
        (old_spectral, "SpectralNorm"),
        (old_weight_normed, "WeightNorm"),
    ],
)
def test_a_computed_weight_is_converted_as_it_is(wrap, how, training):
    torch.manual_seed(0)
    network = nn.Sequential(wrap(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Conv2d(4, 5, 1)).train(training)
    before = fingerprint(network)
    x = images(2, 3, 7, 9)
    made, certificate = network_to_attention(network, images=x)
    assert_unchanged(network, before)
    assert certificate.passed
    assert certificate.layers[0].notes == (f"its weight is computed by {how}; what that gave was converted",)
    assert certificate.layers[1].notes == ()
    assert type(made[0]) is RelativeAttention2d
    assert made[0].training is training
    assert made[0].values.weight.requires_grad
    assert not made[0]._forward_pre_hooks
    assert made(x).requires_grad


def test_a_subclass_that_overrides_nothing_is_converted():
    made, _ = converted(nn.Sequential(Renamed(3, 4, 3)), images(1, 3, 7, 9))
    assert type(made[0]) is RelativeAttention2d


def test_the_network_itself_may_be_a_convolution():
    made, certificate = converted(nn.Conv2d(3, 4, 3), images(1, 3, 7, 9))
    assert type(made) is RelativeAttention2d
    assert certificate.layers[0].name == ""


def test_patterns_choose_modules():
    network = nn.ModuleDict(
        {"stem": nn.Conv2d(3, 4, 3), "stage": nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1))}
    )
    network = nn.Sequential(*network.values())
    x = images(1, 3, 9, 11)
    made, certificate = converted(network, x, include="1.*", exclude=["1.1"])
    assert [type(m).__name__ for m in (made[0], made[1][0], made[1][1])] == ["Conv2d", "RelativeAttention2d", "Conv2d"]
    assert [(item.name, item.reason) for item in certificate.left_alone] == [
        ("0", "left out by include or exclude"),
        ("1.1", "left out by include or exclude"),
    ]
    with pytest.raises(ArgumentError, match=r"include must be a pattern of names of convolutions .*, but is 'layer9'"):
        network_to_attention(network, include=["1.*", "layer9"], images=x)


def test_a_convolution_called_as_a_function_is_found():
    network = Functional()
    made, certificate = converted(network, images(1, 3, 7, 9))
    assert type(made.after) is RelativeAttention2d
    assert [(item.name, item.kind) for item in certificate.left_alone] == [("", "Functional")]
    assert "calls aten::convolution as a function, which is not converted" in certificate.left_alone[0].reason
    assert "left alone" in certificate.summary()


def test_a_layer_that_the_images_do_not_reach_has_no_path():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1)

        def forward(self, x):
            return self.used(x)

    _, certificate = converted(Half(), images(1, 3, 7, 9))
    assert [layer.path for layer in certificate.layers] == ["shift", None]


def test_nested_results_and_named_arguments():
    network = Results()
    _, certificate = network_to_attention(network, images={"x": images(2, 3, 7, 9), "scale": 2.0})
    assert certificate.passed
    assert certificate.shapes == ((2, 3, 7, 9),)
    assert certificate.top1_total is None


def test_top1_is_counted_where_there_are_scores():
    network = nn.Sequential(nn.Conv2d(3, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    _, certificate = converted(network, images(5, 3, 7, 9))
    assert (certificate.top1_total, certificate.top1_changed) == (5, 0)


def test_soft_heads_are_measured_and_not_called_exact():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3))
    made, certificate = network_to_attention(network, sharpness=2.0, images=images(2, 3, 9, 11))
    assert certificate.passed
    assert not certificate.exact
    assert certificate.measured_error > certificate.rounding
    assert all(layer.bound_per_unit > 0 for layer in certificate.layers)
    assert any("at this sharpness" in item for item in certificate.not_covered)
    assert made[0].encoding.sharpness.tolist() == pytest.approx([2.0] * 9)


def test_a_wrong_layer_fails_the_certificate(monkeypatch):
    """The negative control: a leak of 1e-5 in one layer of three is seen end to end."""
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 1))
    forward = RelativeAttention.forward

    def leaking(self, x):
        y = forward(self, x)
        return y + 1e-5 * y.mean() if self.num_heads == 1 else y

    monkeypatch.setattr(RelativeAttention2d, "forward", leaking)
    _, certificate = network_to_attention(network, images=images(2, 3, 9, 11))
    assert not certificate.passed
    assert "FAILED" in certificate.summary()


def test_a_network_that_refuses_float64_is_held_against_itself():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            if x.dtype == torch.float64:
                raise RuntimeError("only single precision")
            return self.conv(x)

    _, certificate = network_to_attention(Single(), images=images(2, 3, 7, 9))
    assert certificate.passed
    assert certificate.reference == "float32"
    assert any(item.startswith("float64: the network does not run in it") for item in certificate.not_covered)


def test_without_images_one_is_drawn_in_the_size_of_the_network():
    network = nn.Sequential(nn.Conv2d(2, 4, 3))
    network.default_cfg = {"input_size": (2, 9, 11)}
    _, certificate = network_to_attention(network)
    assert certificate.passed
    assert certificate.shapes == ((1, 2, 9, 11),)
    assert certificate.images == "one standard normal image (1, 2, 9, 11), seed 0"


def test_the_certificate_is_saved_and_loaded(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), spectral(nn.Conv2d(4, 5, 1)))
    _, certificate = network_to_attention(network, images=images(2, 3, 7, 9), exclude="0")
    path = certificate.save(tmp_path / "certificate.json")
    assert NetworkCertificate.load(path) == certificate
    with pytest.raises(CheckpointError, match="not a NetworkCertificate of schema version 1"):
        NetworkCertificate.from_json(certificate.to_json().replace('"schema_version": 1', '"schema_version": 9', 1))
    summary = certificate.summary()
    assert summary.startswith("network to attention: passed (exact, 1 layers, 1 heads, float32)")
    assert "  note            its weight is computed by SpectralNorm; what that gave was converted (1)" in summary


def test_a_converted_network_learns_as_the_convolutions_did():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    made, _ = converted(network, images(2, 3, 9, 11))
    x = images(2, 3, 9, 11)
    network(x).square().sum().backward()
    made(x).square().sum().backward()
    double = copy.deepcopy(network).double()
    double.zero_grad()
    double(x.double()).square().sum().backward()
    for i in (0, 2):
        gradient = made[i].values.weight.grad.movedim(0, -1).unflatten(-1, (3, 3))
        assert_within_budget(gradient, double[i].weight.grad, network[i].weight.grad, "gradient")


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_arguments():
    network, x = nn.Sequential(nn.Conv2d(3, 4, 3)), images(1, 3, 7, 9)
    before = fingerprint(network)
    with pytest.raises(ArgumentError, match=r"model must be an nn\.Module, but is 3"):
        network_to_attention(3)
    with pytest.raises(ArgumentError, match=r'impl must be "auto" with content, .*, but is .separable'):
        network_to_attention(network, content=True, impl="separable", images=x)
    with pytest.raises(ArgumentError, match="content must be True, False or a Content, but is 'yes'"):
        network_to_attention(network, content="yes", images=x)
    with pytest.raises(UnknownNameError, match="unknown impl 'separabel': did you mean 'separable'"):
        network_to_attention(network, impl="separabel", images=x)
    with pytest.raises(ArgumentError, match="sharpness must be a positive finite number, but is -1"):
        network_to_attention(network, sharpness=-1, images=x)
    with pytest.raises(ArgumentError, match="exclude must be a pattern of names, or several, but is 3"):
        network_to_attention(network, exclude=3, images=x)
    with pytest.raises(ArgumentError, match="images must be what the network takes, but on the images given it raised"):
        network_to_attention(network, images=images(1, 5, 7, 9))
    with pytest.raises(ConversionError, match="there is no convolution to convert in Linear"):
        network_to_attention(nn.Linear(2, 3), images=x)
    with pytest.raises(ConversionError, match="there is no convolution to convert in Sequential"):
        network_to_attention(network, exclude="*", images=x)
    assert_unchanged(network, before)
