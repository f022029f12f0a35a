"""Networks with replaced heads on other grids than that of the report: right there, or refused; none in silence."""

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
import transformers
from tests.heads.arm_cases import HEAD, arm_weights, swin_of_transformers, with_weights
from tests.heads.report_cases import (
    SIZES,
    TIMM,
    attention_of,
    bert,
    images,
    outputs,
    torchvision_vit,
    words,
)
from torch import nn

from convattn.budget import assert_within_budget, references
from convattn.errors import ArgumentError, ShapeError
from convattn.heads import analyze, mean_maps, replace_heads

PATCH = 4
MEASURED = (4, 4)
OTHERS = ((2, 8), (7, 3))
SIZE = {"image_size": 16, "patch_size": PATCH, **SIZES}
TOWERS = {
    "ViT": {},
    "DeiT": {},
    "Beit": {"use_relative_position_bias": True},
    "Dinov2": {},
    "Dinov2WithRegisters": {},
    "IJepa": {},
    "ViTMSN": {},
    "CLIPVision": {},
    "SiglipVision": {"vision_use_head": False},
}
"""Vision towers of transformers, with options of their configurations."""


def tower(name, **options):
    """A vision tower of transformers as it is initialised, and the options with which it takes any image."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZE, **options)
    network = getattr(transformers, f"{name}Model")(config)
    return network.eval(), {} if "Dinov2" in name else {"interpolate_pos_encoding": True}


def timm_network(cls, **options):
    """A network of timm that takes any image."""
    torch.manual_seed(0)
    sizes = {**TIMM, "img_size": 16, "dynamic_img_size": True, **options}
    return cls(**sizes).eval(), {}


NETWORKS = {name: partial(tower, name, **options) for name, options in TOWERS.items()} | {
    "timm ViT": partial(timm_network, timm.models.VisionTransformer),
    "timm EVA": partial(timm_network, timm.models.Eva, use_rot_pos_emb=True, embed_dim=24),
    "transformers Swin": lambda: (swin_of_transformers(), {}),
    "timm DeiT": partial(timm_network, timm.models.deit.VisionTransformerDistilled),
    "torchvision ViT": lambda: (torchvision_vit(size=16), {}),
}


def cut(grid, count=2):
    """Images that are cut into a grid of patches."""
    return images((PATCH * grid[0], PATCH * grid[1]), count)


def with_a_head_replaced(network):
    report = analyze(network, cut(MEASURED), controls=(), progress=False)
    heads = [(report.layers[0].name, 1)]
    return replace_heads(network, report, heads=heads)


def on_another_grid(arm, layer, attend, weights, layout):
    """The weights of a layer on another grid with those of a head replaced."""
    for image in weights:
        allowed = (image > 1e-30).any(1)
        own = image[:, HEAD, layout.prefix_queries()] if attend else None
        image[:, HEAD] = arm_weights(arm, layer, None, layout, allowed, None, own)
    return weights


def by_definition(name, changes, options, network, x):
    return with_weights(network, name, x, *changes, **options)


ARMS = {
    "kernel": {"by": "kernel"},
    "kernel, prefix tokens attend": {"by": "kernel", "prefix": "attend"},
    "mean map": {"by": "mean_map"},
}
ALL_ARMS = {**ARMS, "uniform": {"by": "uniform"}, "zero": {"by": "zero"}}
WITH_ALL = ("timm ViT", "Beit", "transformers Swin")
"""A plain network, one with a bias of its own, and one of windows."""

GRIDS = {"transformers Swin": ((7, 10), (8, 5), (5, 11), (13, 6))}
"""The grid of the report and others, of a network that needs more than one window."""


@pytest.mark.parametrize("name", NETWORKS)
def test_another_grid_is_right_or_refused(name):
    network, options = NETWORKS[name]()
    measured, *others = GRIDS.get(name, (MEASURED, *OTHERS))
    report = analyze(network, cut(measured), controls=(), progress=False)
    layer = report.layers[1]
    maps = mean_maps(network, cut(measured))
    arms = ALL_ARMS if name in WITH_ALL else ARMS
    mades = {}
    for arm, given in arms.items():
        made, _ = replace_heads(network, report, [(layer.name, HEAD)], maps=maps, **given)
        assert torch.isfinite(outputs(made, cut(measured), **options)).all()
        mades[arm] = made
    for grid in others:
        x = cut(grid, 1)
        if name == "torchvision ViT":  # which has sizes of its own
            for made in mades.values():
                with pytest.raises(AssertionError, match="Wrong image"):
                    outputs(made, x)
            continue
        allowed = [
            arm for arm in arms if arm != "mean map" and (arm != "kernel" or not layer.prefix)
        ]
        changes = []
        for arm in allowed:
            attend = "attend" in arm
            changes.append(partial(on_another_grid, arms[arm]["by"], layer, attend))
        by_hand = partial(by_definition, layer.name, changes, options)
        his, lows = references(by_hand, network, x)
        for number, arm in enumerate(allowed):
            own = [low[number] for low in lows]
            found = outputs(mades[arm], x, **options)
            assert_within_budget(found, his[number], own, f"{name}, {grid}, {arm}")
        for arm in arms.keys() - {*allowed}:
            with pytest.raises(ShapeError, match="on which the heads were measured, but these are"):
                outputs(mades[arm], x, **options)


def saved_and_loaded(network):
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"made": lambda network: network, "copied": copy.deepcopy, "saved": saved_and_loaded}
REFUSAL = "images must be cut into 4 × 4 patches, .* but these are cut into {} × {}"


@pytest.mark.parametrize("kind", COPIES)
def test_copies_refuse_other_grids(kind):
    for name in ("timm ViT", "CLIPVision"):
        network, options = NETWORKS[name]()
        made, _ = with_a_head_replaced(network)
        copied = COPIES[kind](made)
        expected = outputs(made, cut(MEASURED), **options)
        assert torch.equal(outputs(copied, cut(MEASURED), **options), expected)
        for grid in OTHERS:
            with pytest.raises(ShapeError, match=REFUSAL.format(*grid)):
                outputs(copied, cut(grid), **options)


def test_the_grid_is_that_of_the_tower_of_the_replaced_heads():
    """In networks around it, one after the other, and beside a tower of text whose layers lie before it."""
    tower = timm_network(timm.models.VisionTransformer)[0]
    report = analyze(tower, cut(MEASURED), controls=(), progress=False)
    around = nn.ModuleDict({"text": bert(), "image": tower})
    layers = []
    for layer in report.layers:
        source = f"image.{layer.grid_source}"
        layers.append(replace(layer, name=f"image.{layer.name}", grid_source=source))
    report = replace(report, layers=tuple(layers))
    one, _ = replace_heads(around, report, [(layers[0].name, 0)], same_weights=False)
    two = replace(report, layers=report.layers[1:])
    both, _ = replace_heads(one, two, [(layers[1].name, 1)], same_weights=False)
    assert outputs(both["text"], words()).shape == (2, 11, 15)
    outputs(one["image"], cut(MEASURED))
    with pytest.raises(
        ShapeError, match=r"tokens must be 17 \(1 prefix and 4 × 4 positions\), .* 26"
    ):
        one["image"].blocks[0].attn(torch.zeros(1, 26, 18))
    for made in (one, both):
        with pytest.raises(ShapeError, match=REFUSAL.format(2, 8)):
            made["image"](cut((2, 8)))


def test_a_compiled_network_refuses_other_grids(without_type_checks):
    made, _ = with_a_head_replaced(NETWORKS["timm ViT"]()[0])
    compiled = torch.compile(made, backend="eager")
    assert torch.equal(outputs(compiled, cut(MEASURED)), outputs(made, cut(MEASURED)))
    with pytest.raises(ShapeError, match=REFUSAL.format(2, 8)):
        outputs(compiled, cut((2, 8)))


def test_a_call_keeps_its_grid_beside_other_threads_and_after_an_interruption():
    network = NETWORKS["timm ViT"]()[0]
    report = analyze(network, cut(MEASURED), controls=(), progress=False)
    one, other = cut((3, 7)), cut((7, 3))

    def run_the_other(*_):
        hook.remove()
        with ThreadPoolExecutor() as pool:
            pool.submit(outputs, made, other).result()

    def interrupt(*_):
        raise KeyboardInterrupt

    layer = report.layers[0].name
    for by in ({(layer, 1): "kernel"}, {(layer, 0): "uniform", (layer, 1): "kernel"}):
        made, _ = replace_heads(network, report, by=by, prefix="attend")
        expected = outputs(made, one)
        hook = made.blocks[0].norm1.register_forward_pre_hook(run_the_other)
        assert torch.equal(outputs(made, one), expected), by
        hook = made.blocks[0].norm1.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            made(one)
        hook.remove()
        assert torch.equal(outputs(copy.deepcopy(made), one), expected), by


def test_a_checkpoint_computes_a_layer_again_on_the_grid_it_had():
    network = NETWORKS["timm ViT"]()[0]
    report = analyze(network, cut(MEASURED), controls=(), progress=False)
    made, _ = replace_heads(network, report, [(report.layers[0].name, 1)], prefix="attend")
    grids = ((3, 7), (2, 8))
    gradients = []
    for checkpoints in (False, True):
        made.set_grad_checkpointing(checkpoints)
        made.zero_grad()
        sum(made.train()(cut(grid)).square().sum() for grid in grids).backward()
        gradients.append(attention_of(made, report.layers[0].name).means.kernel.grad)
    assert torch.equal(*gradients)
    loss = sum(made(cut(grid)).sum() for grid in (*grids, (7, 3)))
    with pytest.raises(ShapeError, match="images of 3 × 7 and 7 × 3 patches cannot be told apart"):
        loss.backward()


def test_a_part_of_the_network_is_guarded_too():
    """As where the tower is taken out of a classifier and stands in another network."""
    torch.manual_seed(0)
    classifier = transformers.BeitForImageClassification(transformers.BeitConfig(**SIZE)).eval()
    made, _ = with_a_head_replaced(classifier)
    around = nn.Sequential(made.beit)
    around(cut(MEASURED))
    with pytest.raises(ShapeError, match="but these are of a grid of 2 × 8"):
        made.beit(cut((2, 8)), interpolate_pos_encoding=True)


def test_a_network_that_cuts_images_by_no_convolution_refuses_those_of_another_size():
    network = NETWORKS["timm ViT"]()[0]
    report = analyze(network, cut(MEASURED), controls=(), progress=False)
    assert {layer.grid_source for layer in report.layers} == {"patch_embed.proj"}
    unknown = replace(report, layers=(replace(report.layers[0], grid_source=""),))
    made, record = replace_heads(network, unknown, heads=[("blocks.0.attn", 0)])
    assert len(record.replaced) == 1
    outputs(made, cut(MEASURED))
    for change in COPIES.values():
        with pytest.raises(ShapeError, match=r"images must be of 16 × 16 pixels, .* are of 8 × 32"):
            change(made)(x=cut((2, 8)))
    other = replace(report, layers=(replace(report.layers[0], grid_source="stem"),))
    with pytest.raises(ArgumentError, match="this network, but this one has no layer 'stem'"):
        replace_heads(network, other)
