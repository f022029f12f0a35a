"""Running a whole network as it is and as attention: equal in float64 first, then times in turns, then memory."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from convattn.benchmark.build import Setting, seeded
from convattn.benchmark.cases import NetworkCase
from convattn.benchmark.correctness import judge
from convattn.benchmark.measure import NO_COUNTER, in_a_process_of_its_own, peak_memory, time_rounds
from convattn.benchmark.network_record import NetworkMeasurement, NetworkResult
from convattn.benchmark.record import Check
from convattn.benchmark.report import first_line
from convattn.convert import freeze, network_to_attention
from convattn.convert.copies import copy_module
from convattn.errors import MissingDependencyError
from convattn.functional.rounding import rounded_differently
from convattn.layers import FrozenAttention, RelativeAttention

__all__ = ["CONTENDERS", "measure_network", "run_network_case"]

CONTENDERS = ("original", "planned", "separable", "frozen")
"""Forms of a network: as it is, as attention by the paths that the layers choose, as softmax along each axis, and that
frozen for images of the case's size."""

_ROUNDINGS = 3
_TIMES_SINGLE = 20
"""Rounds of a single image for one of many images."""


def run_network_case(case: NetworkCase, setting: Setting, rounds: int) -> tuple[NetworkResult, ...]:
    """Checks the forms of a network, times those that are right in turns, and measures their memory.

    Args:
        case: The case.
        setting: Device and dtype.
        rounds: Number of rounds.

    Returns:
        What was found, for each number of images.

    Raises:
        MissingDependencyError: timm is not installed.
    """
    networks = {name: _build(name, case, setting) for name in CONTENDERS}
    checks = _check(networks, _draw(case, 1, setting))
    right = {name for name, check in checks.items() if check is None or check.passed}
    memory, note = _memory(case, setting) if case.memory else ({}, "")
    results = []
    for index, batch in enumerate(case.batches):
        images = _draw(case, batch, setting)
        calls: dict[str, Callable[[], object]] = {name: partial(_infer, networks[name], images) for name in networks}
        seconds = time_rounds(
            {name: call for name, call in calls.items() if name in right},
            rounds=rounds * (_TIMES_SINGLE if batch == 1 else 1),
            device=setting.torch_device,
        )
        measurements = []
        for name, network in networks.items():
            extra = memory[name][index] if memory else None
            times = seconds.get(name, ())
            measurements.append(NetworkMeasurement(name, checks[name], times, _held(network), extra, note))
        results.append(_result(case, networks, images, tuple(measurements)))
    return tuple(results)


def _result(
    case: NetworkCase, networks: dict[str, nn.Module], images: Tensor, measurements: tuple[NetworkMeasurement, ...]
) -> NetworkResult:
    """Adds what is known of the layers without measuring."""
    shapes = {name: _shapes(networks[name], images) for name in ("planned", "separable")}
    paths = {name: _paths(of) for name, of in shapes.items()}
    pairs = [_pairs(layer, shape) for layer, shape in shapes["planned"].items()]
    return NetworkResult(
        name=f"{case.name}-{len(images)}",
        network=case.network,
        size=case.size,
        images=len(images),
        layers=len(pairs),
        paths=paths | {"frozen": paths["separable"]},
        pairs_largest=max(pairs),
        pairs_total=sum(pairs),
        measurements=measurements,
    )


def measure_network(name: str, case: NetworkCase, setting: Setting, threads: int) -> tuple[int | None, ...]:
    """Measures the memory of the calls of one form of a network; meant for a process of its own.

    Args:
        name: Name of the form.
        case: The case.
        setting: Device and dtype.
        threads: Number of threads.

    Returns:
        Bytes beyond what was held before the first call, for each number of images; None where the system cannot tell.
    """
    torch.set_num_threads(threads)
    batches = [_draw(case, batch, setting) for batch in case.batches]
    networks = {form: _build(form, case, setting) for form in CONTENDERS}  # so that all processes have the same history
    for form, network in networks.items():
        seen = batches[0][:1] if form == "frozen" else batches[0][:1, :, :64, :64]
        _infer(network, torch.zeros_like(seen))
    network = networks[name]
    networks.clear()
    return peak_memory([partial(_infer, network, images) for images in batches], setting.torch_device)


def _build(name: str, case: NetworkCase, setting: Setting) -> nn.Module:
    """Makes a form of a network with random weights, in evaluation mode."""
    try:
        from timm import create_model
    except ImportError:
        raise MissingDependencyError("timm", "bench") from None
    with seeded(case.seed):
        network = setting.place(create_model(case.network))
        if name == "original":
            return network
        small = torch.randn(1, 3, 32, 32).to(device=setting.torch_device, dtype=setting.torch_dtype)
        impl = "auto" if name == "planned" else "separable"
        made, _ = network_to_attention(network, impl=impl, images=small)
        return freeze(made, _draw(case, 1, setting)) if name == "frozen" else made


def _draw(case: NetworkCase, batch: int, setting: Setting) -> Float[Tensor, "batch 3 rows cols"]:
    generator = torch.Generator().manual_seed(case.seed)
    images = torch.randn(batch, 3, case.size, case.size, generator=generator)
    return images.to(device=setting.torch_device, dtype=setting.torch_dtype)


def _infer(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images)


def _check(networks: dict[str, nn.Module], images: Tensor) -> dict[str, Check | None]:
    """Compares all forms with the original in float64; what rounding may do is seen on the original."""
    original = networks["original"]
    exact = copy_module(original).double()
    hi = {"output": _infer(exact, images.double())}
    roads = [images, *(rounded_differently(images, seed) for seed in range(_ROUNDINGS))]
    lows = [{"output": _infer(original, road)} for road in roads]
    others = {name: network for name, network in networks.items() if name != "original"}
    return {"original": None} | {n: judge({"output": _infer(net, images)}, hi, lows) for n, net in others.items()}


def _memory(case: NetworkCase, setting: Setting) -> tuple[dict[str, tuple[int | None, ...]], str]:
    """Measures the memory of each form, or says why it could not be measured."""
    threads, found = torch.get_num_threads(), {}
    for name in CONTENDERS:
        try:
            found[name] = in_a_process_of_its_own(measure_network, name, case, setting, threads)
        except (MemoryError, RuntimeError) as error:
            return {}, f"not measured: {first_line(error)}"
    return found, NO_COUNTER if any(None in each for each in found.values()) else ""


def _held(network: nn.Module) -> int:
    frozen = sum(layer.nbytes for layer in network.modules() if isinstance(layer, FrozenAttention))
    return frozen + sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))


def _shapes(network: nn.Module, images: Tensor) -> dict[RelativeAttention, tuple[int, ...]]:
    """Returns the shape of what each attention layer is given."""
    shapes: dict[RelativeAttention, tuple[int, ...]] = {}

    def note(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(module, RelativeAttention)
        shapes[module] = tuple(given[0].shape)

    hooks = [m.register_forward_pre_hook(note) for m in network.modules() if isinstance(m, RelativeAttention)]
    try:
        _infer(network, images)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def _paths(shapes: dict[RelativeAttention, tuple[int, ...]]) -> dict[str, int]:
    with torch.no_grad():
        return dict(Counter(layer.plan(shape).path for layer, shape in shapes.items()))


def _pairs(layer: RelativeAttention, shape: tuple[int, ...]) -> int:
    """Counts the bytes of a weight for each head, query and key: one float32 each, the same for all images."""
    total = layer.num_heads * torch.float32.itemsize
    for axis in layer.geometry.axes(shape[2:]):
        total *= len(axis.queries) * axis.keys
    return total
