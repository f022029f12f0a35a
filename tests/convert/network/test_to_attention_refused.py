"""Networks that cannot be converted, or not as they are: a clear error, and the network as it was."""

import re
import threading
import warnings

import pytest
import torch
from tests.convert.network.network_cases import (
    Computed,
    Doubled,
    DoubledInside,
    Scaled,
    assert_unchanged,
    fingerprint,
    images,
    unchanged,
)
from torch import nn
from torch.ao import quantization

from convattn import network_to_attention
from convattn.errors import ConversionError, UnsupportedModelError


def replaced_on_the_instance():
    conv = nn.Conv2d(3, 4, 3)
    conv.forward = lambda x: x
    return conv


def without_channels():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there is nothing to initialise
        return nn.Conv2d(3, 0, 3)


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there are better ways now
        return torch.jit.script(nn.Conv2d(3, 4, 3))


class Marked(torch.Tensor):
    """A tensor of a subclass, as quantising libraries use."""


def with_a_tensor_of_a_subclass():
    conv = nn.Conv2d(3, 4, 3)
    conv.weight = nn.Parameter(conv.weight.detach().as_subclass(Marked))
    return conv


def held_as(name, hold):
    conv = nn.Conv2d(3, 4, 3)
    tensor = getattr(conv, name).detach()
    delattr(conv, name)
    hold(conv, name, tensor)
    return conv


def padded_otherwise():
    conv = nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="reflect")
    conv.padding = (2, 1)
    return conv


REFUSED = {
    "padding": (
        padded_otherwise(),
        "its padding was changed after it was made, and torch still pads as before",
    ),
    "override": (
        Doubled(3, 4, 3),
        r"\(Doubled\): .*network_cases\.Doubled is a subclass of Conv2d that defines forward",
    ),
    "inside": (
        DoubledInside(3, 4, 3),
        r"DoubledInside is a subclass of Conv2d that defines _conv_forward",
    ),
    "property": (Computed(3, 4, 3), r"Computed is a subclass of Conv2d that defines __getattr__"),
    "more": (Scaled(3, 4, 3), "it holds more than a weight and a bias: scale"),
    "instance": (replaced_on_the_instance(), "its method forward was replaced on the instance"),
    "lazy": (nn.LazyConv2d(4, 3), "it is lazy and not initialised; run the network once first"),
    "lazy norm": (
        nn.LazyBatchNorm2d(),
        "it is lazy and not initialised; run the network once first",
    ),
    "empty": (without_channels(), "it has no channels"),
    "tensor": (with_a_tensor_of_a_subclass(), r"its weight is a .*Marked, not a plain tensor"),
    "scripted": (scripted(), "it is compiled by TorchScript"),
    "meta elsewhere": (
        nn.BatchNorm2d(4, device="meta"),
        "its weight is on the meta device and has no values",
    ),
    "buffer": (
        held_as("weight", nn.Module.register_buffer),
        "its weight is not a parameter; make it one first",
    ),
    "attribute": (held_as("weight", setattr), "its weight is not a parameter; make it one first"),
    "bias as a buffer": (
        held_as("bias", nn.Module.register_buffer),
        "its bias is not a parameter; make it one first",
    ),
}


@pytest.mark.parametrize(("module", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name_with_the_reason(module, reason):
    network, x = nn.Sequential(nn.Sequential(module)), images(1, 3, 7, 9)
    with unchanged(network, x), pytest.raises(UnsupportedModelError, match=reason) as caught:
        network_to_attention(network, images=x)
    assert "  0.0 (" in str(caught.value)


def test_all_refused_modules_are_named_at_once():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), Doubled(4, 4, 3), nn.ReLU(), Scaled(4, 4, 3))
    before = fingerprint(network)
    with pytest.raises(UnsupportedModelError) as caught:
        network_to_attention(network, images=images(1, 3, 9, 11))
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "cannot convert 2 modules of Sequential; leave them out with `exclude`, or replace them:"
    )
    assert [re.match(r"  (\S+) \((\w+)\): ", line).groups() for line in lines[1:]] == [
        ("1", "Doubled"),
        ("3", "Scaled"),
    ]
    assert_unchanged(network, before)


def test_a_refused_module_can_be_left_out():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), Doubled(4, 4, 3))
    made, certificate = network_to_attention(network, exclude="1", images=images(1, 3, 9, 11))
    assert certificate.passed
    assert type(made[1]) is Doubled
    assert [(item.name, item.kind) for item in certificate.left_alone] == [("1", "Doubled")]


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
    assert certificate.layers[0].notes == (
        "its weight is computed by Symmetric; its present value was converted",
    )


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
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x) * self.conv.output_padding[0]

    with pytest.raises(
        ConversionError,
        match=r"the converted network does not run: AttributeError: .*output_padding",
    ):
        network_to_attention(Asks(), images=images(1, 3, 7, 9))


def test_a_network_may_ask_for_the_weight():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, (2, 3))

        def forward(self, x):
            return (
                self.conv(x.to(self.conv.weight.dtype))
                * self.conv.weight.sum((1, 2, 3))[:, None, None]
            )

    network = Asks()
    made, certificate = network_to_attention(network, images=images(1, 3, 7, 9))
    assert certificate.passed
    assert torch.equal(made.conv.weight, network.conv.weight)


def test_results_whose_shape_follows_from_numbers_are_not_passed():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.calls = 0

        def forward(self, x):
            return self.conv(x).flatten()[: 5 if x.dtype == torch.float64 else 7]

    _, certificate = network_to_attention(Kept(), images=images(1, 3, 7, 9))
    assert not certificate.passed
    assert any("shapes of its outputs" in item for item in certificate.not_covered)
