"""Hard heads found by their scores alone."""

import pytest
import torch
from torch import nn

from convattn.convert import conv_to_attention
from convattn.functional import attention_weights, displacement_scores, find_shifts
from convattn.grid import Axis

AXES = (Axis(range(1, 12, 2), 13), Axis(range(2, 9), 11))


def tables(centres, sharpness):
    """Scores −α(δ − Δ)² along each axis, (heads, displacements)."""
    made = []
    for along, axis in zip(zip(*centres, strict=True), AXES, strict=True):
        distances = (
            axis.displacements().double() - torch.tensor(along, dtype=torch.float64)[:, None]
        )
        made.append(-sharpness * distances.square())
    return made


def softmax(scores):
    return [
        attention_weights(displacement_scores(table, (axis,)))
        for table, axis in zip(scores, AXES, strict=True)
    ]


@pytest.mark.parametrize("sharpness", [800.0, 40.0, 37.25])
@pytest.mark.parametrize(
    "centres",
    [[(-1, 0), (1, 2), (0, -2)], [(0, 3), (-2, 0)], [(4, -5), (0, 0)], [(30, 0), (0, -30)]],
    ids=["inside", "beyond the keys from one query", "from some", "from all"],
)
def test_heads_are_found_as_by_their_weights(centres, sharpness):
    scores = tables(centres, sharpness)
    shifts = find_shifts(scores, AXES, 1e-15)
    leak = torch.zeros((), dtype=torch.float64)
    for number, (weights, axis) in enumerate(zip(softmax(scores), AXES, strict=True)):
        queries = torch.tensor(list(axis.queries))
        looked_at = torch.stack([queries + offset[number] for offset in shifts.offsets]).clamp(
            0, axis.keys - 1
        )
        assert torch.equal(weights.argmax(-1), looked_at)
        leak += weights.scatter(-1, looked_at[..., None], 0.0).sum(-1).max()
    rounded = 1 + 16 * torch.finfo(torch.float64).eps  # both are sums of few terms
    assert leak <= shifts.leak * rounded
    assert shifts.leak <= 2 * leak * rounded
    assert (shifts.leak == 0) == (sharpness == 800)


@pytest.mark.parametrize(
    ("centres", "sharpness"),
    [([(0.5, 0)], 800.0), ([(0, 0), (0, 0.4)], 20.0), ([(0, 0)], 5.0)],
    ids=["between two pixels", "off the pixel", "soft"],
)
def test_soft_heads_are_no_shift(centres, sharpness):
    assert find_shifts(tables(centres, sharpness), AXES, 1e-15) is None


def test_a_head_that_does_not_look_at_the_nearest_key_is_no_shift():
    """Inside it is one-hot; from the last query, which cannot see that far, it looks at two keys alike."""
    axis = Axis(range(5), 5)
    scores = torch.full((1, 9), -1e3, dtype=torch.float64)
    scores[0, 5] = 0.0  # the next key
    assert find_shifts([scores], [axis], 1e-15) is None
    scores[0, 4] = -300.0  # its own key, from where the next would lie outside
    assert find_shifts([scores], [axis], 1e-15).offsets == ((1,),)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_not_finite_is_no_hard_head_also_where_there_is_one_key(score):
    assert find_shifts([torch.tensor([[score]])], [Axis(range(1), 1)], 1e-15) is None


def test_scores_that_are_no_numbers_are_no_shift():
    scores = tables([(0, 0)], 800.0)
    scores[1][0, 3] = torch.nan
    assert find_shifts(scores, AXES, 1e-15) is None


def pointwise(dims=2, channels=12, outputs=20, **options):
    torch.manual_seed(0)
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](channels, outputs, 1, **options)
    return conv_to_attention(conv)[0].eval(), conv


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 12, 8, 7), {}),
        ((1, 12, 8, 7), {"bias": False}),
        ((1, 12, 17), {"dims": 1}),
        ((1, 12, 8, 7, 5), {"dims": 3}),
        ((1, 12, 8, 7), {"groups": 4}),
        ((1, 12, 8, 7), {"stride": 2}),
        ((1, 12, 8, 7), {"padding": 1}),
    ],
)
def test_pointwise_layers_are_the_convolution_bit_for_bit(shape, options):
    layer, conv = pointwise(**options)
    x = torch.randn(shape)
    for _ in range(2):  # the second call is the quick one
        assert torch.equal(layer(x), conv(x))
        with torch.no_grad():
            assert torch.equal(layer(x), conv(x))


def test_images_with_channels_last_keep_their_order():
    layer, _ = pointwise()
    x = torch.randn(1, 12, 8, 7).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(2):
            assert layer(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("centre", [0.0, 4.0, -3.0], ids=["at the key", "after it", "before it"])
def test_the_only_key_is_looked_at_by_every_head(centre, queries):
    axis = Axis(range(queries), 1)
    scores = -800.0 * (axis.displacements().double() - centre)[None].square()
    shifts = find_shifts([scores], (axis,), 1e-15)
    assert shifts.leak == 0
    assert torch.equal(
        attention_weights(displacement_scores(scores, (axis,))), torch.ones(1, queries, 1).double()
    )
