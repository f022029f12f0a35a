import inspect
import json

import numpy as np
import pytest
import torch
from tests.functional.alive import Alive

from convattn.encodings import (
    ENCODINGS,
    Distance,
    LearnedAxial,
    LearnedTable,
    Quadratic,
    create_encoding,
)
from convattn.errors import ArgumentError, EncodingRangeError, ShapeError, UnknownNameError
from convattn.functional.plan import WAYS
from convattn.layers import Content, RelativeAttention1d, RelativeAttention2d, RelativeAttention3d
from convattn.layers.relative import require_images

LAYERS = {1: RelativeAttention1d, 2: RelativeAttention2d, 3: RelativeAttention3d}

WRONG_ARGUMENTS = [
    ({"in_channels": 0}, ArgumentError, "in_channels must be an integer of at least 1, but is 0"),
    ({"num_heads": 2.0}, ArgumentError, "num_heads must be an integer of at least 1, but is 2.0"),
    ({"groups": 2}, ArgumentError, "in_channels must be divisible by groups=2, but is 3"),
    ({"groups": 3}, ArgumentError, "out_channels must be divisible by groups=3, but is 5"),
    ({"dropout": 1.0}, ArgumentError, r"dropout must be a probability in \[0, 1\), but is 1.0"),
    (
        {"encoding": "quadrtic"},
        UnknownNameError,
        "unknown encoding 'quadrtic': did you mean 'quadratic'",
    ),
    (
        {"encoding": Quadratic},
        ArgumentError,
        "encoding must be the name of an encoding, an Encoding, or a function of displacements, but is <class",
    ),
    (
        {"encoding": Quadratic(3, 2)},
        ArgumentError,
        r"encoding must be for 2 heads and 2 axes, but is Quadratic\(num_heads",
    ),
    ({"impl": "refrence"}, UnknownNameError, "unknown impl 'refrence': did you mean 'reference'"),
    (
        {"impl": "separable", "encoding": "distance"},
        ArgumentError,
        "impl='separable' cannot compute this layer, because the scores of Distance are not a sum over axes: use",
    ),
    (
        {"impl": "separable", "dropout": 0.1},
        ArgumentError,
        "because dropout drops single weights: use 'auto' or 'dense' or 'reference'$",
    ),
    (
        {"impl": "dense", "content": True},
        ArgumentError,
        "because its scores depend on the images: use 'auto' or 'content' or 'reference' or 'quadratic'$",
    ),
    (
        {"impl": "quadratic", "encoding": "learned_axial", "content": True},
        ArgumentError,
        "because LearnedAxial is not Quadratic: use 'auto' or 'content' or 'reference'$",
    ),
    (
        {"impl": "content"},
        ArgumentError,
        "because its scores do not depend on the images: use 'auto' or 'dense' or 'fourier'",
    ),
    ({"content": "yes"}, ArgumentError, "content must be True, False or a Content, but is 'yes'"),
    (
        {"content": Content(position=True), "encoding": "linear_distance"},
        ArgumentError,
        "content.position must be None or False with an encoding without features, but is True",
    ),
    (
        {"content": Content(key_width=5, project_position=False)},
        ArgumentError,
        "content.key_width must be the encoding's feature width 3 without project_position, but is 5",
    ),
]


@pytest.mark.parametrize(
    ("options", "error", "message"), WRONG_ARGUMENTS, ids=lambda value: str(value)[:60]
)
def test_wrong_arguments_are_refused(options, error, message, without_type_checks):
    arguments = {
        "in_channels": 3,
        "out_channels": 5,
        "num_heads": 2,
        "encoding": "quadratic",
        **options,
    }
    with pytest.raises(error, match=message):
        RelativeAttention2d(**arguments)


SIZES = {1: "positions", 2: "rows, cols", 3: "depth, rows, cols"}


