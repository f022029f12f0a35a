"""Networks of nobody's library: named until they are registered, then read, and a head replaced by the definition."""

from functools import partial

import pytest
import torch
from tests.heads.foreign_networks import FOREIGN
from tests.heads.report_cases import outputs

from convattn.budget import assert_within_budget, references
from convattn.errors import UnsupportedModelError
from convattn.heads import analyze, replace_heads
from convattn.heads.catalogue import register_attention
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


def with_the_definition(network, layer, x, case):
    """What the network makes of images if one head of its first layer has the weights of the definition."""
    maps, found = [], []
    watch(network, x, lambda call: maps.append(call.weights[:, 0].clone()), layers=layer.name)
    attention = network.get_submodule(layer.name)

    def instead(module, arguments, out):
        values = case.values(module, arguments[0])
        weights = maps[0].to(values)
        weights[:, HEAD] = defined(layer).to(values)
        y = module.get_submodule(case.output)((weights @ values).transpose(1, 2).flatten(2))
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
    case = FOREIGN[name]
    cls, network = case.cls, case.build()
    x = images(network, 6)
    with pytest.raises(UnsupportedModelError, match=rf"register_attention\({cls.__name__}, lambda"):
        analyze(network, x, controls=(), progress=False)
    with register_attention(cls, case.read):
        report = analyze(network, x, controls=(), progress=False)
        layer = report.layers[0]
        assert len(report.layers) == 2
        made, record = replace_heads(network, report, heads=[(layer.name, HEAD)])
        assert len(record.replaced) == 1
        assert (outputs(made, x[:2]) - outputs(network, x[:2])).abs().max() > 1e-3
        if case.values is not None:
            by_hand = partial(with_the_definition, layer=layer, case=case)
            expected, lows = references(lambda net, x: by_hand(net, x=x), network, x[:2])
            assert_within_budget(outputs(made, x[:2]), expected, lows)
