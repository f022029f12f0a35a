"""Values of options that build a network."""

import re

import pytest

from convattn.cli.network_options import NetworkOptions, read_values, require_packages_of
from convattn.errors import ArgumentError, DeviceError, MissingDependencyError

VALUES = {
    "3": 3,
    "[2, 5]": [2, 5],
    "true": True,
    "null": None,
    "avg": "avg",
    "3x": "3x",
    '"3"': "3",
}


def test_values_are_json_or_else_text():
    values = read_values([f"{text}={text}" for text in VALUES], "--set")
    assert values == VALUES
    assert list(map(type, values.values())) == list(map(type, VALUES.values()))


def test_networks_of_several_libraries_need_the_modules_of_all(monkeypatch):
    monkeypatch.setattr("convattn.errors.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"needs pillow, timm, torchvision, which"):
        require_packages_of("timm:a", "torchvision:b", "timmy", view=["PIL"])


def test_a_network_is_moved_to_the_device():
    options = NetworkOptions(random_weights=True, device="meta")
    loaded = options.load("convattn:ConvNet")
    assert next(loaded.network.parameters()).is_meta


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_named(device):
    options = NetworkOptions(random_weights=True, device=device)
    with pytest.raises(DeviceError, match=f"--device {device} cannot be used: "):
        options.load("convattn:ConvNet")


def test_mean_and_std_are_numbers_of_each_channel():
    options = NetworkOptions(random_weights=True, mean=(0.5, 0.25, 0.0), std=(1.0, 0.5, 0.25))
    assert options.load("convattn:ConvNet").colours == ((0.5, 0.25, 0.0), (1.0, 0.5, 0.25))
    for mean, std in (((0.5,), ()), ((0.5,), (1.0, 1.0, 1.0)), ((0.5,), (0.0,))):
        message = re.escape(f", but are {mean} and {std}")
        with pytest.raises(ArgumentError, match=f"--mean and --std must be one number .*{message}"):
            NetworkOptions(random_weights=True, mean=mean, std=std).load("convattn:ConvNet")
