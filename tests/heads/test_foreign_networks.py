"""Networks of nobody's library: named until they are registered, then read, and a head replaced by the definition."""

import re
from dataclasses import replace

import pytest
import torch
from tests.heads.foreign_networks import FOREIGN, HEADS, normed_matrices
from tests.heads.report_cases import outputs
from torch import nn

from convattn.budget import assert_within_budget, references
from convattn.errors import ArgumentError, ConvAttnError, UnsupportedModelError
from convattn.heads import analyze, replace_heads
from convattn.heads.catalogue import read_matrices, register_attention
from convattn.heads.reading import watch

HEAD = 1


def images(network, count):
    tokens = len(network.positions) - len(network.first)
    size = (3, 16, tokens)  # four rows of patches of 4 × 4 pixels
    return torch.randn(count, *size, generator=torch.Generator().manual_seed(3))


def defined(layer):
    """The weights of a replaced head between all tokens, written out position by position."""
    rows, cols = layer.grid
    count, prefix, head = rows * cols, layer.prefix, layer.heads[HEAD]
    kernel = dict(zip(layer.displacements, head.position_kernel, strict=True))
    weights = torch.zeros(prefix + count, prefix + count, dtype=torch.float64)
    for query in range(count):
        for key in range(count):
            step = (key // cols - query // cols, key % cols - query % cols)
            weights[prefix + query, prefix + key] = kernel.get(
                step, 0.0
            )  # 0 where a mask excludes it everywhere
    shares = torch.tensor(head.prefix_weights, dtype=torch.float64)
    around = weights[prefix:]
    weights[prefix:] = (1 - shares.sum()) * around / around.sum(-1, keepdim=True)
    weights[prefix:, :prefix] = shares
    maps = torch.tensor(head.prefix_maps, dtype=torch.float64).view(prefix, prefix + count)
    weights[:prefix] = maps / maps.sum(-1, keepdim=True)
    return weights


def with_the_definition(network, layer, x):
    """What the network makes of images if one head of its first layer has the weights of the definition."""
    maps, found = [], []
    watch(network, x, lambda call: maps.append(call.weights[:, 0].clone()), layers=layer.name)
    attention = network.get_submodule(layer.name)
    matrices = read_matrices(attention)

    def instead(module, arguments, out):
        tokens = arguments[0]
        if isinstance(module, FOREIGN["norm inside"].cls):
            tokens = module.norm(tokens)
        weights = maps[0].to(tokens)
        weights[:, HEAD] = defined(layer).to(tokens)
        values = matrices.value.to(tokens)(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        y = matrices.output.to(tokens)((weights @ values).transpose(1, 2).flatten(2))
        found.append(y)
        return (y, None) if isinstance(out, tuple) else y

    hook = attention.register_forward_hook(instead)
    with torch.no_grad():
        made = network(x)
    hook.remove()
    assert len(found) == 1
    return made


@pytest.mark.parametrize("name", FOREIGN)
def test_a_network_is_named_registered_read_and_replaced(name):
    build, cls, read, matrices = FOREIGN[name]
    network = build()
    x = images(network, 6)
    with pytest.raises(UnsupportedModelError, match=rf"register_attention\({cls.__name__}, lambda"):
        analyze(network, x, controls=(), progress=False)
    with register_attention(cls, read, matrices=matrices):
        report = analyze(network, x, controls=(), progress=False)
        layer = report.layers[0]
        assert len(report.layers) == 2
        if name == "shifted windows":
            with pytest.raises(UnsupportedModelError, match="`matrices` of register_attention"):
                replace_heads(network, report, heads=[(layer.name, HEAD)])
            return
        made, record = replace_heads(network, report, heads=[(layer.name, HEAD)])
        assert len(record.replaced) == 1
        expected, lows = references(
            lambda net, x: with_the_definition(net, layer, x), network, x[:2]
        )
        assert_within_budget(outputs(made, x[:2]), expected, lows)
        assert (outputs(made, x[:2]) - outputs(network, x[:2])).abs().max() > 1e-3


DIFFERENT = (
    r"matrices` of register_attention must compute what the layers do,(.|\n)*is layers\.0: off"
)
WRONG = {
    "a norm forgotten": (lambda right: replace(right, wrap=nn.Sequential), DIFFERENT),
    "another scale": (lambda right: replace(right, scale=1.0), DIFFERENT),
    "keys for values": (lambda right: replace(right, value=right.key), DIFFERENT),
    "no module of tokens": (
        lambda right: replace(right, wrap=lambda _: nn.Linear(3, 3)),
        "shapes cannot be multiplied",
    ),
}


def test_matrices_that_compute_something_else_are_refused(without_type_checks):
    build, cls, read, matrices = FOREIGN["norm inside"]
    network = build()
    with register_attention(cls, read, matrices=matrices):
        report = analyze(network, images(network, 4), controls=(), progress=False)
    for name, (change, message) in WRONG.items():

        def wrong(module, change=change):
            return change(normed_matrices(module))

        with (
            register_attention(cls, read, matrices=wrong),
            pytest.raises(ConvAttnError) as caught,
        ):
            replace_heads(network, report, heads=[("layers.0", HEAD)])
        assert re.search(message, str(caught.value)), name
    with (
        register_attention(cls, read, matrices=lambda module: module.to_qkv),
        pytest.raises(
            ArgumentError, match=r"^what `matrices` of Normed returns must be a TokenAtt"
        ),
    ):
        replace_heads(network, report)
