"""Whole networks: what the certificate of a conversion says, and that it does not pass where it must not."""

import pytest
import torch
from tests.convert.network.network_cases import (
    Called,
    Functional,
    Results,
    converted,
    images,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from convattn import certify, network_to_attention, network_to_conv
from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention, RelativeAttention2d


def test_a_convolution_called_as_a_function_is_converted():
    made, certificate = converted(Functional(), images(1, 3, 7, 9))
    assert type(made.module.after) is type(made.layers[0]) is RelativeAttention2d
    assert [(layer.name, layer.call) for layer in certificate.layers] == [("", 1), ("after", 0)]
    assert certificate.left_alone == ()


def test_images_are_taken_by_position_and_one_batch_of_a_loader(without_type_checks):
    network, x = nn.Sequential(nn.Conv2d(3, 5, 3)), images(2, 3, 7, 9)
    attention, certificate = network_to_attention(network, x)
    assert certificate.shapes == ((2, 3, 7, 9),)
    _, certificate = network_to_conv(attention, x)
    assert certificate.shapes == ((2, 3, 7, 9),)
    loader = DataLoader(TensorDataset(x, torch.arange(2)), batch_size=2)
    with pytest.raises(
        ArgumentError, match=r"DataLoader: give one batch of the loader, as next\(iter\(loader"
    ):
        network_to_attention(network, loader)
    assert network_to_attention(network, next(iter(loader))[0])[1].passed


def test_a_layer_that_the_images_do_not_reach_has_no_path():
    two = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1)])
    half = Called(two, lambda layers, x: layers[0](x))
    _, certificate = converted(half, images(1, 3, 7, 9))
    assert [layer.path for layer in certificate.layers] == ["shift", None]


def test_nested_results_and_named_arguments():
    network = Results()
    _, certificate = network_to_attention(network, images={"x": images(2, 3, 7, 9), "scale": 2.0})
    assert certificate.passed
    assert certificate.shapes == ((2, 3, 7, 9),)
    assert certificate.top1_total is None