@pytest.mark.parametrize("dims", SIZES)
@pytest.mark.parametrize("rank", [0, 1, -1])
def test_images_of_another_rank_are_refused(dims, rank, without_type_checks):
    layer = LAYERS[dims](3, 5, num_heads=2)
    shape = (1, 3, 7, 5, 11, 13)[: dims + 2 + rank] if rank else (1, 2, 7, 5, 11)[: dims + 2]
    with pytest.raises(
        ShapeError, match=rf"x must be of shape \(batch, 3, {SIZES[dims]}\), but is \(1, "
    ):
        layer(torch.zeros(shape))
    with pytest.raises(
        ShapeError, match=rf"x must be of shape \(batch, 3, {SIZES[dims]}\), but is \(1, "
    ):
        layer.attention(torch.zeros(shape))


@pytest.mark.parametrize("encoding", ["quadratic", "shift"])
def test_arrays_are_refused(encoding, without_type_checks):
    layer = RelativeAttention2d(3, 5, num_heads=9, encoding=encoding, kernel_size=3)
    with pytest.raises(ArgumentError, match="x must be a tensor, but is of type ndarray"):
        layer(torch.zeros(1, 3, 5, 7).numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_images_of_another_dtype_are_refused(dtype, without_type_checks):
    layer = RelativeAttention2d(3, 5, num_heads=2)
    with pytest.raises(
        ArgumentError, match=f"x must be of the weights' dtype torch.float32, but is {dtype}"
    ):
        layer(torch.zeros(1, 3, 5, 7, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_autocast_takes_only_what_it_can_cast(dtype, without_type_checks):
    layer, x = RelativeAttention2d(3, 5, num_heads=2), torch.zeros(1, 3, 5, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x.bfloat16()).dtype == layer(x).dtype == torch.bfloat16
        assert layer.plan(x.shape, torch.bfloat16).path == layer.plan(x.shape).path
        with pytest.raises(
            ArgumentError, match=f"x must be of the weights' dtype torch.float32, but is {dtype}"
        ):
            layer(x.to(dtype))


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        ({"kernel_size": 5}, 4, "x must have at least 5 padded pixels along axis 0, but has 4"),
        (
            {"kernel_size": 3, "dilation": 3, "padding": 1},
            4,
            r"at least 7 padded pixels along axis 0, but has 4 \(6 after",
        ),
        (
            {"padding": [(-2, -2)]},
            3,
            r"at least 1 padded pixels along axis 0, but has 3 \(-1 after padding\)",
        ),
        ({"input_dilation": 3}, 0, "at least 1 padded pixels along axis 0, but has 0"),
        (
            {"kernel_size": 1, "padding": 3, "padding_mode": "reflect"},
            3,
            "x must have at least 4 pixels along axis 0 for reflect padding of 3",
        ),
        (
            {"kernel_size": 1, "padding": 4, "padding_mode": "circular"},
            3,
            "x must have at least 4 pixels along axis 0 for circular padding",
        ),
        (
            {"kernel_size": 1, "padding": 5, "padding_mode": "reflect", "input_dilation": 2},
            3,
            "at least 6 pixels .* but has 5 after its dilation",
        ),
    ],
    ids=str,
)
def test_images_that_are_too_small_are_refused(options, size, message):
    layer = RelativeAttention1d(3, 5, num_heads=2, **options)
    x = torch.zeros(1, 3, size)
    for ask in (layer, layer.attention, lambda x: layer.plan(x.shape)):
        with pytest.raises(ShapeError, match=message):
            ask(x)


def test_images_larger_than_the_table_are_refused():
    layer = RelativeAttention2d(
        3, 5, num_heads=2, encoding=LearnedAxial(2, 2, extent=(5, 7), width=3)
    )
    assert layer(torch.zeros(1, 3, 5, 7)).shape == (1, 5, 5, 7)
    for ask in (layer, layer.attention):
        with pytest.raises(
            EncodingRangeError,
            match="LearnedAxial holds displacements from -4 to 4 along axis 0, but -5",
        ):
            ask(torch.zeros(1, 3, 6, 7))


def test_attention_of_sizes():
    layer = RelativeAttention2d(3, 5, num_heads=2, kernel_size=3, stride=2, padding=(0, 1))
    assert layer.attention((5, 7)).shape == layer.attention([5, 7]).shape == (2, 2, 4, 5, 9)
    assert layer.attention(torch.zeros(4, 3, 5, 7)).shape == (2, 2, 4, 5, 9)
    with pytest.raises(
        ArgumentError,
        match=r"spatial must be an integer of at least 1, or 2 of them, but is \(5, 7, 3\)",
    ):
        layer.attention((5, 7, 3))
    with pytest.raises(
        ArgumentError,
        match=r"spatial must be an integer of at least 1, or 2 of them, but is \(0, 7\)",
    ):
        layer.attention((0, 7))


def test_attention_of_content_needs_images():
    layer = RelativeAttention2d(3, 5, num_heads=2, content=True)
    assert layer.attention(torch.zeros(4, 3, 5, 7)).shape == (4, 2, 5, 7, 5, 7)
    with pytest.raises(
        ArgumentError,
        match=r"spatial must be images, because the scores depend on content, but is \(5, 7\)",
    ):
        layer.attention((5, 7))


@pytest.mark.parametrize(
    ("options", "training", "evaluating"),
    [
        ({"encoding": "quadratic"}, "separable", "separable"),
        ({"encoding": "quadratic", "dropout": 0.5}, "dense", "separable"),
        ({"encoding": "distance"}, "dense", "dense"),
        ({"encoding": "quadratic", "content": True}, "content", "content"),
        ({"encoding": "quadratic", "impl": "reference"}, "reference", "reference"),
        ({"encoding": "quadratic", "impl": "fourier"}, "fourier", "fourier"),
    ],
    ids=str,
)
def test_path_taken_can_be_asked_for(options, training, evaluating):
    layer, shape = RelativeAttention2d(3, 5, num_heads=2, **options), (2, 3, 5, 7)
    assert layer.plan(shape).path == training
    plan = layer.eval().plan(shape)
    assert plan.path == evaluating
    assert (plan.shape, plan.dtype, plan.device) == (shape, "float32", "cpu")
    assert plan.flops > 0
    assert plan.bytes > 0
    assert {training, evaluating} <= set(WAYS)


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "options"),
    [
        (3, 64, 56, {"encoding": "quadratic"}),  # outputs that are many more than the images
        (64, 64, 28, {"encoding": "quadratic"}),
        (192, 5, 28, {"encoding": "quadratic"}),  # values first
        (64, 64, 28, {"encoding": "shift", "num_heads": 9}),
        (12, 64, 24, {"encoding": "distance"}),
        (64, 64, 48, {"encoding": "distance", "impl": "fourier"}),
        (64, 64, 28, {"encoding": "quadratic", "content": True, "head_width": 16}),
        (12, 12, 14, {"encoding": "quadratic", "content": True, "head_width": 4}),  # small pieces
    ],
    ids=str,
)
def test_a_plan_says_what_a_call_holds_within_a_factor_of_three(channels, outputs, size, options):
    layer = RelativeAttention2d(channels, outputs, **{"num_heads": 4, **options})
    images = torch.randn(8, channels, size, size)
    with Alive() as met, torch.no_grad():
        output = layer(images)
    held = met.most - output.nbytes
    assert held / 3 <= layer.plan(images.shape).bytes <= held * 3


