"""Networks whose heads were replaced: what they compute, what they hold, and what their record says."""

import copy
from dataclasses import replace
from functools import partial
from math import isnan, prod

import pytest
import timm
import torch
from tests.adapters.report_cases import (
    GRID,
    attention_maps,
    bert,
    fixed_weights,
    images,
    replaced_layer,
    report_of,
    timm_vit,
    torchvision_vit,
    transformers_vit,
    words,
)
from torch import nn

from convattn.adapters.replacement import ConvolvedAttention, random_heads, replace_convolutional_heads
from convattn.adapters.replacement.measured import measured_heads
from convattn.adapters.replacement.readers import read_attention
from convattn.analysis import analyze
from convattn.records import HeadReplacement
from convattn.testing.budget import assert_within_budget

NETWORKS = {
    "timm, no prefix": (partial(timm_vit, 0), images, GRID, 0),
    "timm, class token": (timm_vit, images, GRID, 1),
    "timm, two prefix tokens": (partial(timm_vit, 2), images, GRID, 2),
    "timm, five prefix tokens": (partial(timm_vit, 5), images, GRID, 5),
    "timm, queries normalised": (partial(timm_vit, qk_norm=True), images, GRID, 1),
    "timm, no biases": (partial(timm_vit, qkv_bias=False, proj_bias=False), images, GRID, 1),
    "transformers": (transformers_vit, partial(images, (28, 28)), (7, 7), 1),
    "torchvision": (torchvision_vit, partial(images, (28, 28)), (7, 7), 1),
    "bert": (bert, words, (11,), 0),
}


def measured(name, **changes):
    """A network, its images and its report."""
    make, draw, grid, prefix = NETWORKS[name]
    network, x = make(), draw()
    return network, x, report_of(network, attention_maps(network, x), grid, prefix, **changes)


def every_head(report):
    return [(layer.name, head.head) for layer in report.layers for head in layer.heads]


