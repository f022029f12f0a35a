"""Converts one network on both paths, in a process of its own: python -m evidence.sweep.convert HOME FAMILY."""

import json
import sys
import time
from collections import Counter
from typing import Any

import torch

from convattn import ConvAttnError, network_to_attention, network_to_conv
from evidence.sweep.control import turn_one_weight
from evidence.sweep.homes import home
from evidence.sweep.randomise import randomise
from evidence.sweep.subjects import Built, WithoutConvolutionError
from evidence.trained_networks.measure import same_weights

_SEED = 0


def convert_family(place: str, family: str) -> dict[str, Any]:
    """Converts a family's network on both paths.

    Args:
        place: Name of the home.
        family: Name of the family.

    Returns:
        What came of it: the model, and by way what the certificate says.
    """
    torch.manual_seed(_SEED)
    line: dict[str, Any] = {"home": place, "family": family}
    try:
        subject = home(place).subject(family)
    except WithoutConvolutionError as reason:
        return {**line, "outcome": "no convolution", "reason": str(reason)}
    torch.manual_seed(_SEED)
    built = subject.build()
    randomise(built)
    parameters = sum(parameter.numel() for parameter in built.network.parameters())
    paths = {way: _convert(built, way) for way in home(place).ways}
    outcomes = [path["outcome"] for path in paths.values()]
    worst = max(outcomes, key=("passed", "failed", "refused").index)
    return {
        **line,
        "model": subject.name,
        "remark": subject.remark,
        "parameters": parameters,
        "outcome": worst,
        "paths": paths,
    }


def _convert(built: Built, way: str) -> dict[str, Any]:
    """Converts a network on one way."""
    impl = "separable" if way == "separable" else "auto"
    start = time.perf_counter()
    try:
        made, certificate = network_to_attention(built.network, impl=impl, images=built.arguments)
        if way == "back":
            attention = made
            start = time.perf_counter()
            made, certificate = network_to_conv(attention, images=built.arguments)
    except ConvAttnError as error:
        return {"outcome": "refused", "reason": str(error)}
    seconds = time.perf_counter() - start
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
        "seconds": round(seconds, 1),
    }
    if way == "back":
        result["same_weights"] = same_weights(made, built.network)
    if way == "auto":
        result["control"] = turn_one_weight(built, made, certificate)
    return result


if __name__ == "__main__":
    print(json.dumps(convert_family(*sys.argv[1:])))
