"""Compiles layers, and holds each against float64: `python -m tests.layers.compiled_layers CASE …`, without one all.

A case is ENCODING/SCORES/DTYPE/RUN, as quadratic/tanh/bfloat16/step. The type checks of the test run would break the
graphs, so that this is a program.
"""

import sys
import time
from contextlib import nullcontext
from itertools import product
from unittest.mock import patch

import torch
from torch._functorch import config as functorch_config

from convattn.budget import assert_within_budget, references, roundings
from convattn.encodings import ENCODINGS
from convattn.layers import RelativeAttention2d

SCORES = {
    "position": {},
    "content": {"content": True},
    "sigmoid": {"gate": "sigmoid"},
    "tanh": {"gate": "tanh"},
}
DTYPES = ("float32", "bfloat16")
RUNS = ("forward", "step")
AUTOCAST = "off"
"""Torch's default runs the whole backward pass under the autocast of the forward pass, where eager runs it without:
then gradients are off by up to 1.6 times the budget."""
CASES = ["/".join(case) for case in product(ENCODINGS, SCORES, DTYPES, RUNS)]


def results(layer, x, *, dtype, run, call=None):
    """Returns the output as one row, and after a step the gradients."""
    call = layer if call is None else call
    autocast = nullcontext()
    if dtype == "bfloat16" and x.dtype == torch.float32:
        autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    if run == "forward":
        with torch.no_grad(), autocast:
            return {"output": call(x).to(x.dtype)}
    x = x.detach().requires_grad_()
    layer.zero_grad()
    with autocast:
        y = call(x).to(x.dtype)
    torch.nn.functional.mse_loss(y, torch.ones_like(y), reduction="sum").backward()
    gradients = {name: one.grad for name, one in layer.named_parameters() if one.grad is not None}
    return {"output": y.detach(), "images": x.grad, **gradients}


def check(case):
    """Raises AssertionError, or what torch raises, unless a compiled layer is as right as the layer is."""
    encoding, scores, dtype, run = case.split("/")
    torch.manual_seed(0)
    torch._dynamo.reset()
    options = {"encoding": encoding, "num_heads": 9, **SCORES[scores]}
    layer = RelativeAttention2d(16, 16, 3, padding=1, **options)
    x = torch.randn(4, 16, 8, 8)
    options = {"dtype": dtype, "run": run}
    with functorch_config.patch(backward_pass_autocast=AUTOCAST):
        found = results(layer, x, **options, call=torch.compile(layer, fullgraph=True))
    hi, lows = references(lambda layer, x: results(layer, x, **options), layer, x)
    # the same operations as in the graph, one by one
    with patch("torch.compiler.is_compiling", lambda: True):
        lows += roundings(lambda layer, x: results(layer, x, **options), layer, x)
    assert found.keys() == hi.keys(), "gradients of other parameters"
    for name, value in found.items():
        assert_within_budget(value, hi[name], [low[name] for low in lows], name)


def main(cases):
    """Prints a line for each case; returns how many fail."""
    failed = 0
    for case in cases or CASES:
        start, verdict = time.perf_counter(), "right"
        try:
            check(case)
        except Exception as error:  # noqa: BLE001 - each is a line of the table
            verdict = f"{type(error).__name__}: {error}".splitlines()[0]
            failed += 1
        line = f"{case:48s} {time.perf_counter() - start:6.1f} s  {verdict}\n"
        sys.stdout.write(line)
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
