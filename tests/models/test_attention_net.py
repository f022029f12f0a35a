import pytest
import torch
from tests.models.network_cases import SMALL, count_parameters, small_images
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.flop_counter import FlopCounterMode

from convattn.convert import network_to_conv
from convattn.encodings import ENCODINGS
from convattn.encodings.start import attended_keys
from convattn.errors import (
    ArgumentError,
    EncodingRangeError,
    ShapeError,
    UnknownNameError,
)
from convattn.layers import Content, NormalisedConv
from convattn.models import AttentionNet


def test_operations_are_counted_in_half_precision_and_after_pruning():
    network = AttentionNet(width=8, depth=1, heads=4, ffn=8)
    expected = network.flops()
    assert network.bfloat16().flops() == expected
    network.float()
    prune.l1_unstructured(network.get_submodule("blocks.0.mixer.values"), "weight", 0.5)
    network(torch.zeros(1, 3, 32, 32))
    assert network.flops() == expected


def test_operations_are_counted_without_the_users_hooks():
    """A hook would be given tensors without values."""
    network, seen = AttentionNet(width=8, depth=1, heads=4, ffn=8), []
    expected = network.flops()
    network.register_forward_hook(lambda *given: seen.append(given))
    network.blocks[0].register_forward_pre_hook(lambda *given: seen.append(given))
    assert network.flops() == expected
    assert seen == []


@pytest.mark.parametrize(
    ("encoding", "content", "parameters"),
    [
        ("quadratic", False, 12_086_844),
        ("learned_axial", False, 12_278_682),
        ("learned_axial", True, 29_484_282),
    ],
)
def test_parameter_counts_are_the_papers(encoding, content, parameters):
    with torch.device("meta"):
        network = AttentionNet(encoding, content=content)
    assert count_parameters(network) == parameters


