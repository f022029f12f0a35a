import pytest
import torch
from tests.models.network_cases import small_images
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from convattn.budget import assert_within_budget, references, roundings
from convattn.encodings import Quadratic, Shift
from convattn.encodings.quadratic import grid_centres
from convattn.errors import ArgumentError, ShapeError, UnknownNameError
from convattn.lab.speed_net import SpeedNet
from convattn.layers import RelativeAttention2d

MIXINGS = ("attention", "conv", "hard", "random", "random-frozen", "content")
SIZES = {"widths": (26, 5), "num_classes": 7}


def drawn(mixing, **options):
    torch.manual_seed(0)
    return SpeedNet(mixing, **{**SIZES, **options}).eval()


def layers(network):
    return [layer for stage in network.stages for layer in (stage.first, stage.second)]


def trainable(network):
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def test_parameter_counts_are_those_of_the_convolutional_network():
    shared = 24 + 9 * (24 * 64 + 64**2 + 64 * 256 + 3 * 256**2) + 2 * (64 + 256 + 256) + 2560
    with torch.device("meta"):
        found = {mixing: trainable(SpeedNet(mixing)) for mixing in MIXINGS}
    assert shared == 1_971_352
    assert found["conv"] == found["hard"] == found["random-frozen"] == shared
    assert found["attention"] == found["random"] == shared + 6 * 27 == 1_971_514
    queries_and_keys = 2 * 9 * (64 * 7 * 2 + 256 * 28 * 3)
    assert found["content"] == shared + 6 * 27 + 5 * 9 + queries_and_keys


@pytest.mark.parametrize("mixing", [mixing for mixing in MIXINGS if mixing != "conv"])
def test_pixels_are_mixed_by_attention_alone(mixing):
    network = drawn(mixing)
    mixing_layers = [network.stem, *layers(network)]
    assert all(isinstance(layer, RelativeAttention2d) for layer in mixing_layers)
    assert not [
        module for module in network.modules() if isinstance(module, nn.modules.conv._ConvNd)
    ]


def test_names_say_what_learns():
    for mixing, learns in {
        "attention": True,
        "random": True,
        "random-frozen": False,
        "content": True,
    }.items():
        for layer in layers(drawn(mixing, sharpness=2.5)):
            assert isinstance(layer.encoding, Quadratic)
            assert {parameter.requires_grad for parameter in layer.encoding.parameters()} == {
                learns
            }
            centres = list(map(tuple, layer.encoding.centres.tolist()))
            assert (centres == grid_centres(9)) is not mixing.startswith("random")
            assert torch.equal(layer.encoding.root_sharpness, torch.full((9,), 5**0.5))
    assert all(isinstance(layer.encoding, Shift) for layer in layers(drawn("hard")))
    assert all(isinstance(layer, nn.Conv2d) for layer in layers(drawn("conv")))


@pytest.mark.parametrize("mixing", MIXINGS)
def test_first_outputs_copy_the_inputs(mixing):
    for layer in layers(drawn(mixing)):
        copied = min(layer.in_channels, layer.out_channels)
        maps = layer.weight.flatten(2).movedim(-1, 0) if mixing == "conv" else layer.values.maps()
        nearest = 4
        if mixing.startswith("random"):
            nearest = min(
                range(9),
                key=lambda head: sum(value**2 for value in layer.encoding.centres[head].tolist()),
            )
        expected = torch.zeros(9, copied, layer.in_channels)
        expected[nearest] = torch.eye(copied, layer.in_channels)
        assert torch.equal(maps[:, :copied], expected)
        if layer.out_channels > copied:
            assert maps[:, copied:].abs().min() > 0


def test_content_starts_closed_and_leaves_out_the_largest_image():
    network, plain = drawn("content"), drawn("attention")
    first, *others = layers(network)
    assert type(first) is RelativeAttention2d
    assert first.content is None
    assert all(layer.gate_kind == "tanh" and not layer.gate.any() for layer in others)
    missing, _ = plain.load_state_dict(network.state_dict(), strict=False)
    assert not missing
    with torch.no_grad():
        assert torch.equal(network(small_images()), plain(small_images()))


@pytest.mark.parametrize("mixing", ["hard", "conv"])
@pytest.mark.parametrize("patch", [1, 2, 3])
def test_stem_maps_whitened_patches(patch, mixing):
    network, images = drawn(mixing, patch=patch), small_images()
    network.whiten(images)
    stem = network.stem
    assert {name for name, one in stem.named_parameters() if one.requires_grad} == {"bias"}
    if mixing == "hard":
        assert isinstance(stem.encoding, Shift)
        assert stem.num_heads == patch**2
        stem.impl = "reference"

    def mapped(stem, images):
        patches = F.unfold(images, patch)
        outputs = stem.weight.flatten(1) @ patches + stem.bias[:, None]
        return outputs.unflatten(2, stem(images).shape[2:])

    assert_within_budget(stem(images), *references(mapped, stem, images))
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(stem(images * 1.00001), *references(mapped, stem, images))


