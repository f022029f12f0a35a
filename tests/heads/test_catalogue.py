"""What `watch` sees of models that fail, call their own modules, or are no models."""

from dataclasses import replace

import pytest
import timm
import torch
from tests.heads.report_cases import images, outputs, timm_vit
from tests.heads.watch_cases import Tokens, assert_no_hooks, drawn, grid, seen_by
from torch import nn

from convattn.budget import assert_within_budget, roundings
from convattn.errors import ArgumentError, UnsupportedModelError
from convattn.heads import analyze
from convattn.heads.catalogue import attention_layers, register_attention
from convattn.heads.reading import as_it_was, watch
from convattn.heads.replace import replace_heads
from convattn.layers import RelativeAttention2d


class Fallible(Tokens):
    """A module that tries another one first, which raises, and then attends itself."""

    def __init__(self):
        super().__init__()
        self.tried = nn.Sequential(nn.Identity(), nn.Linear(5, 5))

    def forward(self, x):
        try:
            return self.tried(x)
        except RuntimeError:
            return super().forward(x)


class Turned(Tokens):
    """Attention with its tokens along the last axis: values stand to the left of the weights."""

    def forward(self, x):
        q, k, v = self.maps(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 4, 1)
        return (v @ torch.softmax(q.mT @ k, -1).mT).permute(0, 3, 1, 2).flatten(2)


def weights_of(network, x):
    (call,) = seen_by(network, x)
    return call.weights


def test_products_with_values_to_the_left():
    register_attention(Tokens, grid)
    register_attention(Turned, grid)
    network, same = Turned(), Tokens(fused=False)
    same.load_state_dict(network.state_dict())
    (turned,) = seen_by(network, drawn(13, 6))
    lows = roundings(weights_of, same, drawn(13, 6))
    assert_within_budget(turned.weights, weights_of(same.double(), drawn(13, 6).double()), lows)
    assert turned.normalised


def test_a_module_that_raised_and_was_caught_is_forgotten():
    register_attention(Fallible, grid)
    network = nn.Sequential(Fallible(), nn.Identity())
    (call,) = seen_by(network, drawn(13, 6))
    assert call.name == "0"
    with torch.no_grad():
        assert torch.equal(call.outputs, network(drawn(13, 6))[:, 1:])
    assert_no_hooks(network)


def test_a_callback_may_run_the_networks_own_modules():
    register_attention(Tokens, grid)
    network, found = nn.Sequential(Tokens(), Tokens()), []
    watch(
        network, drawn(13, 6), lambda call: found.append((call.name, network(drawn(13, 6)).shape))
    )
    assert found == [("0", (2, 13, 6)), ("1", (2, 13, 6))]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_modes_are_put_back_on_any_device(device):
    network = nn.Sequential(nn.Linear(3, 5, device=device), nn.Dropout().eval())
    with as_it_was(network):
        assert [module.training for module in network.modules()] == [False] * 3
        assert not torch.is_grad_enabled()
    assert [module.training for module in network.modules()] == [True, True, False]
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
def test_scripted_modules_are_refused():
    scripted = nn.Sequential(
        torch.jit.script(nn.Identity()),
        RelativeAttention2d(3, 3, num_heads=2, encoding="quadratic"),
    )
    with pytest.raises(
        UnsupportedModelError, match=r"^0 is scripted, and what it computes is not seen$"
    ):
        seen_by(scripted, drawn(3, 5, 7))


def test_layers_of_what_is_no_module_are_not_listed(without_type_checks):
    with pytest.raises(ArgumentError, match=r"^model must be an nn\.Module, but is of type str$"):
        attention_layers("vit")


def patterns(module):
    return [layer.pattern for layer in attention_layers(module)]


def test_registrations_end_in_any_order():
    one = register_attention(Tokens, grid)
    other = register_attention(Tokens, lambda call: call.global_layout((1, 12), prefix=1))
    (call,) = seen_by(Tokens(), drawn(13, 6))
    assert call.layout.grid == (1, 12)
    one.close()
    one.close()
    assert patterns(Tokens()) == ["registered"]
    other.close()
    with pytest.raises(UnsupportedModelError, match="Tokens can be read"):
        attention_layers(Tokens())
    with pytest.raises(RuntimeError, match="inside"), register_attention(Tokens, grid):
        raise RuntimeError("inside")
    with pytest.raises(UnsupportedModelError, match="Tokens can be read"):
        attention_layers(Tokens())


def test_heads_of_a_registered_class_are_replaced_all_the_same():
    network = timm_vit()
    report = analyze(network, images(), controls=(), progress=False)
    heads = [("blocks.0.attn", 0)]
    expected = outputs(replace_heads(network, report, heads=heads)[0], images())
    reads = {
        "in order": lambda call: call.global_layout((5, 7), prefix=1),
        "columns first": columns_first,
    }
    for name, read in reads.items():
        with register_attention(timm.layers.Attention, read):
            assert patterns(network) == ["registered"] * 2
            made, _ = replace_heads(network, report, heads=heads)
            assert torch.equal(outputs(made, images()), expected), name
            told = analyze(network, images(), controls=(), progress=False)
            _, record = replace_heads(network, told, heads=heads)
            assert bool(record.replaced[0].box) == (name == "in order")
        assert patterns(network) == ["global"] * 2


def columns_first(call):
    """A reader that says that patches stand column by column."""
    layout = call.global_layout((5, 7), prefix=1)
    order = torch.arange(35).view(5, 7).T.flatten()
    keys = layout.keys.clone()
    keys[:, 1:] = keys[:, 1:][:, order]
    queries = torch.cat([layout.queries[:, :1], order[None]], dim=1)
    return replace(layout, queries=queries, keys=keys)