def outputs(network, *arguments, **named):
    with torch.no_grad():
        y = network(*arguments, **named)
    return y if isinstance(y, torch.Tensor) else y[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_replaced_heads_use_the_fixed_weights(name):
    network, _, report = measured(name)
    made, _ = replace_convolutional_heads(network, report, heads=every_head(report))
    layer = report.layers[1]
    attention = attention_of(made, layer.name)
    weights = fixed_weights(layer, measured_heads(layer, range(len(layer.heads))))
    tokens = torch.randn(2, layer.prefix + prod(layer.grid), attention.value.in_features)
    hi, lo = (
        replaced_layer(network, layer.name, weights)(tokens),
        replaced_layer(network, layer.name, weights, torch.float32)(tokens),
    )
    assert_within_budget(attention(tokens).detach(), hi, lo, name)


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_without_heads_by_content_hold_no_queries_and_keys(name):
    network, x, report = measured(name)
    made, record = replace_convolutional_heads(network, report, heads=every_head(report))
    assert record.layers_without_softmax == tuple(layer.name for layer in report.layers)
    held = {parameter.rpartition(".")[0].rpartition(".")[2] for parameter, _ in made.named_parameters()}
    assert not held & {"query", "key", "qkv", "q_proj", "k_proj"}
    assert outputs(made, x).shape == outputs(network, x).shape


@pytest.mark.parametrize("name", NETWORKS)
def test_a_threshold_that_nothing_meets_changes_no_bit(name):
    network, x, report = measured(name)
    made, record = replace_convolutional_heads(network, report, 1.0, images=x)
    assert not record.replaced
    assert {head.reason for head in record.left} == {"its position score is below the threshold"}
    assert torch.equal(outputs(made, x), outputs(network, x))
    assert record.trial.predictions_changed == record.trial.largest_change == 0
    assert not {id(part) for part in made.parameters()} & {id(part) for part in network.parameters()}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_itself_stays_as_it_was(name):
    network, x, report = measured(name)
    before, state, text = outputs(network, x), copy.deepcopy(network.state_dict()), repr(network)
    replace_convolutional_heads(network, report, heads=every_head(report), images=x)
    assert repr(network) == text
    assert torch.equal(outputs(network, x), before)
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_other_heads_attend_as_before(name):
    """With one head replaced by its own maps' means, the difference of the first layer is that head's alone."""
    network, _, report = measured(name)
    layer = report.layers[0]
    made, record = replace_convolutional_heads(network, report, heads=[(layer.name, 1)])
    assert [(head.layer, head.head) for head in record.replaced] == [(layer.name, 1)]
    assert record.layers_without_softmax == ()
    tokens = torch.randn(2, layer.prefix + prod(layer.grid), attention_of(made, layer.name).value.in_features)
    wide = copy.deepcopy(network).double()
    hi, lo = (expected(n, layer, tokens.to(kind)) for n, kind in ((wide, torch.float64), (network, torch.float32)))
    assert_within_budget(attention_of(made, layer.name)(tokens).detach(), hi.double(), lo, name)


def attention_of(made, name):
    return next(part for part in made.get_submodule(name).modules() if isinstance(part, ConvolvedAttention))


def expected(network, layer, tokens):
    """The first layer on tokens with head 1 at its fixed weights, the others by the definition."""
    read = read_attention(network.get_submodule(layer.name))
    with torch.no_grad():
        query, key, value = (
            part(tokens).unflatten(-1, (read.heads, -1)).movedim(-2, 1) for part in (read.query, read.key, read.value)
        )
        query, key = read.query_norm(query), read.key_norm(key)
        weights = (query @ key.mT * read.head_width**-0.5).softmax(-1)
        weights[:, 1] = fixed_weights(layer, measured_heads(layer, [1]))[1].to(weights.dtype)
        y = (weights @ value).movedim(1, -2).flatten(-2)
        return y if read.output is None else read.output(y)


class Planted(nn.Module):
    """timm's attention whose heads look at fixed shifts: scores −α‖k − q − Δ‖² from positions in the tokens."""

    def __init__(self, shifts, sharpness):
        super().__init__()
        width = 6
        self.attn = timm.layers.Attention(width * len(shifts), num_heads=len(shifts))
        cells = torch.cartesian_prod(*(torch.arange(float(size)) for size in GRID))
        self.register_buffer("places", torch.cat([torch.ones(len(cells), 1), cells, cells.square().sum(1, True)], 1))
        with torch.no_grad():
            query, key, _ = self.attn.qkv.weight.view(3, len(shifts), width, -1)
            query.zero_()
            key.zero_()
            for head, shift in enumerate(shifts):
                scale = sharpness * width**0.5
                for axis, step in enumerate(shift):  # 2α (q + Δ)·k − α‖k‖²
                    query[head, axis, 0], query[head, axis, 1 + axis] = 2 * scale * step, 2 * scale
                    key[head, axis, 1 + axis] = 1
                query[head, 2, 0], key[head, 2, 3] = -scale, 1

    def forward(self, x):
        places = self.places.expand(len(x), -1, -1)
        return self.attn(torch.cat([places, x[..., places.shape[2] :]], 2))


SHIFTS = ((0, 0), (1, 0), (0, -1))


def planted(sharpness, dtype=torch.float64, *, known=True):
    """The network, tokens, and a report with the kernels that are planted, or with plain means."""
    torch.manual_seed(0)
    network = Planted(SHIFTS, sharpness).to(dtype).eval()
    x = torch.randn(2, prod(GRID), 18, dtype=dtype)
    tokens = torch.cat([network.places.expand(2, -1, -1), x[..., 4:]], 2)
    report = report_of(network, {"attn": next(iter(attention_maps(Holder(network.attn), tokens).values()))}, prefix=0)
    if known:
        (layer,) = report.layers
        shifts = torch.tensor(layer.displacements, dtype=torch.float64)
        scores = [-sharpness * (shifts - torch.tensor(shift)).square().sum(1) for shift in SHIFTS]
        kernels = [tuple(score.softmax(0).tolist()) for score in scores]
        heads = [replace(head, position_kernel=kernel) for head, kernel in zip(layer.heads, kernels, strict=True)]
        measured = replace(layer.measured, heads=tuple(heads))
        report = replace(report, layers=(replace(layer, measured=measured),))
    return network, x, report


class Holder(nn.Module):
    """A network that is one layer."""

    def __init__(self, attn):
        super().__init__()
        self.attn = attn

    def forward(self, x):
        return self.attn(x)


@pytest.mark.parametrize("sharpness", [0.5, 20.0], ids=["soft", "hard"])
def test_heads_that_are_convolutions_are_replaced_without_loss(sharpness):
    """At borders and corners too, where softmax leaves out what does not exist."""
    network, x, report = planted(sharpness)
    narrow = copy.deepcopy(network).float()
    made, record = replace_convolutional_heads(narrow, report, 0.5, images=x.float())
    assert len(record.replaced) == 3
    assert record.layers_without_softmax == ("attn",)
    assert_within_budget(outputs(made, x.float()), outputs(network, x), outputs(narrow, x.float()))


def test_the_check_rejects_a_kernel_of_plain_means():
    """A planted fault: mean weights in place of the kernel add the borders' weights everywhere."""
    network, x, report = planted(20.0, known=False)
    narrow = copy.deepcopy(network).float()
    made, _ = replace_convolutional_heads(narrow, report, heads=every_head(report))
    with pytest.raises(AssertionError, match="above the budget"):
        assert_within_budget(outputs(made, x.float()), outputs(network, x), outputs(narrow, x.float()))


@pytest.mark.parametrize("sharpness", [0.5, 20.0], ids=["soft", "hard"])
def test_boxes_contain_no_displacement_and_all_weight_but_rounding(sharpness):
    groups = measured_heads(planted(sharpness)[2].layers[0], (0, 1, 2))
    assert sorted(head for group in groups for head in group.heads) == [0, 1, 2]
    for group in groups:
        assert all(first <= 0 < first + size for first, size in zip(group.first, group.kernel.shape[1:], strict=True))
        assert (group.kernel.flatten(1).sum(1) - 1).abs().max() < 1e-12
    boxes = {group.heads: (group.first, tuple(group.kernel.shape[1:])) for group in groups}
    hard = {(0, 1, 2): ((0, -1), (2, 2))}
    assert (boxes == hard) == (sharpness == 20.0)


def test_heads_of_which_kernels_differ_much_in_size_run_apart():
    """A head that looks at one displacement keeps its small kernel beside one that looks everywhere."""
    _, _, report = planted(20.0)
    (layer,) = report.layers
    wide = replace(layer.heads[1], position_kernel=(1.0,) * len(layer.displacements))
    heads = (layer.heads[0], wide, layer.heads[2])
    groups = measured_heads(replace(layer, measured=replace(layer.measured, heads=heads)), (0, 1, 2))
    assert [(group.heads, tuple(group.kernel.shape[1:])) for group in groups] == [((0, 2), (1, 2)), ((1,), (9, 13))]


def test_a_report_of_analyze_is_taken_as_it_comes():
    network, x = timm_vit(2), images(count=12)
    report = analyze(network, x[:10], controls=(), progress=False)
    made, record = replace_convolutional_heads(network, report, heads=every_head(report), images=x[10:])
    assert record.layers_without_softmax == ("blocks.0.attn", "blocks.1.attn")
    assert record.trial.images == 2
    weights = attention_maps(network, x[:10])["blocks.1.attn"]
    moved = attention_of(made, "blocks.1.attn")
    order = [head for group in measured_heads(report.layers[1], (0, 1, 2)) for head in group.heads]
    shares, maps = weights[:, order, 2:, :2].mean((0, 2)), weights[:, order, :2].mean(0)
    assert_within_budget(moved.prefix_shares.detach(), shares, shares.float())
    assert_within_budget(moved.prefix_maps.detach(), maps, maps.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_dtype_stays_and_kernels_are_wide(dtype):
    network, x, report = measured("timm, class token")
    made, _ = replace_convolutional_heads(network.to(dtype), report, heads=every_head(report))
    assert outputs(made, x.to(dtype)).dtype == dtype
    wide = torch.promote_types(dtype, torch.float32)
    kinds = {name.rpartition(".")[2]: value.dtype for name, value in made.named_parameters()}
    assert {kinds[name] for name in ("kernel", "prefix_shares", "prefix_maps")} == {wide}
    assert kinds["weight"] == dtype


@pytest.mark.parametrize("name", NETWORKS)
def test_the_made_network_can_be_trained(name):
    network, x, report = measured(name)
    made, _ = replace_convolutional_heads(network, report, heads=every_head(report)[::2])
    output = made.train()(x)
    (output if isinstance(output, torch.Tensor) else output[0]).square().sum().backward()
    missing = [key for key, parameter in made.named_parameters() if parameter.grad is None and parameter.numel()]
    assert not missing
    assert all(parameter.grad is None for parameter in network.parameters())


def test_frozen_layers_stay_frozen():
    network, _, report = measured("timm, class token")
    made, _ = replace_convolutional_heads(network.requires_grad_(requires_grad=False), report, heads=every_head(report))
    assert not any(parameter.requires_grad for parameter in made.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_its_weights_load_into_another_one_made_alike(name):
    network, x, report = measured(name)
    chosen = every_head(report)[1::2]
    made, _ = replace_convolutional_heads(network, report, heads=chosen)
    torch.manual_seed(1)
    other = copy.deepcopy(network)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    again, _ = replace_convolutional_heads(other, report, heads=chosen)
    again.load_state_dict(made.state_dict())
    assert torch.equal(outputs(again, x), outputs(made, x))


def test_the_mode_of_the_network_stays():
    network, _, report = measured("timm, class token")
    for training in (True, False):
        made, _ = replace_convolutional_heads(network.train(training), report, heads=every_head(report))
        assert {part.training for part in made.modules()} == {training}


def test_padded_words_count_for_nothing():
    """The kernel is renormalised over the words that are there, as softmax does; what pads is seen by no word."""
    network, x, report = measured("bert")
    made, _ = replace_convolutional_heads(network, report, heads=every_head(report)[1::2])
    mask = torch.ones_like(x)
    mask[1, 7:] = 0
    other = x.clone()
    other[1, 7:] = 3
    one, two = (outputs(made, ids, attention_mask=mask) for ids in (x, other))
    assert torch.equal(one[1, :7], two[1, :7])
    alone = outputs(made, x[1:, :7])
    wide = copy.deepcopy(made).double()
    assert_within_budget(one[1:, :7], outputs(wide, x[1:, :7]), alone)


def test_sequences_of_other_lengths_run():
    network, _, report = measured("bert")
    made, _ = replace_convolutional_heads(network, report, heads=every_head(report))
    assert outputs(made, words(5)).shape == (2, 5, 15)
    assert outputs(made, words(17)).shape == (2, 17, 15)


def test_the_record_tells_all_heads_and_comes_back_from_json():
    network, x, report = measured("timm, class token")
    _, record = replace_convolutional_heads(network, report, heads=every_head(report)[:2], images=x)
    assert [(head.layer, head.head) for head in record.heads] == every_head(report)
    assert len(record.replaced) == 2
    assert {head.reason for head in record.left} == {"it was not named"}
    assert isnan(record.threshold)
    assert all(head.box for head in record.replaced)
    assert record.parameters == sum(
        p.numel() for p in replace_convolutional_heads(network, report, heads=every_head(report)[:2])[0].parameters()
    )
    again = HeadReplacement.from_json(record.to_json())
    assert again.trial == record.trial
    assert again.heads == record.heads
    text = record.summary()
    assert text.startswith("head replacement: 2 of 6 heads of VisionTransformer (named by the caller)")
    assert "4 heads: it was not named" in text


def test_random_heads_are_drawn_once_each_and_by_seed():
    _, _, report = measured("timm, class token")
    drawn = random_heads(report, 4)
    assert len(set(drawn)) == 4
    assert drawn == random_heads(report, 4)
    assert set(random_heads(report, 6)) == set(every_head(report))
    assert len({random_heads(report, 3, seed=seed) for seed in range(9)}) > 1