def test_stem_uses_up_as_many_random_numbers_as_its_bias():
    hard, conv = drawn("hard"), drawn("conv")
    assert torch.equal(hard.head.weight, conv.head.weight)
    torch.manual_seed(0)
    assert torch.equal(hard.stem.bias, torch.empty(24).uniform_(-(12**-0.5), 12**-0.5))


def test_whitened_patches_vary_as_much_in_every_direction():
    network = SpeedNet(widths=[2], in_channels=2)
    images = small_images(channels=2) * torch.tensor([1.0, 3.0])[:, None, None]
    assert torch.equal(network.stem.weight[:8].flatten(1), torch.eye(8))
    network.whiten(images)
    rows = network.stem.weight.flatten(1)
    patches = F.unfold(images.double(), 2).movedim(1, -1).flatten(0, 1)
    products = patches.T @ patches / len(patches)
    assert torch.equal(rows[8:], -rows[:8])
    _, lengths, directions = torch.linalg.svd(patches / len(patches) ** 0.5, full_matrices=False)
    variances = lengths.flip(0).square()
    hi = torch.diag(variances / (variances + 5e-4))

    def variation(half):
        return (half.double() @ products @ half.T.double()).float()

    lows = roundings(variation, (directions.flip(0) / (variances + 5e-4).sqrt()[:, None]).float())
    assert_within_budget(variation(rows[:8]), hi, lows)
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(variation(rows[:8] * (1 + 1e-5)), hi, lows)


@pytest.mark.parametrize("size", [9, 14])
@pytest.mark.parametrize("patch", [1, 2])
def test_operations_are_those_that_pytorch_counts(size, patch):
    network = drawn("conv", patch=patch)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, size, size))
    assert (
        network.flops(size).total
        == drawn("hard", patch=patch).flops(size).total
        == counter.get_total_flops()
    )


def test_operations_of_attention_are_the_convolutions_and_a_weight_for_each_pair():
    with torch.device("meta"):
        conv, attention, content = (
            SpeedNet(mixing).flops() for mixing in ("conv", "attention", "content")
        )
    assert attention.linear == conv.total == conv.linear == 236_294_720
    per_pair = {31: 24, 15: 64 + 64, 7: 256 + 256, 3: 256}
    assert (
        attention.mixing
        == content.mixing
        == sum(2 * side**4 * 9 * width for side, width in per_pair.items())
    )
    assert content.content_scores == 2 * 9 * (2 * 15**4 * 7 + 7**4 * (28 + 28) + 3**4 * 28)


def test_scores_are_divided_and_come_from_the_largest_values():
    network = drawn("attention")
    with torch.no_grad():
        images = torch.randn(2, 3, 21, 21)
        features = network.stages(F.gelu(network.stem(images)))
        assert features.shape == (2, 5, 5, 5)
        assert torch.equal(network(images), network.head(features.flatten(2).max(dim=2).values) / 9)


@pytest.mark.parametrize("shape", [(1, 3, 4, 9), (1, 3, 9, 4), (1, 2, 9, 9)])
def test_images_that_do_not_fit_are_refused(shape):
    with pytest.raises(
        ShapeError, match=r"images must be of shape \(batch, 3, rows, cols\) with at least 5 rows"
    ):
        drawn("attention")(torch.zeros(shape))
    assert drawn("attention")(torch.zeros(1, 3, 5, 6)).shape == (1, 7)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mixing": "convs"}, UnknownNameError, "unknown mixing 'convs': did you mean 'conv'"),
        (
            {"widths": 8},
            ArgumentError,
            "widths must be the channels of one stage or more, but is 8",
        ),
        (
            {"widths": ()},
            ArgumentError,
            r"widths must be the channels of one stage or more, but is \(\)",
        ),
        ({"widths": (8, 0)}, ArgumentError, "widths must be an integer of at least 1, but is 0"),
        ({"num_classes": 0}, ArgumentError, "num_classes must be an integer of at least 1"),
        ({"in_channels": 0}, ArgumentError, "in_channels must be an integer of at least 1"),
        ({"patch": 0}, ArgumentError, "patch must be an integer of at least 1"),
        ({"sharpness": 0.0}, ArgumentError, "sharpness must be a positive finite number"),
    ],
)
def test_wrong_arguments_are_named(options, error, message, without_type_checks):
    with pytest.raises(error, match=message):
        SpeedNet(**options)
