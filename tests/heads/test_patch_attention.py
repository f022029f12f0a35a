"""Vision transformers that were initialised, as networks of torch: loaded, cast, trained, exported, compiled."""

import copy
import pickle
from operator import call

import pytest
import torch
from tests.heads.vit_cases import GRID, VITS, attentions, pixels, tokens, vit
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.errors import ShapeError
from convattn.heads import convolutional_init
from convattn.heads.patch_grid import PatchGrid


def test_the_state_is_loaded_into_a_network_made_alike(tmp_path):
    trained = convolutional_init(vit(**VITS["9 heads of width 2"]))[0]
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1)
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    fresh = convolutional_init(vit(**VITS["9 heads of width 2"]))[0]
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt"))
    x = pixels()
    with torch.no_grad():
        assert torch.equal(fresh(x), trained(x))
        assert torch.equal(pickle.loads(pickle.dumps(trained))(x), trained(x))
        assert torch.equal(copy.deepcopy(trained)(x), trained(x))


@pytest.mark.parametrize("content", ["gated", False])
@pytest.mark.parametrize("grid", [(7, 5), (3, 4), (1, 35)], ids=str)
def test_images_of_other_sizes(grid, content):
    """Sizes are those of the image, although 7 × 5 and 1 × 35 patches are as many as 5 × 7."""
    network = vit(**VITS["9 heads of width 2"], dynamic_img_size=True)
    made, _ = convolutional_init(network, content=content)
    with torch.no_grad():
        made(pixels(grid))
        attention = attentions(made)[0]
        x = torch.randn(2, 1 + grid[0] * grid[1], 18)
        layer = copy.deepcopy(attention.position_layer())

        def by_position(layer, x):
            return layer(x[:, 1:].mT.unflatten(-1, grid)).flatten(2).mT

        lows, high = roundings(by_position, layer, x), by_position(layer.double(), x.double())
        assert_within_budget(attention(x)[:, 1:], high, lows)
        if grid != (3, 4):
            attention.grid.sizes = GRID
            with pytest.raises(AssertionError, match="above the budget"):
                assert_within_budget(attention(x)[:, 1:], high, lows)


def test_tokens_that_are_no_grid_are_refused():
    made, _ = convolutional_init(vit(**VITS["9 heads of width 2"]))
    with pytest.raises(
        ShapeError, match=r"^tokens must be 36 \(1 prefix and 5 x 7 patches\), but are 35$"
    ):
        made.blocks(torch.zeros(2, 35, 18))


@pytest.mark.parametrize("content", ["gated", False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_mode_and_what_learns_are_kept(dtype, content):
    network = vit(**VITS["3 heads of width 7"]).to(dtype).train()
    network.blocks[0].eval()
    network.blocks[1].attn.proj_drop.eval()
    network.blocks[0].attn.qkv.requires_grad_(False)
    made, record = convolutional_init(network, content=content)
    assert record.passed
    assert record.exact
    first, second = attentions(made)
    assert (first.training, second.training, second.after.training) == (False, True, False)
    learns = {name: parameter.requires_grad for name, parameter in first.named_parameters()}
    frozen = {"query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias"}
    assert {name for name, on in learns.items() if not on} == (
        frozen if content else {"layer.values.value"}
    )
    assert {p.dtype for name, p in made.named_parameters() if "encoding" not in name} == {dtype}
    assert made(pixels().to(dtype)).dtype == dtype


def test_under_autocast():
    made, _ = convolutional_init(vit(**VITS["9 heads of width 2"]))
    with torch.autocast("cpu", torch.bfloat16):
        made(pixels()).float().sum().backward()
    assert made.blocks[0].attn.tokens.gate.grad.isfinite().all()


def test_dropout_acts_on_content():
    network = vit(**VITS["9 heads of width 2"], attn_drop_rate=0.5, proj_drop_rate=0.5).train()
    made, _ = convolutional_init(network, content_share=0.5)
    attention = attentions(made)[0]
    assert (attention.dropout, attention.after.p) == (0.5, 0.5)
    x = tokens(network, attention)
    attention.after.eval()
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize("content", ["gated", False])
def test_networks_export(content):
    made, _ = convolutional_init(vit(**VITS["9 heads of width 2"]), content=content)
    with torch.no_grad():
        exported = torch.export.export(made, (pixels(),), strict=False).module()
        x = pixels().flip(0)
        assert_within_budget(
            exported(x), copy.deepcopy(made).double()(x.double()), roundings(call, made, x)
        )


def test_the_grid_is_that_of_the_last_images():
    patches = nn.Conv2d(3, 4, 2, 2)
    grid = PatchGrid(
        (5, 7), lambda module, image: (image[0] // module.stride[0], image[1] // module.stride[1])
    )
    patches.register_forward_pre_hook(grid)
    patches(torch.zeros(1, 3, 22, 6))
    assert (grid.sizes, repr(grid), grid.require(34, 1)) == ((11, 3), "11 x 3 patches", (11, 3))
    with pytest.raises(
        ShapeError, match=r"^tokens must be 35 \(2 prefix and 11 x 3 patches\), but are 37$"
    ):
        grid.require(37, 2)


def test_images_given_by_name_run_as_well():
    """A hook is not given named arguments."""
    patches, images = nn.Conv2d(3, 4, 2, 2), torch.zeros(1, 3, 10, 14)
    expected = patches(images)
    patches.register_forward_pre_hook(PatchGrid((5, 7), lambda *_: (5, 7)))
    patches.register_forward_pre_hook(PatchGrid((5, 7), lambda *_: (5, 7), fixed=True))
    assert torch.equal(patches(input=images), expected)
