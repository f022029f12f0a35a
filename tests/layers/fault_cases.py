"""Small faults in the code of every path, for negative controls."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import torch
from tests.layers.layer_cases import LayerCase, hard
from tests.testing.faults import halved, last_without_gradient, leaky, of_bfloat16
from torch.nn import functional as F

from convattn.functional.fourier import quick_length
from convattn.layers import Content

REFERENCE, SEPARABLE = (
    LayerCase("quadratic", options={"impl": impl}) for impl in ("reference", "separable")
)
DENSE, FOURIER = (
    LayerCase("generalized_quadratic", options={"impl": impl}) for impl in ("dense", "fourier")
)
NARROW = LayerCase("quadratic", options={"impl": "separable", "head_width": 2})
SHIFT, TOGETHER = hard("quadratic", (-1, 2), (0, -1)), hard("quadratic", (-1, 2), (-1, 2))
CONTENT, MASKED = (
    LayerCase(name, options={"impl": "content", "content": Content(key_width=3)})
    for name in ("learned_axial", "learned_table")
)
BETWEEN = {
    "centres": torch.tensor([[0.5001, -0.4999], [-1.5001, 0.4999]]),
    "root_sharpness": torch.full((2,), 110.0),
}
"""Sharp heads that look between two pixels: how they divide hangs on the fourth digit of scores of a thousand."""


@dataclass(frozen=True)
class Fault:
    """A fault in the code of a path.

    Attributes:
        path: The path; "values" where values come first on it.
        what: What is wrong.
        case: A layer that takes the path.
        place: Where the fault is, "module:name" within the package.
        wrong: What is right → what stands in its place.
        found: Whose gradient the contract finds wrong, where values are right.
        dtype: Dtype in which values are wrong.
    """

    path: str
    what: str
    case: LayerCase
    place: str
    wrong: Callable[[Any], Any]
    found: str = ""
    dtype: torch.dtype = torch.float32

    def __str__(self):
        return f"{self.path}: {self.what}"

    @property
    def in_tiles(self):
        """Whether the fault is in code that takes the pixels in tiles, as calls do that are larger than these."""
        return "functional.tiles" in self.place

    def inject(self, monkeypatch):
        module, _, names = self.place.partition(":")
        *owner, name = names.split(".")
        holder = resolve_name(":".join([f"convattn.{module}", *owner]))
        wrong = self.wrong(getattr(holder, name))
        static = isinstance(inspect.getattr_static(holder, name), staticmethod)
        monkeypatch.setattr(holder, name, staticmethod(wrong) if static else wrong)


def of_result(change):
    """Changes what a function returns."""
    return lambda right: lambda *args, **options: change(right(*args, **options))


def of_argument(number, change):
    """Changes one argument of a function."""

    def wrong(right):
        return lambda *args, **options: right(
            *args[:number], change(args[number]), *args[number + 1 :], **options
        )

    return wrong


def each(change):
    """Changes every tensor of a list."""
    return lambda tensors: [change(tensor) for tensor in tensors]


def of_output(number, change):
    """Changes one of several results of a function."""
    return of_result(lambda found: (*found[:number], change(found[number]), *found[number + 1 :]))


def of_gradient(change):
    """Changes the gradient of a tensor."""

    def wrong(x):
        x = x.view_as(x)
        if x.requires_grad:
            x.register_hook(change)
        return x

    return wrong


def moved(table):
    if table.requires_grad:
        table.register_hook(lambda gradient: gradient + 1e-30)
    return table


def three_digits(x):
    """Cuts numbers to three binary digits. Rounding to four is lost, for every other seed, in what bfloat16 loses."""
    mantissa, exponent = torch.frexp(x.float())
    return torch.ldexp((8 * mantissa).trunc() / 8, exponent).to(x.dtype)


def border_row_off(y):
    return torch.cat([y[:, :1] * (1 + 1e-4), y[:, 1:]], dim=1)


def zeros_beyond_the_border(_):
    return SimpleNamespace(pad=lambda x, pads, **_: F.pad(x, pads))


def one_head_per_pixel(right):
    """A kernel in which of the heads at one pixel the last alone remains."""

    def wrong(maps, offsets, *window):
        again = [offset in offsets[number + 1 :] for number, offset in enumerate(offsets)]
        return right(torch.where(torch.tensor(again)[:, None, None], 0, maps), offsets, *window)

    return wrong


VALUES = [
    Fault(
        "reference",
        "the softmax leaks",
        REFERENCE,
        "functional.definition:attention_weights",
        of_result(leaky),
    ),
    Fault(
        "reference",
        "W_h in half precision",
        REFERENCE,
        "functional.definition:attend",
        of_argument(2, halved),
    ),
    Fault(
        "separable",
        "the softmax of each axis leaks",
        SEPARABLE,
        "functional.plan:position_weights",
        of_result(leaky),
    ),
    Fault(
        "separable",
        "W_h in half precision",
        SEPARABLE,
        "functional.tiles:_Product.forward",
        of_argument(2, halved),
    ),
    Fault(
        "separable",
        "W_h in half precision, where products are those of torch",
        SEPARABLE,
        "functional.separable:attend_by_axis",
        of_argument(2, halved),
    ),
    Fault(
        "separable",
        "W_h cut to three binary digits, where all heads are computed together",
        SEPARABLE,
        "functional.separable:attention_by_products",
        of_argument(2, three_digits),
        dtype=torch.bfloat16,
    ),
    Fault(
        "dense",
        "weights in half precision",
        DENSE,
        "functional.plan:position_weights",
        of_result(halved),
    ),
    Fault(
        "dense",
        "a wrong border row",
        DENSE,
        "functional.tiles:_Product.forward",
        of_result(border_row_off),
    ),
    Fault(
        "fourier",
        "transforms so short that they wrap around",
        FOURIER,
        "functional.fourier:_lengths",
        lambda _: lambda axes, _: [quick_length(axis.keys) for axis in axes],
    ),
    Fault(
        "fourier",
        "kernels in half precision",
        FOURIER,
        "functional.fourier:_place",
        of_result(halved),
    ),
    Fault(
        "shift",
        "zeros beyond the border",
        SHIFT,
        "functional.shift:functional",
        zeros_beyond_the_border,
    ),
    Fault("shift", "one head per pixel", TOGETHER, "functional.shift:_by_tap", one_head_per_pixel),
    Fault(
        "content",
        "the softmax leaks",
        MASKED,
        "functional.fused:normal_weights",
        of_result(leaky),
    ),
    Fault(
        "content",
        "position in half precision",
        CONTENT,
        "functional.content:Mask",
        of_argument(2, each(halved)),
    ),
    Fault(
        "content",
        "values in half precision",
        CONTENT,
        "functional.fused:_of_tile",
        of_argument(2, halved),
    ),
    Fault(
        "values",
        "W_out in half precision",
        NARROW,
        "functional.reference:combine_heads",
        of_argument(1, halved),
    ),
    Fault(
        "values", "the softmax leaks", NARROW, "functional.plan:position_weights", of_result(leaky)
    ),
]
"""Faults that values show."""


def normaliser_detached(_):
    """A softmax that takes its sum for a constant."""

    def wrong(scores):
        exponentials = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
        return exponentials / exponentials.sum(-1, keepdim=True).detach()

    return wrong


def not_from_the_last_query(gradient):
    return torch.cat([gradient[:, :-1], torch.zeros_like(gradient[:, -1:])], dim=1)


GRADIENTS = [
    Fault(
        "reference",
        "the normaliser taken for a constant",
        REFERENCE,
        "functional.definition:attention_weights",
        normaliser_detached,
        "encoding.centres",
    ),
    Fault(
        "separable",
        "rows' weights without the last query",
        SEPARABLE,
        "functional.tiles:_Product.backward",
        of_output(3, not_from_the_last_query),
        "encoding.centres",
    ),
    Fault(
        "separable",
        "columns' weights without the last query",
        SEPARABLE,
        "functional.tiles:_Product.backward",
        of_output(4, not_from_the_last_query),
        "encoding.centres",
    ),
    Fault(
        "dense",
        "gradients of means in half precision",
        DENSE,
        "functional.tiles:_Means.backward",
        of_argument(2, each(halved)),
        "x",
    ),
    Fault(
        "fourier",
        "the normaliser taken for a constant",
        FOURIER,
        "functional.fourier:_filtered",
        of_argument(5, of_gradient(torch.zeros_like)),
        "encoding.centres",
    ),
    Fault(
        "fourier",
        "kernels' gradient in half precision",
        FOURIER,
        "functional.fourier:_place",
        of_result(of_gradient(halved)),
        "encoding.centres",
    ),
    Fault(
        "shift",
        "hard heads that move",
        SHIFT,
        "functional.plan:find_shifts",
        of_argument(0, each(moved)),
        "encoding.centres",
    ),
    Fault(
        "shift",
        "one head without gradient",
        SHIFT,
        "functional.shift:_by_tap",
        of_argument(0, last_without_gradient),
        "values",
    ),
    Fault(
        "content",
        "values in half precision in the gradient",
        MASKED,
        "functional.fused:_of_tile",
        of_argument(2, of_gradient(halved)),
        "x",
    ),
    Fault(
        "content",
        "scores of displacements in half precision in the gradient",
        MASKED,
        "functional.fused:normal_weights",
        of_result(of_gradient(halved)),
        "x",
    ),
    Fault(
        "values",
        "one head without gradient",
        NARROW,
        "functional.reference:combine_heads",
        of_argument(1, last_without_gradient),
        "values.output",
    ),
]
"""Faults that gradients alone show."""


def between(**options):
    return LayerCase("quadratic", options=options, numbers=BETWEEN)


AUTOCAST = [
    Fault(path, "scores in bfloat16", between(**options), place, wrong)
    for path, options, place, wrong in [
        (
            "reference",
            {"impl": "reference"},
            "functional.definition:attention_weights",
            of_argument(0, of_bfloat16),
        ),
        (
            "separable",
            {"impl": "separable"},
            "functional.plan:position_weights",
            of_argument(0, of_bfloat16),
        ),
        (
            "dense",
            {"impl": "dense"},
            "functional.plan:position_weights",
            of_argument(0, of_bfloat16),
        ),
        ("fourier", {"impl": "fourier"}, "functional.plan:_table", of_result(of_bfloat16)),
        (
            "content",
            {"content": Content(key_width=3)},
            "functional.content:Mask",
            of_argument(1, each(of_bfloat16)),
        ),
        (
            "values",
            {"impl": "separable", "head_width": 2},
            "functional.plan:position_weights",
            of_argument(0, of_bfloat16),
        ),
    ]
]
"""Faults that autocast would bring, were scores not kept from it."""
