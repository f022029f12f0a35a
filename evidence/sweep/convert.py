"""Converts one network, in a process of its own: python -m evidence.sweep.convert HOME FAMILY [FOLDER OF CODE]."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # noqa: F401 - by the first conversion in any case, and not to be measured
from torch import nn

from convattn import ConvAttnError, network_to_attention, network_to_conv
from convattn.convert import network as conversion
from convattn.convert.network_runs import copy_network
from evidence.sweep.control import turn_one_weight
from evidence.sweep.homes import home
from evidence.sweep.randomise import randomise
from evidence.sweep.subjects import Built, WithoutConvolutionError
from evidence.sweep.training import train_beside
from evidence.trained_networks.measure import same_weights

PARTS = {"with_attention": "layers", "_convert_layer": "layers", "compare_networks": "comparing"}
"""What functions of a conversion do: make and certify layers, or compare whole networks."""

_SEED = 0


def convert_family(place: str, family: str, code: str | None = None) -> dict[str, Any]:
    """Converts a family's network in the ways of its home.

    Args:
        place: Name of the home, or the path of its list.
        family: Name of the family.
        code: Folder of the repositories of a list, if it has one.

    Returns:
        What came of it: the model, and by way what the certificate says.
    """
    torch.manual_seed(_SEED)
    line: dict[str, Any] = {"home": place, "family": family}
    own_home = home(place, code)
    try:
        subject = own_home.subject(family)
    except WithoutConvolutionError as reason:
        return {**line, "outcome": "no convolution", "reason": str(reason)}
    torch.manual_seed(_SEED)
    built = subject.build()
    randomise(built)
    parameters = sum(parameter.numel() for parameter in built.network.parameters())
    paths: dict[str, dict[str, Any]] = {}
    made: dict[str, nn.Module] = {}
    for way in own_home.ways:
        if way in ("back", "step") and "auto" not in made:
            continue  # it was refused
        with _processor_seconds() as seconds:
            path = _convert(built, way, made)
        whole = seconds.pop("all")
        paths[way] = {**path, "seconds": whole, "parts": seconds}
    outcomes = [path["outcome"] for path in paths.values()]
    worst = max(outcomes, key=("not trained", "passed", "failed", "refused").index)
    return {
        **line,
        "model": subject.name,
        "remark": subject.remark,
        "parameters": parameters,
        "outcome": worst,
        "paths": paths,
    }


def _convert(built: Built, way: str, networks: dict[str, nn.Module]) -> dict[str, Any]:
    """Converts a network in one way; returns what came of it. The new network joins the others."""
    images = built.arguments
    try:
        if way == "step":
            return train_beside(built, networks["auto"])
        if way == "back":
            made, certificate = network_to_conv(networks["auto"], images=images)
        else:
            made, certificate = network_to_attention(built.network, impl=way, images=images)
    except ConvAttnError as error:
        return {"outcome": "refused", "reason": str(error)}
    networks[way] = made
    used = Counter(layer.path or "not reached" for layer in certificate.layers)
    other = way == "separable" and set(used) - {"separable", "not reached"}
    result: dict[str, Any] = {
        "outcome": "passed" if certificate.passed and not other else "failed",
        "verdict": certificate.verdict,
        "layers": len(certificate.layers),
        "heads": sum(layer.heads for layer in certificate.layers),
        "used": dict(sorted(used.items())),
        "measured_error": certificate.measured_error,
        "rounding": certificate.rounding,
        "largest": certificate.largest,
        "reference": certificate.reference,
        "top1_total": certificate.top1_total,
        "top1_changed": certificate.top1_changed,
        "failed_layers": [layer.name for layer in certificate.layers if not layer.passed],
        "left_alone": [
            f"{item.name} ({item.kind}): {item.reason}" for item in certificate.left_alone
        ],
        "notes": sorted({note for layer in certificate.layers for note in layer.notes}),
        "not_covered": list(certificate.not_covered),
        "shapes": [list(shape) for shape in certificate.shapes],
    }
    if way == "back":
        result["same_weights"] = same_weights(made, built.network)
    if way == "auto":
        result["control"] = turn_one_weight(built, copy_network(made), certificate)
    return result


@contextmanager
def _processor_seconds() -> Iterator[dict[str, float]]:
    """Measures processor time: of all that runs inside, and of the parts of a conversion."""
    seconds: dict[str, float] = {}

    def timed(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            result = function(*arguments, **options)
            seconds[part] = seconds.get(part, 0) + time.process_time() - start
            return result

        return call

    start = time.process_time()
    with ExitStack() as patched:
        for name, part in PARTS.items():
            function = timed(getattr(conversion, name), part)
            patched.enter_context(patch.object(conversion, name, function))
        yield seconds
    seconds["all"] = time.process_time() - start
    seconds |= {part: round(own, 2) for part, own in seconds.items()}


if __name__ == "__main__":
    print(json.dumps(convert_family(*sys.argv[1:])))
