"""Computes on the CPU and on the second device, and prints the largest difference of each case as a line of JSON."""

import copy
import json
import sys
from functools import partial
from itertools import chain

import timm
import torch
from tests.devices.elsewhere import Device, There, on_cpu, put_there, register

from convattn import (
    AttentionNet,
    Content,
    RelativeAttention1d,
    RelativeAttention2d,
    RelativeAttention3d,
    analyze,
    attention_to_conv,
    certify,
    conv_to_attention,
    init_heads_,
    mean_maps,
    network_to_conv,
    replace_heads,
)
from convattn.viewer import Exhibit, build_scene

IMAGES = torch.randn(2, 4, 12, 12, generator=torch.Generator().manual_seed(0))
PICTURES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
ENCODINGS = (
    "quadratic",
    "generalized_quadratic",
    "learned_axial",
    "learned_table",
    "sinusoidal",
    "distance",
    "axial_distance",
    "linear_distance",
    "shift",
)


def gradients(layer, x):
    """Returns the result and the gradients of all that learns, as one vector."""
    y = layer(x)
    learning = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(
        y.square().sum(), learning, allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.flatten() for part in (y, *found)])


def numbers_of_heads(model, x):
    """Returns what the heads of a network look at, and in how far that is a convolution."""
    report = analyze(model, on_its_device(model, x), progress=False)
    heads = [head for layer in report.layers for head in layer.heads]
    found = [
        [head.position_score.value, head.entropy.value, *(axis.value for axis in head.shift)]
        for head in heads
    ]
    controls = [
        head.entropy.value
        for layer in report.layers
        for one in layer.controls.values()
        for head in one.heads
    ]
    return torch.tensor([*chain.from_iterable(found), *controls], dtype=x.dtype)


def on_its_device(model, x):
    return There(on_cpu(x)) if isinstance(next(model.parameters()), There) else x


def replaced(model, x):
    """Heads that run as convolutions, and heads with fixed weights in a layer that runs as it is."""
    report = analyze(model, x, controls=(), progress=False)
    name = report.layers[0].name
    maps = mean_maps(model, x)
    arms = {(name, 0): "mean_map", (name, 1): "uniform", (name, 2): "turned_90"}
    made = [replace_heads(model, report, by=by, maps=maps) for by in ({(name, 0): "kernel"}, arms)]
    return torch.stack([network(x) for network, _ in made])


def started(model, x):
    init_heads_(model, "impulse", generator=torch.Generator().manual_seed(0))
    return model(x)


def certified(model, x):
    assert certify(model, copy.deepcopy(model), x).verdict == "exact"
    return model(x)


def shown(model, x):
    scene = build_scene(Exhibit(model, x))
    return torch.tensor([len(layer["grid"]) for layer in scene.header["networks"][0]["layers"]])


def vit():
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, depth=1, num_classes=3
    ).eval()


def net(**options):
    return AttentionNet(width=8, depth=1, heads=4, ffn=8, **options).eval()


def cases():
    """Yields a name, what makes the module, what is computed of it, and the images."""
    layers = partial(RelativeAttention2d, 4, 6, num_heads=9)
    for name in ENCODINGS:
        yield f"{name}, whole image", partial(layers, encoding=name), gradients, IMAGES
    window = {"padding": 1, "stride": 2, "kernel_size": 3}
    for name in ("quadratic", "distance", "shift"):  # a sum over axes, all pairs, a convolution
        yield f"{name}, window", partial(layers, encoding=name, **window), gradients, IMAGES
    content = Content(key_width=8)
    apart = Content(key_width=8, position=False)
    yield (
        "content",
        partial(RelativeAttention2d, 4, 6, num_heads=4, encoding="quadratic", content=content),
        gradients,
        IMAGES,
    )
    yield (
        "gate",
        partial(
            RelativeAttention2d,
            4,
            6,
            num_heads=4,
            encoding="quadratic",
            content=apart,
            gate="sigmoid",
        ),
        gradients,
        IMAGES,
    )
    yield (
        "sequence",
        partial(RelativeAttention1d, 4, 6, num_heads=4, encoding="quadratic"),
        gradients,
        IMAGES[:, :, 0],
    )
    yield (
        "volume",
        partial(RelativeAttention3d, 4, 6, num_heads=4, encoding="quadratic"),
        gradients,
        IMAGES.unflatten(3, (3, 4)),
    )
    yield (
        "to attention",
        partial(torch.nn.Conv2d, 4, 6, 3),
        lambda m, x: conv_to_attention(m)[0](x),
        IMAGES,
    )
    layer = partial(RelativeAttention2d, 4, 6, num_heads=4, encoding="quadratic")
    yield "to a convolution", layer, lambda m, x: attention_to_conv(m, spatial=12)[0](x), IMAGES
    exact = partial(attention_to_conv, borders="exact", spatial=12)
    yield "to a convolution, exact", layer, lambda m, x: exact(m)[0](x), IMAGES
    yield "network to convolutions", net, lambda m, x: network_to_conv(m, images=x)[0](x), PICTURES
    yield "certificate", net, certified, PICTURES
    yield "heads of a network", net, numbers_of_heads, PICTURES
    yield "heads of a vision transformer", vit, numbers_of_heads, PICTURES
    yield "replaced heads", vit, replaced, PICTURES
    yield "start near a convolution", vit, started, PICTURES
    yield "page", vit, shown, PICTURES


def refused():
    """Says what the device says of a tensor of the CPU."""
    with Device():
        try:
            There(torch.ones(3)) + torch.ones(3)
        except RuntimeError as error:
            return str(error)


def main():
    register()
    sys.stdout.write(f"{refused()}\n")
    for name, make, compute, x in cases():
        torch.manual_seed(0)
        module = make()
        expected = compute(module, x)
        sys.stderr.write(f"{name}\n")
        with Device():
            found = on_cpu(compute(put_there(copy.deepcopy(module)), There(x)))
        difference, size = (one.abs().max().item() for one in (found - expected, expected))
        sys.stdout.write(json.dumps({"case": name, "difference": difference, "size": size}) + "\n")


if __name__ == "__main__":
    main()