def test_every_way_of_computing_is_named_where_impl_is_described():
    for documented in (RelativeAttention1d.__init__, RelativeAttention2d):
        for name in WAYS:
            assert f'"{name}"' in documented.__doc__, name


@pytest.mark.parametrize("impl", ["reference", "dense"])
def test_dropout_keeps_the_mean_and_is_off_in_evaluation(impl):
    torch.manual_seed(0)
    layer = RelativeAttention1d(1, 1, num_heads=1, dropout=0.3, impl=impl, bias=False)
    x = torch.ones(1, 1, 11)
    exact = layer.eval()(x).detach()
    assert torch.equal(layer(x), exact)
    layer.train()
    draws = torch.cat([layer(x).detach() for _ in range(400)])
    assert (draws.std(0) > 0.1 * exact[0].abs()).all()
    # the mean of n draws is known to 1/√n of their spread; five of those
    assert ((draws.mean(0) - exact[0]).abs() <= 5 * draws.std(0) / len(draws) ** 0.5).all()


def test_dropout_without_content_is_one_draw_for_the_batch_and_with_content_one_per_image():
    x = torch.ones(3, 2, 7, 5)
    for content, same in ((False, True), (True, False)):
        torch.manual_seed(0)
        y = RelativeAttention2d(2, 3, num_heads=2, content=content, dropout=0.5)(x)
        assert torch.equal(y[0], y[1]) == same


