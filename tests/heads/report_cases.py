"""Reports made from explicit attention maps by plain sums, and small networks of the kinds whose heads are replaced."""

from contextlib import suppress
from functools import partial
from itertools import product
from math import inf, nan, prod

import timm
import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional

from convattn.errors import UnsupportedModelError
from convattn.heads.catalogue import read_matrices
from convattn.heads.convolved_attention import ConvolvedAttention
from convattn.heads.head_report import (
    HEAD_NUMBERS,
    Estimate,
    HeadReport,
    HeadStatistics,
    LayerReport,
    LayerStatistics,
)
from convattn.structure import full_name

UNKNOWN = Estimate(nan, nan)
GRID = (5, 7)
TIMM = {
    "img_size": (20, 28),
    "patch_size": 4,
    "depth": 2,
    "num_classes": 5,
    "embed_dim": 18,
    "num_heads": 3,
}
SIZES = {
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
}
BERT = {"vocab_size": 40, **SIZES}
VIT = {"image_size": 28, "patch_size": 4, **SIZES}
TOWERS = {
    "dinov2": ("Dinov2Model", "Dinov2Config", 1, {}),
    "dinov2, registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", 5, {}),
    "deit": ("DeiTModel", "DeiTConfig", 2, {}),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", 1, {}),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", 0, {"vision_use_head": False}),
}
"""Towers of transformers: model, configuration, prefix tokens, and options of the configuration."""


def randomised(network):
    """The network with larger random weights, biases too, so that no head is uniform."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return network.eval()


def timm_vit(prefix=1, **options):
    """timm's transformer with some prefix tokens: a class token and registers."""
    tokens = {
        "class_token": prefix > 0,
        "reg_tokens": max(prefix - 1, 0),
        "global_pool": "token" if prefix else "avg",
    }
    return randomised(timm.models.VisionTransformer(**{**TIMM, **tokens, **options}))


def torchvision_vit(size=28):
    network = torchvision.models.VisionTransformer(size, 4, 2, 3, 15, 20, num_classes=5)
    return randomised(network)


def transformers_vit(**options):
    return randomised(
        transformers.ViTForImageClassification(transformers.ViTConfig(**VIT, **options))
    )


def tower(kind, config, **options):
    """A vision tower of transformers by the names of its model and configuration."""
    settings = getattr(transformers, config)(**VIT, **options)
    return randomised(getattr(transformers, kind)(settings))


def whisper():
    """Whisper's encoder, of 22 positions in time."""
    config = transformers.WhisperConfig(
        d_model=18,
        encoder_layers=2,
        encoder_attention_heads=3,
        encoder_ffn_dim=20,
        max_source_positions=22,
        num_mel_bins=8,
    )
    return randomised(transformers.models.whisper.modeling_whisper.WhisperEncoder(config))


def sounds(count=2):
    return torch.randn(count, 8, 44, generator=torch.Generator().manual_seed(1))


def bert(**options):
    return randomised(
        transformers.BertModel(transformers.BertConfig(**BERT, **options), add_pooling_layer=False)
    )


def images(size=(20, 28), count=2):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


def words(length=11, count=2):
    return torch.randint(0, 40, (count, length), generator=torch.Generator().manual_seed(1))


def attention_maps(network, *arguments, **named):
    """Weights (images, heads, queries, keys) of every layer that can be read, from its input, by the definition."""
    met, found = {}, []

    def note(name, layer):
        def hook(_, given, options):
            tokens = given[0] if given else options["hidden_states"]
            query, key = (
                norm(part(tokens).unflatten(-1, (layer.heads, -1)).movedim(-2, 1))
                for part, norm in ((layer.query, layer.query_norm), (layer.key, layer.key_norm))
            )
            met[name] = (query @ key.mT * layer.head_width**-0.5).softmax(-1).detach().double()

        return hook

    for name, module in list(network.named_modules()):
        with suppress(UnsupportedModelError):
            found.append((module, note(name, read_matrices(module))))
    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module, hook in found]
    with torch.no_grad():
        network(*arguments, **named)
    for handle in handles:
        handle.remove()
    return met


def report_of(network, maps, grid=GRID, prefix=1, radius=None):
    """Makes a report from attention maps."""
    source = ""
    if len(grid) == 2:
        source = next(name for name, part in network.named_modules() if type(part) is nn.Conv2d)
    layers = tuple(
        layer_report(
            name,
            full_name(type(network.get_submodule(name))),
            weights,
            grid,
            prefix,
            radius,
            source,
        )
        for name, weights in maps.items()
    )
    return HeadReport(
        model=type(network).__name__,
        images=2,
        control_images=0,
        image_shape=(),
        groups=2,
        kernel_size=3,
        radius=radius or max(grid) - 1,
        seed=0,
        layers=layers,
        versions={},
        weights={},
    )


def layer_report(name, kind, weights, grid, prefix, radius=None, source=""):
    """Reports one layer; all statistics that replacement does not read are unknown."""
    reach = [size - 1 if radius is None else min(radius, size - 1) for size in grid]
    shifts = tuple(product(*(range(-steps, steps + 1) for steps in reach)))
    heads = tuple(
        head_statistics(head, weights[:, head], grid, prefix, shifts)
        for head in range(weights.shape[1])
    )
    measured = LayerStatistics(len(weights), heads, UNKNOWN)
    return LayerReport(
        name=name,
        kind=kind,
        pattern="sequence" if len(grid) == 1 else "global",
        grid=grid,
        grid_source=source,
        prefix=prefix,
        normalised=True,
        error=0.0,
        budget=inf,
        uniform_distance=nan,
        displacements=tuple(tuple(map(float, shift)) for shift in shifts),
        measured=measured,
        controls={},
        kernel_size=3,
    )


