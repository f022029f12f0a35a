"""Heads of vision transformers as the taps of a convolution of patches."""

import copy
from operator import call

import pytest
import torch
from tests.convert.network.network_cases import assert_unchanged, fingerprint
from tests.heads.vit_cases import (
    GRID,
    VITS,
    attentions,
    convolutions,
    convolved,
    convolved_by_heads,
    kernel_of,
    pixels,
    tokens,
    vit,
)
from torch import nn

from convattn import ConvAttnError, network_to_conv
from convattn.budget import assert_within_budget, roundings
from convattn.errors import ArgumentError
from convattn.heads import convolutional_init
from convattn.heads.initialise import ConvolutionalInit

KERNELS = {"3 x 3": 3, "1 x 3": (1, 3), "1 x 1": 1, "7 x 5": (7, 5)}


def check_patches(network, attention, taps):
    """Patches are convolved, with the matrices of the heads, inside and at borders; another padding is told apart."""
    x, heads, prefix = tokens(network, attention), len(attention.gate), attention.prefix
    y = attention(x)[:, prefix:]
    high, lows = convolved_by_heads(attention, x, heads, taps)
    assert_within_budget(y, high, lows)
    if taps != (1, 1):
        kernel = kernel_of(attention.value, attention.output, heads, taps)
        other = convolved(x, kernel, prefix, mode="replicate")
        with pytest.raises(AssertionError, match="above the budget"):
            assert_within_budget(other, high, lows)


@pytest.mark.parametrize("options", VITS.values(), ids=VITS)
def test_heads_compute_the_convolution_of_their_matrices(options):
    network = vit(**options)
    before = fingerprint(network)
    made, record = convolutional_init(network)
    assert_unchanged(network, before)
    assert record.exact
    assert record.passed
    assert record.grid == GRID
    found = attentions(made)
    assert len(found) == len(record.layers)
    for attention in found:
        with torch.no_grad():
            check_patches(network, attention, (3, 3))
    made(pixels()).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_kernel(kernel):
    network = vit(embed_dim=24, num_heads=4)
    made, record = convolutional_init(network, kernel_size=kernel)
    taps = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    assert (record.exact, record.passed, record.kernel_size) == (True, True, taps)
    assert record.heads == max(4, taps[0] * taps[1])
    assert record.heads_at_centre == record.heads - taps[0] * taps[1] + 1
    with torch.no_grad():
        check_patches(network, attentions(made)[1], taps)


def test_the_matrices_of_heads_are_kept():
    network = vit(**VITS["12 heads of width 2"])
    made, record = convolutional_init(network)
    assert (record.heads_before, record.heads, record.heads_at_centre, record.head_width) == (
        12,
        12,
        4,
        2,
    )
    for block, attention in zip(network.blocks, attentions(made), strict=True):
        parts = [attention.query, attention.key, attention.value]
        assert torch.equal(torch.cat([part.weight for part in parts]), block.attn.qkv.weight)
        assert torch.equal(torch.cat([part.bias for part in parts]), block.attn.qkv.bias)
        assert torch.equal(attention.output.weight, block.attn.proj.weight)
        assert torch.equal(attention.output.bias, block.attn.proj.bias)


