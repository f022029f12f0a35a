"""Networks that cannot be converted, or not as they are: a clear error, and the network as it was."""

import copy
import threading
import warnings

import pytest
import torch
from tests.convert.network.network_cases import (
    Called,
    assert_unchanged,
    fingerprint,
    images,
    unchanged,
)
from torch import nn
from torch.ao import quantization

from convattn import conv_to_attention, network_to_attention, network_to_conv
from convattn.errors import ConversionError, UnsupportedModelError


def replaced_on_the_instance():
    conv = nn.Conv2d(3, 4, 3)
    conv.forward = lambda x: x
    return conv


# Once, as this file is read: torch knows its own functions by `id`, keeps the `id` of one that
# is gone, and then refuses a convolution whose list of paddings was put in the same place.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says that there are better ways now
    SCRIPTED = torch.jit.script(nn.Conv2d(3, 4, 3))


REFUSED = {
    "instance": (replaced_on_the_instance(), "the images reach no convolution in it"),
    "lazy": (nn.LazyConv2d(4, 3), "it is lazy and not initialised; run the network once first"),
    "lazy norm": (
        nn.LazyBatchNorm2d(),
        "it is lazy and not initialised; run the network once first",
    ),
    "scripted": (SCRIPTED, "it is compiled by TorchScript"),
    "meta elsewhere": (
        nn.BatchNorm2d(4, device="meta"),
        "its weight is on the meta device and has no values",
    ),
}


@pytest.mark.parametrize(("module", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name_with_the_reason(module, reason):
    network, x = nn.Sequential(nn.Sequential(module)), images(1, 3, 7, 9)
    with unchanged(network, x), pytest.raises(UnsupportedModelError, match=reason) as caught:
        network_to_attention(network, images=x)
    assert "  0.0 (" in str(caught.value)


def test_all_refused_modules_are_named_at_once():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyConv2d(4, 3), nn.ReLU(), nn.LazyConv2d(4, 3))
    before = fingerprint(network)
    with pytest.raises(UnsupportedModelError) as caught:
        network_to_attention(network, images=images(1, 3, 9, 11))
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "cannot convert 2 modules of Sequential; leave them out with `exclude`, or replace them:"
    )
    assert [line.partition(":")[0] for line in lines[1:]] == ["  1, 3 (LazyConv2d)"]
    assert_unchanged(network, before)


def test_a_refused_module_can_be_left_out():
    network = nn.Sequential(nn.Conv2d(3, 3, 3), replaced_on_the_instance())
    made, certificate = network_to_attention(network, exclude="1", images=images(1, 3, 9, 11))
    assert certificate.passed
    assert type(made[1]) is nn.Conv2d
    assert [(item.name, item.kind) for item in certificate.left_alone] == [("1", "Conv2d")]


def test_a_parametrisation_that_is_not_torchs_own_is_converted_by_what_it_computes():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight + weight.mT

    network = nn.Sequential(nn.Conv2d(3, 4, 3))
    nn.utils.parametrize.register_parametrization(network[0], "weight", Symmetric())
    x = images(1, 3, 7, 9)
    made, certificate = network_to_attention(network, images=x)
    assert certificate.passed
    assert torch.equal(made[0].weight, network[0].weight)
    assert certificate.layers[0].notes == ("its weight is computed in each call, as before",)


def statically_quantised(network, x):
    torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
    network.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
    prepared = quantization.prepare(network.eval())
    prepared(x)
    return quantization.convert(prepared)


def made_for_quantising(network, _):
    network.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    return quantization.prepare_qat(network.train())


@pytest.mark.filterwarnings("ignore")  # torch announces that its own quantisation moves elsewhere
@pytest.mark.parametrize("quantise", [statically_quantised, made_for_quantising])
def test_quantised_convolutions_are_refused(quantise):
    x = images(1, 3, 7, 9)
    network = quantise(
        nn.Sequential(quantization.QuantStub(), nn.Conv2d(3, 4, 3), quantization.DeQuantStub()), x
    )
    with (
        unchanged(network, x),
        pytest.raises(
            UnsupportedModelError,
            match=r"1 \(Conv2d\): it is quantised; convert the network before quanti",
        ),
    ):
        network_to_attention(network, images=x)


