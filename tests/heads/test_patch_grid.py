"""Networks whose heads were replaced for one grid of patches refuse every other grid, also with as many patches."""

import copy
import io
from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
import transformers
from tests.heads.report_cases import SIZES, TIMM, images, outputs, torchvision_vit
from torch import nn

from convattn.errors import ArgumentError, ShapeError
from convattn.heads import analyze
from convattn.heads.replace import replace_heads

PATCH = 4
MEASURED = (4, 4)
OTHERS = ((2, 8), (5, 3), (3, 7))
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
    sizes = {**TIMM, "img_size": 16, "dynamic_img_size": True}
    return cls(**sizes, **options).eval(), {}


NETWORKS = {name: partial(tower, name, **options) for name, options in TOWERS.items()} | {
    "timm ViT": partial(timm_network, timm.models.VisionTransformer),
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


def saved_and_loaded(network):
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"made": lambda network: network, "copied": copy.deepcopy, "saved": saved_and_loaded}
REFUSAL = "images must be cut into 4 x 4 patches, .* but these are cut into {} x {}"


@pytest.mark.parametrize("name", NETWORKS)
def test_no_class_takes_another_grid_in_silence(name):
    network, options = NETWORKS[name]()
    made, record = with_a_head_replaced(network)
    assert len(record.replaced) == 1
    expected = outputs(made, cut(MEASURED), **options)
    for kind, change in COPIES.items():
        changed = change(made)
        calls = {"by place": partial(outputs, changed, **options)}
        if isinstance(network, transformers.PreTrainedModel):
            calls["by name"] = lambda x, changed=changed: outputs(
                changed, pixel_values=x, **options
            )
        for way, call in calls.items():
            place = f"{name}, {kind}, {way}"
            assert torch.equal(call(cut(MEASURED)), expected), place
            for grid in OTHERS:
                error, message = ShapeError, REFUSAL.format(*grid)
                if name == "torchvision ViT":  # which has sizes of its own
                    error, message = AssertionError, "Wrong image"
                else:
                    outputs(network, cut(grid), **options)
                with pytest.raises(error, match=message):
                    call(cut(grid))


def test_a_compiled_network_refuses_other_grids(without_type_checks):
    made, _ = with_a_head_replaced(NETWORKS["timm ViT"]()[0])
    compiled = torch.compile(made, backend="eager")
    assert torch.equal(outputs(compiled, cut(MEASURED)), outputs(made, cut(MEASURED)))
    with pytest.raises(ShapeError, match=REFUSAL.format(2, 8)):
        outputs(compiled, cut((2, 8)))


def test_a_part_of_the_network_is_guarded_too():
    """As where the tower is taken out of a classifier and stands in another network."""
    torch.manual_seed(0)
    classifier = transformers.BeitForImageClassification(transformers.BeitConfig(**SIZE)).eval()
    made, _ = with_a_head_replaced(classifier)
    around = nn.Sequential(made.beit)
    around(cut(MEASURED))
    with pytest.raises(ShapeError, match="but these are cut into 2 x 8"):
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
        with pytest.raises(ShapeError, match=r"images must be of 16 x 16 pixels, .* are of 8 x 32"):
            change(made)(x=cut((2, 8)))
    other = replace(report, layers=(replace(report.layers[0], grid_source="stem"),))
    with pytest.raises(ArgumentError, match="this network, but this one has no layer 'stem'"):
        replace_heads(network, other)