@pytest.mark.parametrize("sharpness", [None, 0.25])
def test_top1_is_counted_where_there_are_scores(sharpness):
    """Heads that look everywhere change classes, hard ones do not."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = images(23, 3, 7, 9)
    with torch.no_grad():
        made, certificate = network_to_attention(network, sharpness=sharpness, images=x)
        changed = (network(x).argmax(1) != made(x).argmax(1)).sum()
    assert (certificate.top1_total, certificate.top1_changed) == (23, changed)
    assert (changed > 0) == (sharpness is not None)


def test_an_error_as_large_as_the_output_does_not_pass():
    """The second difference of a ramp is zero but for rounding; heads that look aside see the border."""
    network = nn.Conv2d(1, 1, 3, bias=False)
    network.weight.data = torch.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]])
    _, certificate = network_to_attention(
        network, sharpness=2.0, images=torch.arange(7.0).expand(1, 1, 5, 7) / 3
    )
    assert all(layer.verdict == "different" for layer in certificate.layers)
    assert certificate.measured_error > certificate.largest
    assert certificate.verdict == "different"


def test_a_wrong_layer_fails_the_certificate(monkeypatch):
    """The negative control: a leak of 1e-5 in one layer of three is seen end to end."""
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 1)
    )
    forward = RelativeAttention.forward

    def leaking(self, x):
        y = forward(self, x)
        return y + 1e-5 * y.std() if self.num_heads == 1 else y

    monkeypatch.setattr(RelativeAttention2d, "forward", leaking)
    _, certificate = network_to_attention(network, images=images(2, 3, 9, 11))
    assert not certificate.passed
    assert "failed" in certificate.summary()


def test_a_network_that_refuses_float64_is_held_against_itself():
    def single(conv, x):
        if x.dtype == torch.float64:
            raise RuntimeError("only single precision")
        return conv(x)

    network = Called(nn.Conv2d(3, 4, 3), single)
    _, certificate = network_to_attention(network, images=images(2, 3, 7, 9))
    assert certificate.passed
    assert certificate.reference == "float32"
    assert any(
        item.startswith("float64: the network does not run in it")
        for item in certificate.not_covered
    )


def test_a_network_that_returns_sparse_tensors_is_compared():
    network = Called(nn.Conv2d(3, 4, 3), lambda conv, x: conv(x).relu().to_sparse())
    x = images(67, 3, 5, 4)  # more than run at once
    made, there = network_to_attention(network, images=x)
    back = network_to_conv(made, images=x)[1]
    assert there.passed
    assert back.passed
    assert 0 < there.largest <= network(x).to_dense().max().item()


def test_without_images_one_is_drawn_in_the_size_of_the_network():
    network = nn.Sequential(nn.Conv2d(2, 4, 3))
    network.default_cfg = {"input_size": (2, 9, 11)}
    _, certificate = network_to_attention(network)
    assert certificate.passed
    assert certificate.shapes == ((1, 2, 9, 11),)
    assert certificate.images == "one standard normal image (1, 2, 9, 11), seed 0"


@pytest.mark.parametrize("shown", [lambda y: y.argmax(1), torch.zeros_like], ids=["class", "zero"])
def test_a_network_that_returns_no_numbers_is_judged_by_its_layers(shown):
    network = Called(nn.Conv2d(3, 4, 3), lambda conv, x: shown(conv(x)))
    made, certificate = network_to_attention(network, images=images(2, 3, 7, 9))
    assert certificate.verdict == "exact"
    why = "it returns no floating-point number other than 0"
    note = f"the network as a whole: {why}, so its layers were compared, in float32"
    assert note in certificate.not_covered
    assert "measured error" not in certificate.summary()
    with torch.no_grad():
        made.layer.values.weight[0, 0, 0] += 1e-3  # too little to change a class
    certificate = certify(network, made, images(2, 3, 7, 9))
    assert (certificate.verdict, certificate.first) == ("different", "layer")
    assert (certificate.measured_error, certificate.rounding) == (0.0, 0.0)


def test_images_of_several_batches_are_compared_together_and_scalars_by_batch(monkeypatch):
    monkeypatch.setattr("convattn.convert.network_check._BATCH", 3)
    seen = []  # outside the network, as copies of it run

    def scored(conv, x):
        seen.append(len(x))
        y = conv(x).mean((2, 3))
        return y, y.sum()

    network = Called(nn.Conv2d(3, 5, 3), scored)
    _, certificate = network_to_attention(network, images=images(7, 3, 7, 9))
    assert certificate.passed
    assert set(seen[2:]) == {3, 1}  # behind what finds the convolutions
    assert (certificate.top1_total, certificate.top1_changed) == (7, 0)
    assert certificate.shapes == ((7, 3, 7, 9),)


def test_hooks_on_saving_are_said_to_be_lost():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3))
    network[1].register_state_dict_pre_hook(lambda *_: None)
    _, certificate = converted(network, images(1, 3, 7, 9))
    assert [layer.notes for layer in certificate.layers] == [
        (),
        ("its hooks on loading and saving were not kept",),
    ]


def test_another_part_fails_and_is_named():
    def labelled(conv, x):
        return {"scores": conv(x).mean((2, 3)), "label": [0, int(isinstance(conv, nn.Conv2d))]}

    network = Called(nn.Conv2d(3, 4, 3), labelled)
    made, certificate = network_to_attention(network, images=images(3, 3, 7, 9))
    assert certificate.exact
    assert not certificate.passed
    told = [item for item in certificate.not_covered if item.startswith("the output['label'][1]")]
    assert told[0].endswith(": not that of the source")
    assert not network_to_conv(made, images=images(3, 3, 7, 9))[1].passed


@pytest.mark.parametrize("planted", [False, True])
def test_labels_that_hang_on_the_last_digit_do_not_fail(planted):
    """In bfloat16 some of the pixels have two scores nearly alike; a fault of all labels is found."""

    class Labelled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 11, 3)

        def forward(self, x):
            labels = self.conv(x).argmax(1)
            return labels + 1 if planted and not isinstance(self.conv, nn.Conv2d) else labels

    torch.manual_seed(0)
    network = Labelled().to(torch.bfloat16)
    x = images(4, 3, 61, 67, dtype=torch.bfloat16)
    _, certificate = network_to_attention(network, impl="separable", images=x)
    assert certificate.passed != planted
    assert any(
        item.startswith("the output: rounding, random numbers or kept state")
        for item in certificate.not_covered
    )
