"""How trained heads are tested by cause: arms, blocks that are not computed again, and what the rules say."""

from dataclasses import replace

import numpy as np
import onnx
import torch
from scipy import stats
from tests.heads.report_cases import measured

from convattn.heads.head_report import weight_digests
from convattn.heads.mean_maps import mean_maps
from evidence.packaged_weights import _read_8_bits
from evidence.trained_heads import __main__ as runner
from evidence.trained_heads import arms, page
from evidence.trained_heads.networks import Trained, alike


def trained():
    """A small network as the protocol sees one, with its report."""
    network, x, report = measured("dinov2")
    names = [layer.name for layer in report.layers]
    report = replace(report, weights=weight_digests(network, names))

    def features(network, batch):
        states = network(batch).last_hidden_state
        return {"feature": states[:, 0], "tokens": states[:, 1:]}

    given = Trained(
        title="it",
        about="nothing",
        network=network,
        blocks="encoder.layer",
        reach=1,
        features=features,
        fitted=x,
        tested=x,
        batch=2,
    )
    return given, report


def test_blocks_that_are_not_computed_again_change_nothing():
    given, report = trained()
    heads = [(report.layers[-1].name, 0)]
    maps = mean_maps(given.network, given.tested)
    before = runner.States(given)
    for arm in (arms.OWN, arms.MEAN, arms.ZERO, *arms.turns(report)):
        made = arms.altered(given.network, report, maps, heads, arm)
        with torch.no_grad():
            whole = given.features(made, given.tested)
        kept = before.compared(made, heads, range(len(given.tested)))
        for name, features in whole.items():
            assert kept[name] == alike(features, before.features[name]), (arm, name)
        assert min(kept["tokens"]) < 1, arm


def test_drawn_heads_are_others_of_the_same_layers_and_kernels_move_on():
    _, report = trained()
    heads = [(report.layers[0].name, 1), (report.layers[1].name, 0), (report.layers[1].name, 1)]
    for draw in range(20):
        others = arms.matched(report, heads, draw)
        assert not {*others} & {*heads}, draw
        assert {name for name, _ in others} <= {name for name, _ in heads}, draw
        moved = arms.permuted(heads, draw)
        assert sorted(moved.values()) == sorted(heads), draw
        assert all(head != other for head, other in moved.items()), draw


def test_rank_correlations_are_spearmans():
    one, other = np.random.default_rng(1).integers(7, size=(2, 5, 11))
    found = runner._correlations(one, other)
    for row, value in enumerate(found):
        assert abs(value - stats.spearmanr(one[row], other[row]).statistic) < 1e-12


def rows(arm, feature):
    """A record in which three inputs have a quality."""
    return {"arm": arm, "inputs": list(range(len(feature))), "feature": feature}


def test_the_own_kernel_is_compared_with_the_best_turn_of_each_input(monkeypatch):
    cause = [rows(arms.OWN, [0.9, 0.8, 0.95])]
    turned = ([0.1, 0.7, 0.2], [0.5, 0.1, 0.3], [0.2, 0.2, 0.6])
    cause += [rows(arm, quality) for arm, quality in zip(arms.TURNED, turned, strict=True)]
    record = {"title": "it", "parts": ["cause"], "cause": cause}
    assert page.best_turned(record) == [0.5, 0.7, 0.6]
    for parts, words in ((["cause"], ["not resolved"]), ([], [])):
        known = {"clip": {**record, "parts": parts}}
        monkeypatch.setattr(page, "run", lambda known=known: known)
        assert [gap.word for gap in page.rule_one().values()] == words
        assert ("`clip`" in page.missing("cause")) == (not words)


def test_weights_in_8_bits_are_read_by_place():
    whole = torch.tensor([[130, 120, 128], [128, 140, 0]], dtype=torch.uint8)
    numbers = {
        "w_quantized": whole,
        "w_scale": torch.tensor([0.5, 1, 2]),
        "w_zero_point": torch.tensor([128, 128, 0], dtype=torch.uint8),
    }
    node = onnx.helper.make_node(
        "MatMulInteger", ["x", "w_quantized"], ["y"], name="/a/b/MatMul_quant"
    )
    graph = onnx.helper.make_graph([node], "g", [], [])
    assert _read_8_bits(graph, numbers)["a.b.weight"].tolist() == [[1, 0], [-8, 12], [256, 0]]