def test_dropout_of_nearly_everything_leaves_the_bias():
    layer = RelativeAttention2d(2, 3, num_heads=2, dropout=0.999_999_9)
    assert torch.equal(
        layer(torch.ones(1, 2, 3, 5)), layer.bias.view(1, 3, 1, 1).expand(1, 3, 3, 5)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("impl", ["auto", "dense", "reference"])
def test_scores_beyond_the_range_of_float16_stay_finite(dtype, impl):
    encoding = Quadratic(2, 1, centres=[[0.0], [50.0]], sharpness=100.0)
    layer = RelativeAttention1d(3, 5, num_heads=2, encoding=encoding, impl=impl).to(dtype)
    x = torch.randn(1, 3, 61).to(dtype).requires_grad_()
    y = layer(x)
    assert layer.encoding(torch.tensor([[-60.0]])).min() < -65504
    assert y.isfinite().all()
    y.float().square().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (x, *layer.parameters()))


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 1, 1)])
def test_a_weight_that_is_no_kernel_of_the_layer_is_an_unexpected_key(shape):
    layer = RelativeAttention2d(3, 5, kernel_size=3)
    state = {**layer.state_dict(), "weight": torch.zeros(shape)}
    assert layer.load_state_dict(state, strict=False).unexpected_keys == ["weight"]
    spread = RelativeAttention2d(4, 6, kernel_size=2, input_dilation=2, groups=2)
    state = {**spread.state_dict(), "weight": torch.zeros(3, 3, 2, 2)}
    assert spread.load_state_dict(state, strict=False).unexpected_keys == ["weight"]


