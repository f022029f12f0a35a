"""Replacements of a head by hand: weights that `watch` reads, of which one head's are changed, times the values."""

import timm
import torch
import transformers
from tests.heads.report_cases import TIMM, bert, images, outputs, randomised, timm_vit, words
from timm.models import naflexvit

from convattn.errors import UnsupportedModelError
from convattn.heads.catalogue import read_matrices
from convattn.heads.families.attention_class import part_of, split_linear
from convattn.heads.reading import watch

HEAD = 1
MAIN = "pixel_values"


def swin_of_timm():
    widths = {"embed_dim": 12, "depths": (2,), "num_heads": (3,), "patch_size": 4}
    network = timm.models.SwinTransformer((28, 40), window_size=4, num_classes=5, **widths)
    return randomised(network)


def swin_of_transformers():
    config = transformers.SwinConfig(
        image_size=(28, 40), embed_dim=12, depths=[2], num_heads=[3], window_size=4
    )
    network = transformers.SwinModel(config, add_pooling_layer=False)
    network.set_attn_implementation("eager")
    return randomised(network)


def timm_beit():
    """Its layers have biases of their own, so nothing of them is built anew."""
    return randomised(
        timm.models.Beit(**TIMM, qkv_bias=False, use_abs_pos_emb=False, use_rel_pos_bias=True)
    )


def padded_words():
    mask = torch.ones(6, 11, dtype=torch.long)
    mask[::2, 8:] = 0
    return {"input_ids": words(count=6), "attention_mask": mask}


def naflex():
    widths = {"embed_dim": 12, "depth": 2, "num_heads": 3, "patch_size": 4, "reg_tokens": 2}
    options = naflexvit.NaFlexVitCfg(**widths, use_key_only_attn_mask=True)
    return randomised(naflexvit.NaFlexVit(options, num_classes=5))


def padded_patches():
    """Patches of 3 x 5 with their places, in any order, the last of them padding."""
    coordinates = torch.cartesian_prod(torch.arange(3), torch.arange(5))
    order = torch.randperm(15, generator=torch.Generator().manual_seed(2))
    coordinates = torch.cat([coordinates[order], torch.zeros(2, 2, dtype=torch.long)])
    x = torch.randn(6, 17, 48, generator=torch.Generator().manual_seed(1))
    there = torch.arange(17).expand(6, -1) < 15
    return {"x": x, "patch_coord": coordinates.repeat(6, 1, 1), "patch_valid": there}


def pruned():
    """The middle one of three heads of a layer is taken out of its matrices."""
    network = timm_vit()
    attention = network.blocks[0].attn
    kept = torch.cat([torch.arange(6), torch.arange(12, 18)])
    rows = torch.cat([kept, kept + 18, kept + 36])
    attention.qkv = part_of(attention.qkv, rows)
    attention.proj = part_of(attention.proj, slice(None), kept)
    attention.num_heads, attention.attn_dim = 2, 12
    return network


CASES = {
    "two prefix tokens": (lambda: timm_vit(2), lambda: images(count=6), "blocks.0.attn"),
    "bias and a class token": (
        timm_beit,
        lambda: images(count=6),
        "blocks.1.attn",
    ),
    "words, some padded": (bert, padded_words, "encoder.layer.1.attention.self"),
    "timm's shifted windows": (
        swin_of_timm,
        lambda: images((28, 40), 6),
        "layers.0.blocks.1.attn",
    ),
    "transformers' shifted windows": (
        swin_of_transformers,
        lambda: images((28, 40), 6),
        "encoder.layers.0.blocks.1.attention",
    ),
    "patches, some padded": (naflex, padded_patches, "blocks.0.attn"),
    "a head pruned": (pruned, lambda: images(count=6), "blocks.0.attn"),
}
"""A network, what it is given, and one of its layers."""


def matrices_of(attention):
    """The maps of values and of the output of a layer."""
    try:
        layer = read_matrices(attention)
    except UnsupportedModelError:
        if hasattr(attention, "value"):  # another module applies the output of BERT
            return attention.value, None
        if hasattr(attention, "qkv"):
            return split_linear(attention.qkv, 3)[2], attention.proj
        return attention.v_proj, attention.o_proj
    return layer.value, layer.output