@pytest.mark.parametrize(
    "kind",
    [{}, {"content": True}, {"content": True, "gated": True}],
    ids=["position", "content", "gated"],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_gives_class_scores_and_gradients(encoding, kind):
    torch.manual_seed(0)
    heads = {"heads": 9} if encoding == "shift" else {}  # the taps of a kernel
    network = AttentionNet(encoding, **kind, **SMALL | heads)
    scores = network(small_images())
    assert scores.shape == (7, 5)
    scores.square().sum().backward()
    # the softmax cancels what is the same for all keys: a bias of the keys reaches no output
    without = {
        name for name, p in network.named_parameters() if p.grad is None and "key.bias" not in name
    }
    assert not without


def test_paper_network_with_content_has_one_tied_query_bias_and_raw_positions():
    mixer = AttentionNet("learned_axial", content=True, **SMALL).blocks[0].mixer
    assert mixer.content_terms == Content(
        key_width=14, project_position=False, content_bias=False, query_bias=True, key_bias=True
    )
    assert mixer.encoding.head_vectors is None
    assert [tuple(table.shape) for table in mixer.encoding.tables] == [(9, 7), (9, 7)]


def test_space_to_depth_is_invertible():
    network, images = AttentionNet(**SMALL), small_images()
    assert torch.equal(nn.PixelShuffle(network.patch)(network.patches(images)), images)


def test_start_is_normal_with_zero_biases():
    torch.manual_seed(0)
    network = AttentionNet("learned_axial", content=True, depth=1)
    attention = network.blocks[0].mixer
    weights = [module.weight for module in network.modules() if isinstance(module, nn.Linear)]
    for weight in [*weights, attention.values.weight]:
        spread = weight.std().item()
        # the standard deviation of n normal numbers is known to 1/√(2n); four of those
        assert abs(spread / 0.02 - 1) < 4 / (2 * weight.numel()) ** 0.5
    biases = [
        module.bias
        for module in network.modules()
        if isinstance(module, nn.Linear | type(attention))
    ]
    assert all(torch.count_nonzero(bias) == 0 for bias in biases)
    assert attention.encoding.tables[0].std() > 0.9


@pytest.mark.parametrize(
    ("encoding", "content", "linear", "mixing"),
    [
        ("quadratic", False, 6_175_956_800, 2_831_155_200),
        ("learned_axial", False, 6_175_956_800, 2_831_155_200),
        ("learned_axial", True, 15_023_316_800, 2_831_155_200),
    ],
)
def test_flops_of_the_papers_networks(encoding, content, linear, mixing):
    with torch.device("meta"):
        flops = AttentionNet(encoding, content=content).flops()
    assert (flops.linear, flops.mixing) == (linear, mixing)
    assert flops.content_scores == (mixing if content else 0)
    assert flops.total == linear + mixing + flops.content_scores + flops.position_scores


@pytest.mark.parametrize("heads", [3, [5, 2]], ids=["3", "5-2"])
@pytest.mark.parametrize(
    ("encoding", "kind"),
    [
        ("quadratic", {}),
        ("learned_axial", {"content": True}),
        ("learned_axial", {"content": True, "gated": True}),
    ],
    ids=["position", "content", "gated"],
)
def test_flops_agree_with_what_pytorch_counts(encoding, kind, heads):
    network = AttentionNet(encoding, **kind, **{**SMALL, "heads": heads}).eval()
    for block in network.blocks:
        block.mixer.impl = "reference"  # the closed form counts mixing with explicit weights
    with FlopCounterMode(display=False, depth=9) as counter, torch.no_grad():
        network(small_images()[:1])
    counts = {
        name: sum(operations.values()) for name, operations in counter.get_flop_counts().items()
    }
    expected, pixels, width = network.flops(image_size=10), 25, 14
    linear = sum(
        counts.get(f"AttentionNet.{name}", 0)
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
    )
    # the heads' values are one linear map in all but name: a product inside the attention, no module of its own
    values = 2 * pixels * sum(network.heads) * width * width
    assert linear + values == expected.linear
    # learned tables are made into scores of displacements by a small product that does not depend on the image
    tables = (
        sum(2 * 2 * 9 * width * heads for heads in network.heads)
        if network.blocks[0].mixer.gate is not None
        else 0
    )
    assert counts["Global"] == expected.total + tables


def test_flops_of_a_network_that_keeps_borders_are_those_of_attention():
    network = AttentionNet(**SMALL)
    made, _ = network_to_conv(network, images=small_images(), borders="exact")
    assert isinstance(made.blocks[0].mixer, NormalisedConv)
    assert made.flops(10) == network.flops(10)


def test_flops_of_weights_that_are_computed_are_those_of_the_layers():
    network = AttentionNet(**SMALL)
    expected = network.flops(10)
    for module in list(network.modules()):
        if isinstance(module, nn.Linear):
            weight_norm(module)
    mixer = network.blocks[0].mixer
    weight_norm(mixer.values, next(name for name, _ in mixer.values.named_parameters()))
    assert network.flops(10) == expected


def test_tables_end_at_the_image_size():
    network = AttentionNet("learned_axial", **SMALL)
    with pytest.raises(EncodingRangeError, match="holds displacements from -4 to 4"):
        network(torch.zeros(1, 3, 12, 12))


def test_each_block_has_its_own_number_of_heads():
    network = AttentionNet("quadratic", **{**SMALL, "heads": (5, 2)})
    assert network.heads == (5, 2)
    assert [tuple(block.mixer.values.weight.shape) for block in network.blocks] == [
        (5, 14, 14),
        (2, 14, 14),
    ]
    assert AttentionNet("quadratic", **{**SMALL, "heads": 4}).heads == (4, 4)


@pytest.mark.parametrize("encoding", ["quadratic", "generalized_quadratic"])
def test_heads_on_the_grid_look_at_the_taps_of_a_convolution(encoding):
    torch.manual_seed(0)
    sizes = {**SMALL, "heads": [9, 25]}
    network = AttentionNet(encoding, centres="grid", **sizes)
    for block, side in zip(network.blocks, (3, 5), strict=True):
        taps = torch.cartesian_prod(torch.arange(side), torch.arange(side)) - side // 2
        assert torch.equal(block.mixer.encoding.centres, taps.float())
        others = [
            parameter
            for name, parameter in block.mixer.encoding.named_parameters()
            if name != "centres"
        ]
        assert all(
            len(torch.unique(parameter)) == parameter.numel() for parameter in others
        )  # drawn as usual


def mixers(network):
    return [block.mixer for block in network.blocks]


def test_gated_network_mixes_distributions_of_content_and_position():
    torch.manual_seed(0)
    network = AttentionNet("learned_axial", content=True, gated=True, **SMALL).eval()
    for mixer in mixers(network):
        assert mixer.gate_kind == "sigmoid"
        assert mixer.content_terms == Content(
            key_width=14, position=False, content_bias=False, query_bias=True
        )
        assert mixer.content.key.bias is None
        assert mixer.encoding.head_vectors is not None  # position has scores of its own
        assert torch.equal(mixer.gate, torch.ones(3))
    assert network.flops(10).position_scores == 0
    assert network.flops(10).content_scores == network.flops(10).mixing


@pytest.mark.parametrize("shape", [(2, 3, 10, 9), (2, 1, 10, 10), (3, 10, 10), (10, 10)])
def test_images_that_do_not_fit_are_refused(shape, without_type_checks):
    with pytest.raises(
        ShapeError,
        match=r"images must be of shape \(batch, 3, rows, cols\).*patch=2, but are \(",
    ):
        AttentionNet(**SMALL)(torch.zeros(shape))


WHOLE = "must be an integer of at least 1"
HEADS = "heads must be an integer of at least 1, or 2 of them, but is"
GRID = "heads must be the square of an odd number for centres on a grid, but is"
WRONG = {
    **{f"{name} {WHOLE}, but is 0": {name: 0} for name in ("width", "depth", "patch", "ffn")},
    **{f"{name} {WHOLE}": {name: 0} for name in ("image_size", "num_classes", "in_channels")},
    "did you mean 'quadratic'": {"encoding": "quadratik"},
    r"dropout must be a probability in \[0, 1\)": {"dropout": 1.0},
    "width must be even": {"encoding": "learned_axial", "content": True, "width": 15},
    f"{HEADS} 0": {"heads": 0},
    rf"{HEADS} \[3\]": {"heads": [3]},
    rf"{HEADS} \(3, 0\)": {"heads": (3, 0)},
    f"{HEADS} '34'": {"heads": "34"},
    f"{HEADS} 3.0": {"heads": 3.0},
    rf"{HEADS} \[True, 3\]": {"heads": [True, 3]},
    "unknown centres 'girds': did you mean 'grid'": {"centres": "girds"},
    "centres must be \"normal\" with encoding 'distance', which has no centres, but is 'grid'": {
        "centres": "grid",
        "encoding": "distance",
        "heads": 9,
    },
    f"{GRID} 8": {"centres": "grid", "heads": [9, 8]},
    'encoding_options must be without "centres", which centres="grid" gives': {
        "centres": "grid",
        "heads": 9,
        "encoding_options": {"centres": [0, 0]},
    },
    "content must be True with gated=True, which mixes .* but is False": {"gated": True},
    r"content must be True or False, but is Content\(": {"content": Content(position=False)},
}


def test_wrong_arguments_are_refused(without_type_checks):
    for message, options in WRONG.items():
        with pytest.raises(ArgumentError, match=message):
            AttentionNet(**{**SMALL, **options})


def test_distance_starts_nearly_uniform_and_with_the_start_of_a_table_as_a_table_does():
    sizes = {"width": 64, "depth": 2, "heads": 9, "ffn": 5, "patch": 4, "initializer_range": 0.05}
    keys = {}
    like_table = ("distance", "axial_distance", "sinusoidal", "learned_table")
    starts = [
        *((encoding, "table") for encoding in like_table),
        ("learned_axial", "network"),
        ("distance", "network"),
    ]
    for encoding, start in starts:
        torch.manual_seed(0)
        network = AttentionNet(encoding, position_start=start, **sizes)
        keys[encoding, start] = [attended_keys(block.mixer.encoding, 8) for block in network.blocks]
    # Scores of a table have the variance 2 · 64 · 0.02²: about 64 · exp(−0.0512 / 2) = 62.4 keys, between 62 and 63.
    spread = [number for encoding in like_table for number in keys[encoding, "table"]]
    assert all(62 < number < 63 for number in keys["learned_axial", "network"] + spread)
    assert all(number > 63.9 for number in keys["distance", "network"])


def test_an_encoding_takes_its_options(without_type_checks):
    network = AttentionNet("distance", encoding_options={"hidden": 3}, **SMALL)
    assert all(block.mixer.encoding.hidden == 3 for block in network.blocks)
    with pytest.raises(
        ArgumentError, match=r"option of encoding 'quadratic' must be one of .*, but is 'hidden'"
    ):
        AttentionNet("quadratic", encoding_options={"hidden": 3}, **SMALL)
    with pytest.raises(
        ArgumentError, match="encoding_options must be arguments by name, as a dict, but is "
    ):
        AttentionNet("distance", encoding_options=[3], **SMALL)


def test_start_of_a_table_is_drawn_after_everything_else():
    torch.manual_seed(0)
    plain = AttentionNet("distance", **SMALL)
    torch.manual_seed(0)
    like_table = AttentionNet("distance", position_start="table", **SMALL)
    differing = [
        name
        for name, value in like_table.state_dict().items()
        if not value.equal(plain.state_dict()[name])
    ]
    assert {name.split("encoding.")[1] for name in differing} == {
        "inner.weight",
        "inner.bias",
        "outer.weight",
    }


def test_starts_that_an_encoding_cannot_have_are_refused():
    with pytest.raises(
        ArgumentError, match=r'position_start must be "network" with Quadratic, but is'
    ):
        AttentionNet("quadratic", position_start="table", **SMALL)
    with pytest.raises(
        UnknownNameError, match="unknown position_start 'tabel': did you mean 'table'"
    ):
        AttentionNet("distance", position_start="tabel", **SMALL)
