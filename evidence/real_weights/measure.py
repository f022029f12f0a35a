"""What becomes of a task when its networks are converted: every output against float64, and every decision."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from benchmarks.correctness import judge, roads
from benchmarks.record import Check
from convattn import network_to_attention, network_to_conv
from convattn.convert.certificate import NetworkCertificate
from convattn.convert.surgery import copy_module
from convattn.layers import RelativeAttention
from convattn.provenance import find_revision
from evidence.real_weights.record import (
    Control,
    Conversion,
    Decision,
    Network,
    Outcome,
    TaskResult,
)
from evidence.real_weights.task import Found, Subject, Task
from evidence.sweep.control import turn_one_weight
from evidence.sweep.subjects import Built
from evidence.trained_networks.measure import same_weights

SHIPPED = "as the package runs it"
PLANNED = "as attention, planned path"
SOFTMAX = "as attention, softmax along each axis"
BACK = "as attention, and back as convolutions"

CERTIFIED = 16
"""Rows of a network's input on which its certificate compares it, at most.

They are spread over the input: sixteen frames of one tone do not reach every channel, and let a wrong weight pass.
"""


class Truth:
    """What the task finds with the networks as they are: in float64, in float32, and rounded in other ways."""

    def __init__(self, task: Task) -> None:
        """Does the task with the networks as they are."""
        exact = {name: copy_module(network).double() for name, network in task.networks.items()}
        self.hi = task.find(exact, task.given.double())
        self.lows = [task.find(task.networks, road) for road in roads(task.given)]

    @property
    def plain(self) -> Found:
        """What the networks find as they are, in float32."""
        return self.lows[0]

    def checks(self, found: Found) -> tuple[Check, ...]:
        """Holds every output against float64, by the error budget."""
        names = sorted(self.hi.numbers.keys() | found.numbers.keys())
        return tuple(
            judge(
                {name: found.numbers[name]},
                {name: self.hi.numbers[name]},
                [{name: low.numbers[name]} for low in self.lows],
            )
            for name in names
        )

    def decisions(self, found: Found) -> tuple[Decision, ...]:
        """Counts the decisions that differ from those of the networks as they are."""
        compared = []
        for name, before in self.plain.decisions.items():
            after = found.decisions[name]
            same = sum(old == new for old, new in zip(before, after, strict=False))
            compared.append(Decision(name, len(before), max(len(before), len(after)) - same))
        return tuple(compared)


def measure(subject: Subject, tell: Callable[[str], None]) -> TaskResult:
    """Does a task in every way.

    Args:
        subject: The task; its packages are installed.
        tell: Called with each way before it is tried.

    Returns:
        What came of it.
    """
    began, revision = time.perf_counter(), find_revision()
    task = subject.build()
    tell("as it is")
    with torch.no_grad():
        truth, inputs = Truth(task), inputs_met(task)
    outcomes = []
    if task.own is not None:
        tell(SHIPPED)
        with torch.no_grad():
            outcomes.append(_outcome(SHIPPED, task, task.own, (), truth))
    tell(PLANNED)
    pairs = {
        name: network_to_attention(net, images=inputs[name]) for name, net in task.networks.items()
    }
    planned = {name: made for name, (made, _) in pairs.items()}
    outcomes.append(_converted(PLANNED, task, pairs, truth))
    tell(SOFTMAX)
    soft = {name: _by_softmax(task, name, made, inputs[name]) for name, made in planned.items()}
    outcomes.append(_converted(SOFTMAX, task, soft, truth))
    tell(BACK)
    back = {name: network_to_conv(made, images=inputs[name]) for name, made in planned.items()}
    returned = {name: same_weights(made, task.networks[name]) for name, (made, _) in back.items()}
    outcomes.append(_converted(BACK, task, back, truth, returned))
    tell("one weight turned about")
    controls = [
        _control(task, planned, name, inputs[name], certificate, truth)
        for name, (_, certificate) in pairs.items()
    ]
    networks = tuple(_described(name, network) for name, network in task.networks.items())
    return TaskResult(
        name=subject.name,
        missing="",
        revision=revision,
        seconds=time.perf_counter() - began,
        largest_softmax=task.largest_softmax,
        networks=networks,
        words=truth.plain.words,
        outcomes=tuple(outcomes),
        controls=tuple(controls),
    )


def inputs_met(task: Task) -> dict[str, Tensor]:
    """Does the task and returns what each network is given first, a few rows spread over it."""
    met: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for name, network in task.networks.items():

            def note(_: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
                rows = (
                    torch.linspace(0, len(given[0]) - 1, min(len(given[0]), CERTIFIED))
                    .round()
                    .long()
                )
                met.setdefault(name, given[0][rows])

            handle = network.register_forward_pre_hook(note)
            hooks.callback(handle.remove)
        task.find(task.networks, task.given)
    return met


def softmax_bytes(network: nn.Module, given: Tensor) -> dict[str, int]:
    """Counts, for each attention layer that a network reaches, the bytes of its softmax along all axes."""
    sizes: dict[str, int] = {}
    with ExitStack() as hooks, torch.no_grad():
        for name, layer in network.named_modules():
            if isinstance(layer, RelativeAttention):

                def note(layer: RelativeAttention, x: tuple[Tensor, ...], name: str = name) -> None:
                    pairs = sum(
                        len(axis.queries) * axis.keys
                        for axis in layer.geometry.axes(x[0].shape[2:])
                    )
                    sizes[name] = layer.num_heads * pairs * x[0].element_size()

                hooks.callback(layer.register_forward_pre_hook(note).remove)
        network(given)
    return sizes


def _by_softmax(
    task: Task, name: str, planned: nn.Module, given: Tensor
) -> tuple[nn.Module, NetworkCertificate]:
    """Converts a network for softmax attention, without the layers whose softmax is too large."""
    large = [
        layer
        for layer, size in softmax_bytes(planned, given).items()
        if size > task.largest_softmax
    ]
    return network_to_attention(
        task.networks[name], impl="separable", exclude=large or None, images=given
    )


def _converted(
    way: str,
    task: Task,
    pairs: Mapping[str, tuple[nn.Module, NetworkCertificate]],
    truth: Truth,
    returned: Mapping[str, bool] | None = None,
) -> Outcome:
    """Does the task with converted networks."""
    conversions = tuple(
        _conversion(name, certificate, None if returned is None else returned[name])
        for name, (_, certificate) in pairs.items()
    )
    with torch.no_grad():
        return _outcome(
            way, task, {name: made for name, (made, _) in pairs.items()}, conversions, truth
        )


def _outcome(
    way: str,
    task: Task,
    networks: Mapping[str, Callable[[Tensor], object]],
    conversions: tuple[Conversion, ...],
    truth: Truth,
) -> Outcome:
    """Does the task with other networks, and compares what it finds."""
    found = task.find(networks, task.given)
    return Outcome(way, conversions, truth.checks(found), truth.decisions(found), found.words)


def _conversion(name: str, certificate: NetworkCertificate, returned: bool | None) -> Conversion:
    """Shortens a certificate."""
    numbers = (certificate.measured_error, certificate.rounding, certificate.largest)
    error, rounding, largest = (math.nan if number is None else number for number in numbers)
    return Conversion(
        network=name,
        layers=len(certificate.layers),
        heads=sum(layer.heads for layer in certificate.layers),
        paths=dict(Counter(layer.path or "not reached" for layer in certificate.layers)),
        exact=certificate.exact,
        passed=certificate.passed,
        error=error,
        rounding=rounding,
        largest=largest,
        worst_layer=max(
            layer.measured_error / (layer.bound + layer.rounding) for layer in certificate.layers
        ),
        shapes=certificate.shapes,
        left_alone=tuple(item.name for item in certificate.left_alone),
        returned=returned,
    )


def _control(
    task: Task,
    planned: Mapping[str, nn.Module],
    name: str,
    given: Tensor,
    certificate: NetworkCertificate,
    truth: Truth,
) -> Control:
    """Turns a weight of one converted network about, and does the task with it."""
    wrong = copy_module(planned[name])
    turned = turn_one_weight(Built(wrong, (given,)), wrong, certificate)
    try:
        with torch.no_grad():
            checks = truth.checks(task.find({**planned, name: wrong}, task.given))
        worst = max(check.error / check.allowed for check in checks)
    except (
        RuntimeError,
        IndexError,
        ValueError,
    ):  # a task may not run to its end without what it looks for
        worst = math.inf
    return Control(name, turned["layer"], turned["share_of_budget"], turned["rejected"], worst)


def _described(name: str, network: nn.Module) -> Network:
    """Describes a network."""
    kernels = [
        tuple(m.kernel_size)
        for m in network.modules()
        if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    ]
    return Network(name, sum(p.numel() for p in network.parameters()), max(kernels, key=math.prod))
