"""What every attention layer promises, as a test class to inherit."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from jaxtyping import Float
from tests.testing.dense import as_dtype, dense_attention, dense_scores, dense_weights
from torch import Tensor

from convattn.budget import Sums, assert_within_budget, references, roundings
from convattn.errors import ArgumentError
from convattn.layers import RelativeAttention
from convattn.testing.contracts import Formula, stir

__all__ = ["GEOMETRIES", "AttentionContract"]

GEOMETRIES: dict[str, dict[str, Any]] = {
    "stride": {"kernel_size": 3, "stride": 2, "padding": 1},
    "even window": {"kernel_size": 2, "padding": "same"},
    "wide window": {"kernel_size": 2, "dilation": 2, "padding": 1, "padding_mode": "replicate"},
    "reflect": {"kernel_size": 1, "padding": 1, "padding_mode": "reflect"},
    "circular": {"kernel_size": 2, "stride": 3, "padding": 2, "padding_mode": "circular"},
    "spread": {"kernel_size": 3, "input_dilation": 2, "padding": 1},
}
"""Arguments of a layer that put queries and keys in other places, valid for one to three axes."""

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_SIZES = {1: (13,), 2: (5, 7), 3: (2, 3, 5)}
_FEW = 8  # numbers of a parameter


class AttentionContract:
    """What every attention layer promises, whatever its axes, its encoding, its content and its path.

    Attributes:
        formula: Equations of the encoding that `create` uses.
        dims: Number of axes of its layers.
        device: Where layers compute; what they are compared with is computed on the CPU.
    """

    formula: Formula
    dims: int = 2
    device: torch.device = torch.device("cpu")

    def create(self, in_channels: int, out_channels: int, **options: Any) -> RelativeAttention:
        """Makes a layer.

        Args:
            in_channels: Channels in.
            out_channels: Channels out.
            **options: Further arguments of the layer: geometry, groups, bias.
        """
        raise NotImplementedError

    def dense(
        self,
        layer: RelativeAttention,
        x: Float[Tensor, "batch channels *spatial"],
        *,
        backwards: bool = False,
    ) -> Float[Tensor, "batch outputs *out"]:
        """Computes a layer's output by another road, in the dtype of x; `backwards` sums in another order."""
        return dense_attention(layer, x, self.formula, backwards=backwards)

    def roads(self, layer: RelativeAttention, x: Tensor) -> list[Tensor]:
        """Computes a layer's output by other roads that round differently: two orders of summation, other last digits.

        The last digits are those of images and parameters, in float32 where they have fewer bits: layers compute with
        more bits than those.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        precise = as_dtype(layer, wide)
        roads = [self.dense(layer, x, backwards=backwards) for backwards in (False, True)]
        return roads + [y.to(x.dtype) for y in roundings(self.dense, precise, x.to(wide))]

    def made(
        self, in_channels: int = 3, out_channels: int = 5, **options: Any
    ) -> RelativeAttention:
        """Makes a layer with random parameters, the same each time, in evaluation mode."""
        torch.manual_seed(3)
        return stir(self.create(in_channels, out_channels, **options)).eval()

    def images(
        self, *sizes: int, dtype: torch.dtype = torch.float32, batch: int = 2, channels: int = 3
    ) -> Tensor:
        """Draws images of distinct prime sizes."""
        shape = (batch, channels, *(sizes or _SIZES[self.dims]))
        return torch.randn(
            shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
        ).to(dtype)

    def on_device(self, layer: RelativeAttention, x: Tensor) -> tuple[RelativeAttention, Tensor]:
        """Returns a copy of a layer, and images, on the device."""
        return copy.deepcopy(layer).to(self.device), x.to(self.device)

    def check(self, layer: RelativeAttention, x: Tensor, where: str = "") -> None:
        """Asserts that a layer is as right as its dtype allows; `where` is for the message."""
        what = f"{where} result".strip()
        there, images = self.on_device(layer, x)
        with torch.no_grad():
            hi = self.dense(as_dtype(layer, torch.float64), x.double())
            lows = self.roads(layer, x)
            assert_within_budget(there(images), hi, lows, what)
        assert_within_budget(there(images), hi, lows, what)

    def test_output_is_attention_by_definition(self, *dtypes: torch.dtype) -> None:
        for dtype in dtypes or _DTYPES:
            self.check(self.made().to(dtype), self.images(dtype=dtype), str(dtype))

    def test_any_geometry_is_attention_by_definition(self, *geometries: dict[str, Any]) -> None:
        """Windows, strides, dilations and paddings put queries and keys where the definition has them."""
        for geometry in geometries or GEOMETRIES.values():
            self.check(self.made(**geometry), self.images(), str(geometry))

    def test_cropped_and_padded_unevenly(self) -> None:
        self.check(self.made(kernel_size=1, padding=[(2, -1)] * self.dims), self.images())

    def test_groups_are_blocks_of_the_matrices(self) -> None:
        """With groups, each block of channels goes to its own block of outputs."""
        self.check(self.made(6, 10, groups=2), self.images(channels=6))

    def test_without_bias(self) -> None:
        layer = self.made(bias=False)
        assert layer.bias is None
        self.check(layer, self.images())

    def test_small_batches(self, *batches: int) -> None:
        for batch in batches or (0, 1):
            self.check(self.made(), self.images(batch=batch), f"batch of {batch}:")

    def test_one_pixel(self) -> None:
        self.check(self.made(), self.images(*(1,) * self.dims))

    def test_channels_last_input(self) -> None:
        x = self.images().movedim(1, -1).contiguous().movedim(-1, 1)
        assert not x.is_contiguous()
        self.check(self.made(), x)

    def test_input_that_is_a_view(self) -> None:
        x = self.images(*(2 * size for size in _SIZES[self.dims]))
        self.check(self.made(), x[(slice(None), slice(None), *[slice(None, None, 2)] * self.dims)])

    def test_autocast_keeps_scores_and_softmax_precise(
        self, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """Under autocast the result is that of a narrow layer with a float32 encoding."""
        layer, x = self.made(), self.images()
        there, images = self.on_device(layer, x)
        with torch.autocast(self.device.type, dtype=dtype):
            y = there(images)
        hi = self.dense(as_dtype(layer, torch.float64), x.double())
        lows = self.roads(as_dtype(layer, dtype, encoding=torch.float32), x.to(dtype))
        assert_within_budget(y, hi, lows)

    def test_autocast_leaves_float64_as_it_is(self) -> None:
        layer, x = self.made().double(), self.images(dtype=torch.float64)
        there, images = self.on_device(layer, x)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            y = there(images)
            message = r"^x must be of the weights' dtype torch\.float64, but"
            with pytest.raises(ArgumentError, match=message):
                there(images.float())
        with torch.no_grad():
            assert_within_budget(y.detach(), self.dense(layer, x), self.roads(layer, x))

    def test_gradients_are_those_of_the_definition(self) -> None:
        layer, x = self.made().train(), self.images()
        given = layer, x, _upstream(layer, x)
        actual = _gradients(_call, *self.on_device(layer, x), given[2].to(self.device))
        hi, lows = references(partial(_gradients, self.dense), *given)
        lows.append(_gradients(partial(self.dense, backwards=True), *given))
        sums = _sums_of_few(self.dense, *given)
        assert actual.keys() == hi.keys()
        for name, gradient in actual.items():
            rounded = [
                low[name] for low in (lows if hi[name].any() else lows[:-1])
            ]  # the last rounds a zero of hard heads
            assert_within_budget(
                gradient, hi[name], rounded, f"gradient of {name}", sums=sums.get(name)
            )

    def test_gradcheck(self) -> None:
        layer = self.made(2, 2, kernel_size=2, padding=1).double()
        x = self.images(*(2,) * self.dims, batch=1, channels=2, dtype=torch.float64)
        layer, x = self.on_device(layer, x)
        # gradcheck writes its steps into the parameters themselves
        inputs = (x.requires_grad_(), *layer.parameters())
        assert torch.autograd.gradcheck(lambda x, *_: layer(x), inputs, fast_mode=True)

    def test_modes_and_earlier_calls_change_nothing(self) -> None:
        """Training without dropout and calls without gradients leave every bit as it is.

        On the separable path sums are taken in another order without gradients, but always in the same.
        """
        layer, x = self.on_device(self.made(), self.images())
        y, upstream = layer(x), _upstream(layer, x)
        gradients = _gradients(_call, layer, x, upstream)
        with torch.inference_mode():
            plain = [layer(x), layer(x)]
        with torch.no_grad():
            plain.append(layer(x))
            path = layer.plan(x.shape).path
        layer.encoding.requires_grad_(False)
        left = _gradients(_call, layer, x, upstream)
        assert torch.equal(layer.train()(x), y)
        assert all(torch.equal(other, plain[0] if path == "separable" else y) for other in plain)
        assert left.keys() == {name for name in gradients if not name.startswith("encoding.")}
        assert all(torch.equal(gradient, gradients[name]) for name, gradient in left.items())

    def test_attention_weights_are_those_of_the_definition(
        self, *geometries: dict[str, Any]
    ) -> None:
        for geometry in geometries or ({}, GEOMETRIES["circular"]):
            self._check_weights(self.made(**geometry), self.images())

    def _check_weights(self, layer: RelativeAttention, x: Tensor) -> None:
        there, images = self.on_device(layer, x)
        weights, exact = there.attention(images), as_dtype(layer, torch.float64)
        hi = dense_weights(exact, x.double(), self.formula)
        lows = roundings(partial(dense_weights, formula=self.formula), layer, x)
        lows.append(dense_weights(layer, x, self.formula, backwards=True))
        position, content = dense_scores(exact, x.double(), self.formula)
        if content is None:
            sizes, sums = there.attention(x.shape[2:]), None
            assert torch.equal(sizes, weights)
            hi, lows = hi[0], [low[0] for low in lows]
        else:  # rounding moves a weight by its share of what it moves the two parts of its score by
            sums = Sums(2, hi * (position.abs() + content.abs()).view_as(hi))
        assert_within_budget(weights, hi, lows, sums=sums)
        total, *totals = (given.flatten(-self.dims).sum(-1) for given in (weights, *lows))
        assert_within_budget(total, torch.ones_like(total, dtype=torch.float64), totals)

    def test_state_dict_and_copies_carry_everything(self) -> None:
        layer, x = self.on_device(self.made(), self.images())
        restored = self.create(3, 5).eval().to(self.device)
        restored.load_state_dict(layer.state_dict())
        for other in (restored, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x), layer(x))
            assert repr(other) == repr(layer)

    def test_another_size_needs_no_new_layer(self) -> None:
        layer = self.made()
        layer(self.images())
        self.check(layer, self.images(*(size + 1 for size in _SIZES[self.dims])))

    def test_input_is_left_alone(self) -> None:
        x = self.images()
        kept = x.clone()
        self.made(**GEOMETRIES["spread"])(x)
        assert torch.equal(x, kept)


def _call(layer: RelativeAttention, x: Tensor) -> Tensor:
    return layer(x)


def _upstream(layer: RelativeAttention, x: Tensor) -> Tensor:
    """Draws a gradient of the output."""
    y = layer(x)
    return torch.randn(
        y.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64
    ).to(y)


def _gradients(
    compute: Callable[[RelativeAttention, Tensor], Tensor],
    layer: RelativeAttention,
    x: Tensor,
    upstream: Tensor,
) -> dict[str, Tensor]:
    """Returns the gradients of ⟨upstream, output⟩, by name."""
    x = x.detach().requires_grad_()
    y = compute(layer, x)
    learned = [
        (name, parameter) for name, parameter in layer.named_parameters() if parameter.requires_grad
    ]
    names, parameters = zip(*learned, strict=True)
    found = torch.autograd.grad(y, [x, *parameters], upstream, allow_unused=True)
    gradients = {
        name: gradient
        for name, gradient in zip(("x", *names), found, strict=True)
        if gradient is not None
    }
    return _joined(gradients)


def _sums_of_few(
    compute: Callable[[RelativeAttention, Tensor], Tensor],
    layer: RelativeAttention,
    x: Tensor,
    upstream: Tensor,
) -> dict[str, Sums]:
    """Takes gradients of few numbers apart, by name: each is a sum over all elements of the output, which cancel."""
    exact = as_dtype(layer, torch.float64)
    y = compute(exact, x.double())
    few = {
        name: parameter for name, parameter in exact.named_parameters() if parameter.numel() <= _FEW
    }
    if not few:
        return {}
    each = torch.diag(upstream.double().flatten()).view(-1, *y.shape)
    terms = torch.autograd.grad(
        y, list(few.values()), each, is_grads_batched=True, materialize_grads=True
    )
    terms = [part.flatten(1) for part in terms]
    return {
        name: Sums(int((t != 0).sum(0).max()), t.abs().sum(0))
        for name, t in zip(few, terms, strict=True)
    }


def _joined(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts the gradients of a linear map's weight and bias into one.

    The softmax cancels a bias of the keys: its gradient is zero, and what is computed is nothing but rounding, which
    only the terms that cancel, as large as those of the weight, give a scale.
    """
    joined: dict[str, list[Tensor]] = {}
    for name, gradient in gradients.items():
        joined.setdefault(name.removesuffix(".bias").removesuffix(".weight"), []).append(
            gradient.flatten()
        )
    return {name: torch.cat(parts) for name, parts in joined.items()}
