"""Counts what layers start on the second device, and prints a line of JSON for each case.

torch's fused attention counts as one operation there; what reaches it is printed with it. A second call counts: what a
first one prepares is left out.
"""

import json
import sys
from functools import partial
from itertools import product

import torch
from tests.devices.elsewhere import (
    Device,
    There,
    crossings,
    kernels,
    on_cpu,
    put_there,
    register,
    watch,
)
from torch.nn import functional

from convattn import Content, RelativeAttention2d
from convattn.encodings import create_encoding
from convattn.lab.speed_net import SpeedNet

BFLOAT = torch.bfloat16
reached = []
"""Queries, keys, values and masks that reached torch's attention."""

attention = functional.scaled_dot_product_attention


class Attention(torch.autograd.Function):
    """torch's attention, as one operation."""

    @staticmethod
    def forward(ctx, scale, *inputs):
        reached.append(inputs)
        kernels["attention"] += 1
        ctx.save_for_backward(*inputs)
        return There(attention(*map(on_cpu, inputs), scale=scale))

    @staticmethod
    def backward(ctx, gradient):
        kernels["attention"] += 1
        with torch.enable_grad():
            inputs = [on_cpu(tensor).detach().requires_grad_() for tensor in ctx.saved_tensors]
            y = attention(*inputs, scale=None)
        gradients = torch.autograd.grad(y, inputs, on_cpu(gradient), allow_unused=True)
        return None, *map(There, gradients)


def as_one(query, key, value, mask=None, dropout=0.0, *, scale=None):
    assert not dropout
    inputs = [query, key, value] if mask is None else [query, key, value, mask]
    return Attention.apply(scale, *inputs)


def layer(name, *, sides=16, **options):
    extent = {"extent": sides} if name.startswith("learned") else {}
    encoding = create_encoding(name, 9, 2, **extent)
    return RelativeAttention2d(18, 18, num_heads=9, encoding=encoding, **options)


def counted(make, images, dtype, autocast):
    """Returns what a second forward, and a second step, start."""
    torch.manual_seed(0)
    module, x = put_there(make().to(dtype)), There(images.to(dtype)).requires_grad_()
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    counts = {}
    with Device(), torch.autocast("elsewhere", BFLOAT, enabled=autocast):
        for _ in range(2):
            reached.clear()
            with watch():
                with torch.no_grad():
                    module(x)
                counts["forward"] = sum(kernels.values())
                counts["forward crossings"] = dict(crossings)
            with watch():
                y = module(x)
                torch.autograd.grad(y.float().sum(), [x, *learning], allow_unused=True)
                counts["step"] = sum(kernels.values())
                counts["step crossings"] = dict(crossings)
    inputs = [tensor for call in reached for tensor in call]
    counts["widths"] = sorted({tensor.shape[-1] for tensor in inputs})
    counts["strides"] = sorted({tensor.stride(-1) for tensor in inputs})
    counts["learning masks"] = any(len(call) == 4 and call[3].requires_grad for call in reached)
    return counts


def cases():
    """Yields a name, what makes the module, images, a dtype, and whether autocast is on."""
    for sides, autocast in ((16, False), (32, True)):
        images = torch.randn(2, 18, sides, sides)
        for name in ("quadratic", "learned_axial", "learned_table"):
            words = f"{name}, {sides} x {sides}, {'bfloat16' if autocast else 'float32'}"
            yield words, partial(layer, name, sides=sides), images, torch.float32, autocast
    narrow = ("quadratic", "learned_axial", "distance")
    for dtype, width, names in (
        (torch.float32, 7, (*narrow, "generalized_quadratic", "shift")),
        (BFLOAT, None, narrow),
    ):
        for name, count in product(names, (2, 5)):
            make = partial(layer, name, content=Content(key_width=width))
            words = f"content, {name}, {dtype}, {count} images"
            yield words, make, torch.randn(count, 18, 16, 16), dtype, False
    gated = partial(layer, "quadratic", content=Content(key_width=7, position=False), gate="tanh")
    yield "gate", gated, torch.randn(2, 18, 16, 16), torch.float32, False
    made = partial(RelativeAttention2d, 4, 6, 3, padding=1, encoding="shift")
    yield "shift", made, torch.randn(2, 4, 8, 8), torch.float32, False
    net = partial(SpeedNet, widths=(4, 8, 8))
    yield "speed run", net, torch.randn(2, 3, 32, 32), torch.float32, False


def main():
    register()
    functional.scaled_dot_product_attention = as_one
    for name, *case in cases():
        sys.stdout.write(json.dumps({"case": name, **counted(*case)}) + "\n")


if __name__ == "__main__":
    main()