def test_heads_are_added_by_a_generator():
    network = vit(**VITS["3 heads of width 7"])
    made, again, other = (
        convolutional_init(network, generator=torch.Generator().manual_seed(seed))[0]
        for seed in (3, 3, 4)
    )
    for (name, one), two, three in zip(
        made.state_dict().items(),
        again.state_dict().values(),
        other.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(one, two)
        assert torch.equal(one, three) == (
            not name.endswith(("query.weight", "key.weight", "value.weight", "output.weight"))
        )
    own, added = attentions(made)[0].value.weight.split([21, 42])
    assert torch.equal(own, network.blocks[0].attn.qkv.weight[42:])
    assert abs(added.std() / own.std() - 1) < 5 / (2 * added.numel()) ** 0.5  # five standard errors


def test_an_open_gate_is_the_network_as_it_was():
    network = vit(**VITS["12 heads of width 2"], reg_tokens=2)
    made, record = convolutional_init(network, content_share=0.5)
    assert record.content_share == pytest.approx(0.5)
    assert not record.exact
    assert record.verdict == "different"
    for attention in attentions(made):
        nn.init.constant_(attention.gate, 20.0)  # its tanh is 1
    x = pixels().double()
    with torch.no_grad():
        lows = roundings(call, network, x.float())
        assert_within_budget(made.double()(x).float(), network.double()(x), lows)


def test_a_share_of_content_is_mixed_in():
    network = vit(**VITS["9 heads of width 2"]).double()
    closed, open_one = (
        attentions(convolutional_init(network, content_share=share)[0])[0] for share in (0.0, 0.25)
    )
    x = tokens(network, closed).double()

    def mixed(by_position, by_content, x):
        content = by_content(x)
        y = torch.lerp(by_position(x), content, 0.25)
        return torch.cat([content[:, :1], y[:, 1:]], 1)  # a prefix token has no position

    inputs = (closed, network.blocks[0].attn, x)
    assert_within_budget(open_one(x), mixed(*inputs), roundings(mixed, *inputs))


def test_a_closed_gate_opens():
    made, _ = convolutional_init(vit(**VITS["9 heads of width 2"]))
    attention = attentions(made.train())[0]
    steps = torch.optim.SGD(made.parameters(), lr=0.1)
    for _ in range(2):
        steps.zero_grad()
        made(pixels()).square().sum().backward()
        steps.step()
    assert attention.gate.detach().abs().min() > 0
    assert attention.query.weight.grad[:2].abs().max() > 0
    assert attention.encoding.centres.grad.abs().max() == 0  # hard


def test_soft_heads_learn_where_they_look():
    made, record = convolutional_init(vit(**VITS["9 heads of width 2"]), sharpness=5, content=False)
    assert (record.exact, record.verdict, record.sharpness) == (
        False,
        "different",
        pytest.approx(5),
    )
    assert all(0 < layer.measured_error <= layer.bound for layer in record.layers)
    made(pixels()).square().sum().backward()
    assert all(
        attention.layer.encoding.centres.grad.abs().min() > 0 for attention in attentions(made)
    )


@pytest.mark.parametrize(
    "options", [VITS["3 heads of width 7"], VITS["registers"], VITS["patches alone"]]
)
def test_without_content_the_network_is_one_of_convolutions(options):
    network = vit(**options)
    made, record = convolutional_init(network, content=False)
    assert (record.exact, record.content) == (True, "none")
    x = pixels()
    convolved, certificate = network_to_conv(made, images=x)
    assert certificate.passed
    assert len(convolutions(convolved)) == 1 + 2
    assert not any("query" in name for name, _ in made.named_parameters())
    with torch.no_grad():
        high, lows = copy.deepcopy(convolved).double()(x.double()), roundings(call, convolved, x)
        assert_within_budget(made(x), high, lows)
        nn.init.zeros_(attentions(convolved)[0].layer.weight[:, :, 0, 0])
        with pytest.raises(AssertionError, match="above the budget"):
            assert_within_budget(convolved(x), high, lows)


def test_a_prefix_token_takes_the_mean_of_the_patches():
    made, _ = convolutional_init(vit(**VITS["registers"]), content=False)
    attention = attentions(made)[0]
    y = attention(torch.randn(2, 3 + 35, 18))
    assert torch.equal(y[:, :3], y[:, 3:].mean(1, keepdim=True).expand(-1, 3, -1))


def test_the_record_is_saved(tmp_path):
    record = convolutional_init(vit(**VITS["3 heads of width 7"]))[1]
    assert ConvolutionalInit.load(record.save(tmp_path / "record.json")) == record
    assert record.summary().splitlines()[:4] == [
        "convolutional init: exact (2 layers of VisionTransformer)",
        "  kernel          3 x 3 on a grid of 5 x 7 patches, after 1 prefix token",
        "  heads           9 of width 7, 1 of them at the query's own patch; 6 of them new",
        "  sharpness       128 per patch²",
    ]


@pytest.mark.parametrize("pool", ["map", "prr"])
def test_attention_that_pools_is_left_alone(pool):
    record = convolutional_init(vit(**VITS["9 heads of width 2"], global_pool=pool))[1]
    assert len(record.layers) == 2
    reason = "its queries are learned and have no position: it pools the tokens"
    assert [(item.name, item.reason) for item in record.left] == [("attn_pool", reason)]
    assert "  left alone      attn_pool (AttentionPool" in record.summary()


ARGUMENTS = {
    "kernel_size": (
        {"kernel_size": 0},
        r"^kernel_size must be an integer of at least 1, or 2 of them, but is 0$",
    ),
    "no middle": (
        {"kernel_size": (3, 2)},
        r"^kernel_size must be odd, so that there is a patch in the middle, but is \(3, 2\)$",
    ),
    "sharpness": ({"sharpness": 0}, r"^sharpness must be a positive finite number, but is 0$"),
    "a sharpness that is no number": (
        {"sharpness": True},
        r"^sharpness must be a positive finite number, but is True$",
    ),
    "generator": (
        {"generator": 0},
        r"^generator must be a torch.Generator or None, but is of type int$",
    ),
    "content_share": (
        {"content_share": 1.0},
        r"^content_share must be a share in \[0, 1\), but is 1\.0$",
    ),
    "content": ({"content": "open"}, r"^content must be \"gated\" or False, but is 'open'$"),
    "a share of nothing": (
        {"content": False, "content_share": 0.5},
        r"^content_share must be 0 without content, but is 0\.5$",
    ),
}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(("options", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_checked(options, message):
    with pytest.raises(ArgumentError, match=message):
        convolutional_init(vit(**VITS["9 heads of width 2"]), **options)


def test_masks_are_refused():
    made, _ = convolutional_init(vit(**VITS["9 heads of width 2"]))
    message = r"^attn_mask must be None: heads that attend by position take no mask$"
    with pytest.raises(ConvAttnError, match=message):
        made.forward_features(pixels(), attn_mask=torch.ones(36, 36))
    with pytest.raises(
        ConvAttnError,
        match=r"^is_causal must be False, but is True: patches have no order in time$",
    ):
        made.forward_features(pixels(), is_causal=True)
