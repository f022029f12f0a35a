"""Torch against torch: faults are found and named, right conversions pass."""

import copy
import re

import numpy as np
import pytest
import torch
from tests.convert.certify.certify_cases import (
    FAULTS,
    RIGHT,
    Finds,
    change_weight,
    classifier,
    damaged,
)
from torch import nn

from convattn import certify
from convattn.convert.foreign_check import AgreementCertificate
from convattn.errors import ArgumentError, ConversionError


@pytest.fixture(scope="module")
def case():
    return classifier()


@pytest.mark.parametrize(("fault", "layer"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_and_named(case, fault, layer):
    network, images = case
    certificate = certify(network, damaged(network, fault), images)
    assert certificate.verdict in ("close", "different")
    assert certificate.first == layer
    assert f"The first layer outside its tolerance is {layer}: off by " in certificate.summary()


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_a_right_conversion_is_exact(case, make):
    network, images = case
    certificate = certify(network, make(copy.deepcopy(network)), images)
    assert certificate.verdict == "exact", certificate.summary()
    assert (certificate.decisions, certificate.changed, certificate.first) == (9, 0, None)
    assert certificate.measured_error <= certificate.rounding < 1e-5 * certificate.largest


@pytest.mark.slow
def test_a_compiled_network_is_exact_and_its_layers_have_no_names(case):
    network, images = case
    certificate = certify(network, torch.compile(copy.deepcopy(network).train()), images)
    assert certificate.verdict == "exact", certificate.summary()
    assert (
        "where a difference begins: no layer could be matched by its name"
        in certificate.not_covered
    )


def test_parameters_of_whole_numbers_stay_as_they_are(case):
    network, images = case
    counting = copy.deepcopy(network)
    counting.steps = nn.Parameter(torch.tensor(7), requires_grad=False)
    assert certify(counting, copy.deepcopy(counting), images).verdict == "exact"


def test_neither_network_is_changed(case):
    network, images = case
    other = copy.deepcopy(network).train()
    before = [
        x.clone() for x in (images, *network.state_dict().values(), *other.state_dict().values())
    ]
    certify(network, other, images)
    after = [images, *network.state_dict().values(), *other.state_dict().values()]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert other.training
    assert not any(part._forward_hooks for part in (*network.modules(), *other.modules()))


def test_the_order_of_summation_is_no_fault(case):
    network, images = case
    order = torch.randperm(11)
    other = copy.deepcopy(network)
    other.mix.weight.data, other.qkv.weight.data[22:] = (
        network.mix.weight.data[:, order],
        network.qkv.weight[22:][order],
    )
    other.qkv.bias.data[22:] = network.qkv.bias.data[22:][order]
    certificate = certify(network, other, images)
    assert certificate.verdict != "exact"  # the layer before computes the channels in another order
    assert certificate.first == "qkv"
    assert certificate.measured_error <= certificate.rounding


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_and_not_exact(case, dtype):
    network, images = case
    certificate = certify(network, copy.deepcopy(network).to(dtype), images, tolerance=0.1)
    assert certificate.verdict in ("close", "different")
    assert certificate.first == "stem.0"


@pytest.mark.filterwarnings("ignore")
def test_what_is_quantised_is_never_exact(case):
    network, images = case
    other = torch.ao.quantization.quantize_dynamic(
        copy.deepcopy(network), {nn.Linear}, dtype=torch.qint8
    )
    certificate = certify(network, other, images, tolerance=0.5)
    assert certificate.quantised
    assert certificate.verdict in ("close", "different")
    low, high = certificate.interval
    assert 0 < low < (9 - certificate.changed) / 9 <= high <= 1
    assert "It is quantised, so nothing is called exact." in certificate.summary()


def scores(*rows):
    """A network that adds its weights to zeros, and a function that returns other scores."""
    network = nn.Linear(3, 4, bias=False).eval()
    network.weight.data = torch.zeros(4, 3)
    network.weight.data[0], network.weight.data[1] = 1, 1 - 1e-9
    return network, lambda _: np.array(rows, dtype=np.float32)


def test_ties_within_rounding_are_no_changed_decisions():
    network, function = scores([2.9999998, 3, 0, 0], [3, 3, 0, 0])
    certificate = certify(network, function, torch.ones(2, 3))
    assert (certificate.verdict, certificate.changed, certificate.ties) == ("exact", 0, 1)
    assert (
        "2 of 2 decisions agree, 1 of them as ties within rounding: 34.2% to 100.0%"
        in certificate.summary()
    )


def test_a_changed_decision_is_never_close():
    network, function = scores([3, 2.9, 0, 0], [2.9, 2.9, 3, 0])
    certificate = certify(network, function, torch.ones(2, 3), tolerance=0.999999)
    assert (certificate.verdict, certificate.decisions, certificate.changed) == ("different", 2, 1)
    assert certificate.interval == pytest.approx((0.0945, 0.9055), abs=1e-4)


def test_nothing_is_close_on_random_numbers_or_without_a_limit(case):
    network, images = case
    other = damaged(network, change_weight)
    assert certify(network, other, images).verdict == "close"
    assert certify(network, other, images, tolerance=None).verdict == "different"
    small, changed = nn.Conv2d(3, 2, 3), nn.Conv2d(3, 2, 3)
    changed.load_state_dict({name: x * 1.0001 for name, x in small.state_dict().items()})
    certificate = certify(small, changed)
    assert (certificate.verdict, certificate.tolerance) == ("different", None)
    assert certificate.images.startswith("one standard normal image (1, 3, 224, 224)")


WRONG = {
    "not finite": (np.full((9, 7), np.nan, np.float32), r"Infinity|nan"),
    "another shape": (
        np.zeros((9, 6), np.float32),
        r"are \[\(9, 6\)\], of the source \[\(9, 7\)\]",
    ),
    "one output too many": (
        (np.zeros((9, 7), np.float32),) * 2,
        r"are \[\(9, 7\), \(9, 7\)\], of the source",
    ),
    "no output": (None, r"are \[\], of the source \[\(9, 7\)\]"),
}


@pytest.mark.parametrize(("output", "message"), WRONG.values(), ids=WRONG)
def test_outputs_that_cannot_be_compared_fail(case, output, message):
    certificate = certify(case[0], lambda _: output, case[1])
    assert certificate.verdict == "failed"
    assert not certificate.passed
    assert re.search(message, certificate.summary())
    assert " of nan" not in certificate.summary()


def test_what_does_not_run_says_why(case):
    network, images = case

    def refuse(x):
        raise RuntimeError("no memory for this")

    with pytest.raises(
        ConversionError, match=r"^other does not run: RuntimeError: no memory for this"
    ):
        certify(network, refuse, images)
    with pytest.raises(ArgumentError, match="images must fit the network"):
        certify(network, refuse, images[:, :2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lambda x: x, lambda x: x), "reference must be an nn.Module"),
        ((nn.Identity(), 3), "other must be a module, a function or"),
        (
            (nn.Identity(), "nowhere.onnx"),
            r"must be a file of the kind .onnx or .xml that exists, but is 'nowhere.onnx'",
        ),
        ((nn.Identity(), __file__), "must be a file of the kind .onnx or .xml that exists"),
    ],
)
def test_wrong_arguments_are_named(without_type_checks, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        certify(*arguments, torch.zeros(1, 3))


def test_a_runtime_needs_a_file(case):
    with pytest.raises(ArgumentError, match="with a runtime or options, a file"):
        certify(case[0], case[0], case[1], runtime="openvino")


def test_the_record_is_read_back(case, tmp_path):
    certificate = certify(case[0], damaged(case[0], change_weight), case[1])
    assert AgreementCertificate.load(certificate.save(tmp_path / "certificate.json")) == certificate


class FindsNothing(Finds):
    """Gives the boxes alone."""

    def forward(self, x):
        return super().forward(x)["boxes"]


def test_where_neither_outputs_nor_layers_can_be_compared_there_is_no_verdict():
    network, x = FindsNothing().eval(), torch.ones(2, 3, 5, 5)
    assert certify(network, network, x).verdict == "exact"
    with pytest.raises(ArgumentError, match="images must lead to something to compare"):
        certify(network, lambda images: images[:0, :, 0, 0], x)


def test_numbers_are_of_the_output_that_decides():
    """Of a channel that is 3 % off, not of one that is 0.4 % off, which rounding explains even less."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(9, 2, generator=generator)
    x = torch.cat([x, x + 0.01 * torch.randn(9, 2, generator=generator)], 1)
    reference = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        reference.weight.copy_(torch.tensor([[1.0] * 4, [1e4, 1e4, -1e4, -1e4]]))
        other = copy.deepcopy(reference)
        other.weight.mul_(torch.tensor([[1.004], [1.03]]))
    certificate = certify(reference, other, x)
    assert certificate.verdict == "different"
    assert certificate.measured_error / certificate.largest == pytest.approx(0.03, rel=1e-2)
    assert "The output nearest to its limit is off by" in certificate.summary()
