"""Time against the number of pixels, for the paths that do not need all pairs of them."""

from dataclasses import replace

from convattn.benchmark.build import Setting, build_layer, draw_images, seeded, with_path
from convattn.benchmark.cases import LayerCase, ScalingCase
from convattn.benchmark.contenders import Contender
from convattn.benchmark.correctness import Truth, some_queries
from convattn.benchmark.measure import make_call, time_rounds
from convattn.benchmark.record import Check, ScalingCurve, fit_exponent
from convattn.errors import UnknownNameError
from convattn.layers import RelativeAttention, RelativeAttention2d

__all__ = ["run_scaling"]

_ENCODINGS = {"separable": "quadratic", "fourier": "generalized_quadratic"}


def run_scaling(case: ScalingCase, setting: Setting, rounds: int) -> tuple[ScalingCurve, ...]:
    """Times every path on images of every size; at each size the paths take turns.

    Args:
        case: The case.
        setting: Device and dtype.
        rounds: Number of rounds.

    Returns:
        A curve per path. At a size at which it is wrong a path has no times; one that the layers do not know has none
        at all.
    """
    layers, skipped = {}, {}
    for path in case.paths:
        try:
            layers[path] = setting.place(_build(case, path))
        except UnknownNameError as error:
            skipped[path] = f"skipped: {error}"
    seconds: dict[str, list[tuple[float, ...]]] = {path: [] for path in layers}
    checks: dict[str, list[Check]] = {path: [] for path in layers}
    for size in case.sizes:
        images = draw_images(_as_layer_case(case, size), setting)
        queries = some_queries(size**2, images.device)
        for path, layer in layers.items():
            contender = Contender(layer, "", layer, same_function=True)
            checks[path].append(Truth(layer, images, queries).check(contender))
        right = {path: layer for path, layer in layers.items() if checks[path][-1].passed}
        calls = {path: make_call(layer, images, training=False) for path, layer in right.items()}
        times = time_rounds(calls, rounds=rounds, device=setting.torch_device)
        for path in layers:
            seconds[path].append(times.get(path, ()))
    return tuple(
        _curve(case, path, seconds.get(path, []), checks.get(path, []), skipped.get(path)) for path in case.paths
    )


def _build(case: ScalingCase, path: str) -> RelativeAttention:
    """Makes the layer that a path is measured on, in float32 on the CPU, at inference."""
    if path not in _ENCODINGS:
        return with_path(build_layer(_as_layer_case(case, case.sizes[0])), path).eval()
    with seeded(case.seed):
        return RelativeAttention2d(case.channels, case.channels, case.heads, _ENCODINGS[path], impl=path).eval()


def _as_layer_case(case: ScalingCase, size: int) -> LayerCase:
    return LayerCase(case.name, "hard", case.channels, case.heads, size, batch=1, seed=case.seed)


def _curve(
    case: ScalingCase, path: str, seconds: list[tuple[float, ...]], checks: list[Check], skipped: str | None
) -> ScalingCurve:
    kind = _ENCODINGS.get(path, "hard").replace("_", " ")
    note = f"{case.heads} {kind} heads" if path in _ENCODINGS else "hard heads of a 3×3 convolution"
    positions = tuple(size**2 for size in case.sizes) if skipped is None else ()
    curve = ScalingCurve(path, note, positions, tuple(seconds), tuple(checks), None, skipped)
    return replace(curve, exponent=fit_exponent(curve.medians())) if case.fitted else curve