def head_statistics(head, weights, grid, prefix, shifts):
    """The mean weight of each displacement over all pairs that have it, query by query."""
    cells = list(product(*map(range, grid)))
    on_grid = weights[:, prefix:, prefix:]
    pairs = on_grid.mean(0).tolist()
    sums, counts = dict.fromkeys(shifts, 0.0), dict.fromkeys(shifts, 0)
    for (row, query), (col, key) in product(enumerate(cells), enumerate(cells)):
        shift = tuple(k - q for q, k in zip(query, key, strict=True))
        if shift in sums:
            sums[shift] += pairs[row][col]
            counts[shift] += 1
    kernel = tuple(sums[shift] / counts[shift] for shift in shifts)
    mean = dict(zip(shifts, kernel, strict=True))
    fitted = torch.tensor(
        [
            [mean.get(tuple(k - q for q, k in zip(a, b, strict=True)), 0.0) for b in cells]
            for a in cells
        ]
    ).double()
    within = sum(sums.values()) / prod(grid) / on_grid.sum(-1).mean().item()
    left, whole = (on_grid - fitted).square().mean(), (on_grid - on_grid.mean()).square().mean()
    numbers = dict.fromkeys(HEAD_NUMBERS, UNKNOWN)
    numbers["position_score"] = Estimate((1 - left / whole).item(), nan)
    numbers["kernel_share"] = Estimate(within, nan)
    return HeadStatistics(
        head=head,
        shift=(),
        hard_shift=(),
        hard_shift_error=(),
        side=(),
        line=0,
        prefix_weights=tuple(weights[:, prefix:, :prefix].mean((0, 1)).tolist()),
        prefix_maps=tuple(tuple(row) for row in weights[:, :prefix].mean(0).tolist()),
        kernel=kernel,
        position_kernel=kernel,
        **numbers,
    )


def replaced_layer(network, name, weights, dtype=torch.float64):
    """What a layer gives whose heads all use these weights (heads, queries, keys), by the definition."""
    layer = read_matrices(network.get_submodule(name))

    def run(tokens):
        value = (
            linear(layer.value, tokens.to(dtype)).unflatten(-1, (layer.heads, -1)).movedim(-2, 1)
        )
        y = (weights.to(dtype) @ value).movedim(1, -2).flatten(-2)
        return y if layer.output is None else linear(layer.output, y)

    return run


def linear(module, x):
    """A linear map in the dtype of x."""
    return functional.linear(
        x, module.weight.to(x.dtype), None if module.bias is None else module.bias.to(x.dtype)
    )


def fixed_weights(layer, heads=None):
    """The weights that a replaced layer is to have, (heads, tokens, tokens), pair by pair, from the report alone.

    Rows of heads that are not among `heads` are zero; None takes all heads.
    """
    cells, prefix = list(product(*map(range, layer.grid))), layer.prefix
    made = torch.zeros(
        len(layer.heads), prefix + len(cells), prefix + len(cells), dtype=torch.float64
    )
    for head in range(len(layer.heads)) if heads is None else heads:
        told = layer.heads[head]
        tap, paid = (
            dict(zip(layer.displacements, told.position_kernel, strict=True)),
            told.prefix_weights,
        )
        for row, query in enumerate(cells):
            shifts = [tuple(k - q for q, k in zip(query, key, strict=True)) for key in cells]
            weights = torch.tensor([tap.get(shift, 0.0) for shift in shifts], dtype=torch.float64)
            made[head, prefix + row, prefix:] = (
                (1 - sum(paid)) * weights / max(weights.sum(), 1e-300)
            )
            made[head, prefix + row, :prefix] = torch.tensor(paid)
        for row, shares in enumerate(told.prefix_maps):
            weights = torch.tensor(shares, dtype=torch.float64)
            made[head, row] = weights / weights.sum()
    return made


def outputs(network, *arguments, **named):
    """What a network returns, the first of several."""
    with torch.no_grad():
        y = network(*arguments, **named)
    return y if isinstance(y, torch.Tensor) else y[0]


def attention_of(made, name):
    return next(
        part for part in made.get_submodule(name).modules() if isinstance(part, ConvolvedAttention)
    )


NETWORKS = {
    "timm, no prefix": (partial(timm_vit, 0), images, GRID, 0),
    "timm, class token": (timm_vit, images, GRID, 1),
    "timm, two prefix tokens": (partial(timm_vit, 2), images, GRID, 2),
    "timm, five prefix tokens": (partial(timm_vit, 5), images, GRID, 5),
    "timm, queries normalised": (partial(timm_vit, qk_norm=True), images, GRID, 1),
    "timm, no biases": (partial(timm_vit, qkv_bias=False, proj_bias=False), images, GRID, 1),
    "transformers": (transformers_vit, partial(images, (28, 28)), (7, 7), 1),
    "whisper": (whisper, sounds, (22,), 0),
    **{
        name: (partial(tower, model, config, **options), partial(images, (28, 28)), (7, 7), prefix)
        for name, (model, config, prefix, options) in TOWERS.items()
    },
}

KINDS = ("timm, two prefix tokens", "transformers", "whisper")
"""A network of each kind."""


def measured(name):
    """A network, its images and its report."""
    make, draw, grid, prefix = NETWORKS[name]
    network, x = make(), draw()
    return network, x, report_of(network, attention_maps(network, x), grid, prefix)