def with_weights(network, name, x, *changes, **options):
    """What a network gives if a layer uses weights (images, groups, heads, queries, keys) that each change returns."""
    seen = []
    dtype = next(network.parameters()).dtype
    given = {"": x} if not isinstance(x, dict) else x
    given = {
        key: part.to(dtype) if part.is_floating_point() else part for key, part in given.items()
    }
    if "" in given:
        given = {MAIN: given[""], **options} if options else given[""]
    watch(
        network, given, lambda call: seen.append((call.weights.double(), call.layout)), layers=name
    )
    attention = network.get_submodule(name)
    value, output = matrices_of(attention)
    results = []
    for change in changes:
        weights = change(seen[0][0].clone(), seen[0][1]).flatten(0, 1)

        def instead(_, arguments, named, out, weights=weights):
            tokens = arguments[0] if arguments else named["hidden_states"]
            values = value(tokens).unflatten(-1, (weights.shape[1], -1)).transpose(1, 2)
            y = (weights.to(tokens.dtype) @ values).transpose(1, 2).flatten(2)
            y = y if output is None else output(y)
            return (y, None) if isinstance(out, tuple) else y

        hook = attention.register_forward_hook(instead, with_kwargs=True)
        results.append(outputs_of(network, given))
        hook.remove()
    return results


def outputs_of(network, x):
    """What a network gives of images or of named arguments."""
    return outputs(network, **x) if isinstance(x, dict) else outputs(network, x)


def arm_weights(arm, layer, other, layout, allowed, mean, own=None):
    """The weights of a head by hand, (groups, queries, keys); `mean` is its mean map, `other` a layer.

    Of prefix tokens' queries they are those of the head's mean map, or `own`.
    """
    told = layer.heads[HEAD]
    if arm == "zero":
        return torch.zeros(allowed.shape, dtype=torch.float64)
    if arm in ("uniform", "mean_map"):
        return normalised(allowed.double() if arm == "uniform" else mean * allowed)
    source, head = (other, 0) if arm == "other" else (layer, HEAD)
    kernel = picture(source.displacements, source.heads[head].position_kernel)
    if arm == "one_tap":
        kernel = picture(
            layer.displacements, [step == told.hard_shift for step in layer.displacements]
        )
    if arm.startswith("turned"):
        kernel = torch.rot90(kernel, -int(arm[7:]) // 90)  # torch turns against the clock
    if arm == "reversed":
        kernel = kernel.flip(0)
    middle = (kernel.shape[0] - 1) // 2
    largest = torch.tensor(layer.displacements).abs().amax(0)
    weights = torch.zeros(allowed.shape, dtype=torch.float64)
    shares = torch.tensor(told.prefix_weights, dtype=torch.float64)
    for group, queries in enumerate(layout.query_positions()):
        for query, place in enumerate(queries.nan_to_num()):
            steps = layout.keys[group] - place
            there = (steps.abs() <= largest).all(1) & ~layout.key_prefix & allowed[group, query]
            numbers = (steps.long() + middle).unbind(1)
            inside = torch.stack([(n >= 0) & (n < len(kernel)) for n in numbers]).all(0) & there
            weights[group, query, inside] = kernel[tuple(n[inside] for n in numbers)]
    weights = normalised(weights) * (1 - shares.sum())
    weights[..., layout.key_prefix] = shares
    if own is None:
        own = normalised(torch.tensor([told.prefix_maps], dtype=torch.float64))
    for number, row in enumerate(layout.prefix_queries()):
        weights[:, row] = own[:, number]
    return weights


def picture(displacements, weights):
    """A kernel as a square around displacement 0."""
    steps = torch.tensor(displacements).long()
    reach = int(steps.abs().max())
    kernel = torch.zeros((2 * reach + 1,) * steps.shape[1], dtype=torch.float64)
    kernel[tuple((steps + reach).unbind(1))] = torch.tensor(weights, dtype=torch.float64)
    return kernel


def normalised(weights):
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1)