@pytest.mark.filterwarnings("ignore")
def test_quantised_layers_beside_convolutions_stay():
    network, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(140, 3)),
        images(1, 3, 7, 9),
    )
    network = quantization.quantize_dynamic(network, {nn.Linear})
    with unchanged(network, x):
        made, certificate = network_to_attention(network, images=x)
    assert certificate.passed
    assert type(made[2]) is type(network[2])
    assert certificate.reference == "float32"
    assert any(
        item.startswith("float64: the network does not run in it")
        for item in certificate.not_covered
    )


def test_compiled_networks_are_refused():
    network = torch.compile(nn.Sequential(nn.Conv2d(3, 4, 3)))
    with (
        unchanged(network),
        pytest.raises(UnsupportedModelError, match=r"network itself \(OptimizedModule\): it is co"),
    ):
        network_to_attention(network, images=images(1, 3, 7, 9))


def test_networks_compiled_in_place_are_converted():
    network = nn.Sequential(nn.Conv2d(3, 4, 3))
    network.compile()
    with unchanged(network):
        made, certificate = network_to_attention(network, images=images(1, 3, 7, 9))
    assert certificate.passed
    assert made._compiled_call_impl is None


def test_a_network_that_cannot_be_copied_is_refused():
    network = nn.Sequential(nn.Conv2d(3, 4, 3))
    network.lock = threading.Lock()
    with pytest.raises(
        UnsupportedModelError, match=r"cannot copy Sequential: cannot pickle '_thread\.lock' object"
    ):
        network_to_attention(network, images=images(1, 3, 7, 9))


def test_a_network_that_asks_for_more_than_a_weight_is_refused():
    asks = Called(nn.Conv2d(3, 4, 3), lambda conv, x: conv(x) * conv.output_padding[0])
    with pytest.raises(
        ConversionError,
        match=r"the converted network does not run: AttributeError: .*output_padding",
    ):
        network_to_attention(asks, images=images(1, 3, 7, 9))


def test_a_network_may_ask_for_the_weight():
    def ask(conv, x):
        weight = conv.weight
        return conv(x.to(weight.dtype)) * weight.sum((1, 2, 3))[:, None, None]

    network = Called(nn.Conv2d(3, 4, (2, 3)), ask)
    made, certificate = network_to_attention(network, images=images(1, 3, 7, 9))
    assert certificate.passed
    assert torch.equal(made.layer.weight, network.layer.weight)


def test_weights_that_were_made_in_inference_mode_are_named():
    with torch.inference_mode():
        network = nn.Sequential(nn.Conv2d(3, 4, 3))
        x = images(1, 3, 7, 9)
        assert network_to_attention(network, images=x)[1].verdict == "exact"
    reason = (
        r"its weight was made in torch\.inference_mode and cannot learn; convert a copy\.deepcopy"
    )
    for convert, model in ((network_to_attention, network), (conv_to_attention, network[0])):
        with pytest.raises(UnsupportedModelError, match=reason):
            convert(model)
    x = images(1, 3, 7, 9)
    assert network_to_attention(copy.deepcopy(network), images=x)[1].verdict == "exact"


def test_of_many_modules_that_are_refused_a_few_are_named():
    network = nn.Sequential(*(nn.LazyConv2d(3, 3) for _ in range(70)))
    with pytest.raises(UnsupportedModelError, match="cannot convert 70 modules") as raised:
        network_to_attention(network)
    _, line = str(raised.value).splitlines()
    assert line.startswith("  0, 1, 2 and 67 more (LazyConv2d): it is lazy")


def test_a_scripted_part_can_be_left_out():
    network = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Sequential(SCRIPTED), nn.Conv2d(4, 3, 1))
    x = images(2, 3, 7, 9)
    for choice in ({"exclude": "1.0"}, {"include": ["0", "2"]}):
        made, certificate = network_to_attention(network, images=x, **choice)
        assert certificate.verdict == "exact"
        assert [left.name for left in certificate.left_alone] == ["1.0"]
    assert network_to_conv(made, images=x)[1].verdict == "exact"
