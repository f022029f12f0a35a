"""Output matrices that are fitted anew after heads were replaced."""

import pytest
import torch
from tests.adapters.report_cases import (
    GRID,
    attention_maps,
    bert,
    every_head,
    images,
    outputs,
    report_of,
    timm_vit,
    torchvision_vit,
    transformers_vit,
    words,
)
from torch import nn

from convattn import replace_convolutional_heads
from convattn.convert import fit
from convattn.errors import ArgumentError
from convattn.heads.convolved_attention import ConvolvedAttention
from convattn.heads.replace import HeadReplacement

NETWORKS = {
    "timm": (timm_vit, (20, 28), GRID),
    "transformers": (transformers_vit, (28, 28), (7, 7)),
    "torchvision": (torchvision_vit, (28, 28), (7, 7)),
}


def measured(name):
    make, size, grid = NETWORKS[name]
    network = make()
    return (
        network,
        report_of(network, attention_maps(network, images(size)), grid),
        images(size, 60),
    )


def attention_of(network):
    return [module for module in network.modules() if isinstance(module, ConvolvedAttention)]


@pytest.mark.parametrize("name", NETWORKS)
def test_refitted_layers_are_nearer_on_images_held_out(name):
    network, report, x = measured(name)
    heads = [head for head in every_head(report) if head[1] < 2]
    _, without = replace_convolutional_heads(network, report, heads=heads)
    _, record = replace_convolutional_heads(network, report, heads=heads, refit=x)
    assert without.refinement is None
    assert record.refinement is not None
    assert [layer.name for layer in record.refinement.layers] == [
        layer.name for layer in report.layers
    ]
    assert (record.refinement.fitted, record.refinement.held_out, record.refinement.left_alone) == (
        48,
        12,
        (),
    )
    assert all(layer.kept and layer.after < layer.before for layer in record.refinement.layers)


def outputs_of_layer(network, x):
    """What the attention of the only block gives."""
    found = []
    with network.blocks[0].attn.register_forward_hook(lambda *call: found.append(call[2])):
        outputs(network, x)
    return found[0]


def test_a_refitted_layer_is_nearer_on_images_that_it_has_not_seen():
    """What comes after the layer was not fitted, and may make more of a smaller error."""
    network, x = timm_vit(0, depth=1), images(count=220)
    report = report_of(network, attention_maps(network, images()), prefix=0)
    options = {"model": network, "report": report, "heads": every_head(report)}
    plain, _ = replace_convolutional_heads(**options)
    made, record = replace_convolutional_heads(**options, refit=x[:160])
    assert record.refinement is not None
    exact = outputs_of_layer(network, x[160:])
    away = [
        (outputs_of_layer(net, x[160:]) - exact).square().mean().item() for net in (plain, made)
    ]
    assert away[1] < away[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_only_output_matrices_change(name):
    network, report, x = measured(name)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    heads = every_head(report)[:1]
    plain, _ = replace_convolutional_heads(network, report, heads=heads)
    made, _ = replace_convolutional_heads(network, report, heads=heads, refit=x)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    (output,) = {id(layer.output): layer.output for layer in attention_of(made)}.values()
    own = {
        f"{name}.{key}"
        for name, part in made.named_modules()
        if part is output
        for key in ("weight", "bias")
    }
    states = plain.state_dict(), made.state_dict()
    assert {key for key in states[0] if not torch.equal(states[0][key], states[1][key])} == own
    assert {p.requires_grad for p in made.parameters()} == {True}


def test_the_matrix_is_that_of_least_squares():
    network, report, x = measured("timm")
    heads = [(report.layers[0].name, 0), (report.layers[0].name, 1)]
    made, _ = replace_convolutional_heads(network, report, heads=heads, refit=x)
    plain, _ = replace_convolutional_heads(network, report, heads=heads)
    (layer,), (old,) = attention_of(made), attention_of(plain)
    assert isinstance(layer.output, nn.Linear)
    assert isinstance(old.output, nn.Linear)
    fit = x[torch.arange(len(x)) % 5 != 4]
    rows, wanted = [], []
    handles = [
        old.output.register_forward_pre_hook(
            lambda _, given: rows.append(given[0].detach().flatten(0, 1).double())
        ),
        network.blocks[0].attn.register_forward_hook(
            lambda *met: wanted.append(met[2].detach().flatten(0, 1).double())
        ),
    ]
    with torch.no_grad():
        plain(fit)
        network(fit)
    for handle in handles:
        handle.remove()
    features = torch.cat([rows[0], torch.ones(len(rows[0]), 1)], 1)
    start = torch.cat([old.output.weight.double(), old.output.bias.double()[:, None]], 1)
    penalty = (1e-3 * features.square().sum(0).mean()) ** 0.5 * torch.eye(
        features.shape[1]
    ).double()
    change = torch.linalg.lstsq(
        torch.cat([features, penalty]),
        torch.cat([wanted[0] - features @ start.mT, torch.zeros(len(penalty), len(start))]),
    ).solution
    found = torch.cat([layer.output.weight.double(), layer.output.bias.double()[:, None]], 1)
    assert (found - start - change.mT).abs().max().item() < 1e-5 * start.abs().max().item()


def test_a_fit_that_does_not_help_is_undone(monkeypatch):
    network, report, x = measured("timm")
    name = report.layers[0].name
    plain, _ = replace_convolutional_heads(network, report, heads=[(name, 0)])
    add = fit.NormalEquations.add
    monkeypatch.setattr(
        fit.NormalEquations, "add", lambda sums, x, errors: add(sums, x, -errors)
    )  # fits the wrong way
    made, record = replace_convolutional_heads(network, report, heads=[(name, 0)], refit=x)
    assert record.refinement is not None
    (layer,) = record.refinement.layers
    assert not layer.kept
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), made.parameters(), strict=True)
    )
    assert "not kept" in record.summary()