def test_a_module_as_encoding_computes_in_the_dtype_of_displacements():
    class Hills(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rises = torch.nn.Linear(2, 4)

        def forward(self, displacement):
            return self.rises(displacement).movedim(-1, 0)

    layer = RelativeAttention2d(3, 5, num_heads=4, encoding=Hills(), dtype=torch.bfloat16)
    y = layer(torch.randn(1, 3, 5, 6, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.encoding.function.rises.weight.grad is not None


def test_dtype_and_device_are_those_asked_for():
    layer = RelativeAttention2d(3, 5, num_heads=2, dtype=torch.float64, device="meta")
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}
    assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}


def test_printing_leaves_defaults_out():
    assert repr(
        RelativeAttention1d(3, 5, num_heads=2, encoding=create_encoding("distance", 2, 1, hidden=7))
    ).startswith(
        "RelativeAttention1d(\n  3, 5, num_heads=2\n  (encoding): Distance(num_heads=2, dims=1, hidden=7)"
    )
    layer = RelativeAttention1d(
        4,
        6,
        num_heads=2,
        stride=2,
        groups=2,
        head_width=1,
        bias=False,
        impl="dense",
    )
    assert (
        "4, 6, num_heads=2, head_width=1, stride=(2,), groups=2, bias=False, impl='dense'"
        in repr(layer)
    )


def test_sizes_may_be_integers_of_numpy(without_type_checks):
    four = np.int64(4)
    layer = RelativeAttention2d(
        four,
        four,
        num_heads=four,
        encoding=Quadratic(four, 2),
        kernel_size=1,
        padding=((four, four),) * 2,
        groups=np.int64(2),
    )
    written = json.dumps(layer.options())
    assert json.dumps(json.loads(written)) == written


def test_the_arguments_of_a_convolution_give_a_head_on_each_tap():
    """`nn.Conv2d(3, 8, 3, 2, 1)` may be replaced by name alone."""
    options = {"groups": 1, "padding_mode": "reflect"}
    layer = RelativeAttention2d(3, 8, (3, 2), 2, 1, 2, **options)
    conv = torch.nn.Conv2d(3, 8, (3, 2), 2, 1, 2, **options)
    assert layer.num_heads == 6
    x = torch.randn(2, 3, 11, 13)
    assert layer(x).shape == conv(x).shape
    hard = RelativeAttention2d(3, 8, (3, 2), 2, 1, 2, encoding="shift", **options)
    with torch.no_grad():
        hard.values.weight.copy_(conv.weight)
        hard.bias.copy_(conv.bias)
        assert torch.equal(hard(x), conv(x))


def test_every_encoding_with_centres_puts_a_head_on_each_tap():
    placed = []
    for name, kind in ENCODINGS.items():
        if "centres" not in inspect.signature(kind).parameters:
            continue
        layer = RelativeAttention2d(3, 8, (3, 2), 2, 1, 2, encoding=name)
        taps = [list(map(float, tap)) for tap in layer.geometry.taps()]
        assert layer.encoding.centres.tolist() == taps, name
        placed.append(name)
    assert placed == ["quadratic", "generalized_quadratic", "linear_distance"]


def test_a_ready_encoding_says_how_many_heads_there_are():
    assert RelativeAttention2d(3, 8, encoding=Quadratic(5, 2)).num_heads == 5
    expected = r"num_heads must be given unless the encoding has centres \(quadratic, .*linear_distance, shift\)"
    with pytest.raises(ArgumentError, match=expected):
        RelativeAttention2d(3, 8, 3, encoding="sinusoidal")
    with pytest.raises(UnknownNameError, match="did you mean 'quadratic'"):
        RelativeAttention2d(3, 8, 3, encoding="quadratik")


def test_padding_without_a_window_warns():
    with pytest.warns(UserWarning, match="padding=1 without a kernel_size adds queries"):
        RelativeAttention2d(3, 8, padding=1, num_heads=9)
    RelativeAttention2d(3, 8, 1, padding=1)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 8, 9, 3), r"if channels are last, pass x\.movedim\(-1, 1\)"),
        (torch.zeros(8, 9, 3), r"if channels are last, pass x\.movedim\(-1, 0\)"),
        (torch.zeros(1, 3, 8, 8).to_sparse(), r"x must be dense, as x\.to_dense\(\) makes it"),
    ],
    ids=["channels last", "one image, channels last", "sparse"],
)
def test_images_of_another_form_are_refused_with_the_remedy(x, words):
    with pytest.raises(ArgumentError, match=words):
        RelativeAttention2d(3, 8, 3, padding=1)(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_images_are_refused():
    x = torch.nested.nested_tensor([torch.zeros(3, 8, 8)])
    with pytest.raises(ArgumentError, match="x must be images of one size"):
        require_images(x, 3, 2, torch.float32)


@pytest.mark.parametrize(
    "encoding", [Quadratic(1, 2), LearnedTable(12, 2, extent=9), Distance(2, 1)]
)
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_an_encoding_that_is_assigned_must_fit(encoding, impl):
    layer, x = RelativeAttention2d(3, 5, num_heads=2, impl=impl), torch.zeros(1, 3, 5, 7)
    layer.encoding = encoding
    for wrong in (lambda: layer(x), lambda: layer.attention((5, 7)), lambda: layer.plan(x.shape)):
        with pytest.raises(ArgumentError, match="encoding must be for 2 heads and 2 axes, but is"):
            wrong()


@pytest.mark.parametrize("padding", [np.array([1, 1]), [(1, 1)], [(1, 1), 1], [(1, 1), (1.0, 1)]])
def test_padding_of_another_form_is_refused(padding, without_type_checks):
    with pytest.raises(ArgumentError, match="padding must be"):
        RelativeAttention2d(3, 5, 3, padding=padding)