def test_the_trial_is_that_of_the_refitted_network():
    network, report, x = measured("timm")
    made, record = replace_convolutional_heads(
        network, report, heads=every_head(report), refit=x[:40], images=x[40:]
    )
    assert record.trial is not None
    largest = (outputs(made, x[40:]) - outputs(network, x[40:])).abs().max().item()
    assert record.trial.largest_change == pytest.approx(largest, rel=1e-4)
    assert HeadReplacement.from_json(record.to_json()).refinement == record.refinement
    assert "refined on 32 images" in record.summary()


def test_nothing_replaced_is_nothing_refitted():
    network, report, x = measured("timm")
    made, record = replace_convolutional_heads(network, report, threshold=1.0, refit=x)
    assert record.refinement is None
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), made.parameters(), strict=True)
    )


def test_modes_and_random_numbers_stay():
    network, report, x = measured("timm")
    network.train()
    network.get_submodule("blocks.1").eval()
    state = torch.random.get_rng_state()
    made, _ = replace_convolutional_heads(network, report, heads=every_head(report), refit=x)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert made.training
    assert not made.get_submodule("blocks.1").training
    assert [layer.training for layer in attention_of(made)] == [True, False]


@pytest.mark.parametrize(
    ("refit", "message"),
    [
        (torch.zeros(4, 3, 20, 28), "refit must be a batch of at least 5, but is (4, 3, 20, 28)"),
        (torch.zeros(6, 3, 20, 28, device="meta"), "refit must have values"),
        (torch.zeros(6, 1, 20, 28), "refit must fit both networks"),
        (torch.zeros(6, 3, 28, 20), "refit must fit both networks"),
        (torch.full((6, 3, 20, 28), torch.nan), "refit must give finite outputs in both networks"),
        (  # the fifth of these is held out; the first is fitted to
            torch.cat([torch.full((1, 3, 20, 28), torch.nan), torch.zeros(5, 3, 20, 28)]),
            "refit must give finite outputs in both networks",
        ),
    ],
)
def test_bad_images_are_refused(refit, message):
    network, report, _ = measured("timm")
    with pytest.raises(ArgumentError) as error:
        replace_convolutional_heads(network, report, heads=every_head(report), refit=refit)
    assert message in str(error.value)


def test_autocast_does_not_hide_a_fit():
    network, report, x = measured("timm")
    plain, record = replace_convolutional_heads(network, report, heads=every_head(report), refit=x)
    with torch.autocast("cpu", torch.bfloat16):
        made, same = replace_convolutional_heads(network, report, heads=every_head(report), refit=x)
    assert record.refinement is not None
    assert same.refinement == record.refinement
    assert any(layer.kept for layer in record.refinement.layers)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor)


def test_layers_without_an_output_matrix_are_refused():
    network, x = bert(), words()
    report = report_of(network, attention_maps(network, x), (11,), 0)
    with pytest.raises(
        ArgumentError,
        match=r"refit must be None, because .*another module applies its output matrix",
    ):
        replace_convolutional_heads(network, report, heads=every_head(report), refit=words(count=6))
