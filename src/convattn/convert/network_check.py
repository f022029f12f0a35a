"""Two networks that should compute the same, run on images: how far they are apart, and the verdict on that."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from convattn.convert.certificate import Verdict
from convattn.convert.convolutions import NetworkConvolution, place_layers
from convattn.convert.network_runs import (
    ROUNDINGS,
    Arguments,
    copy_network,
    layer_outputs,
    noticing_draws,
    run_batches,
    run_copy,
    run_in_float64,
    run_source,
    steps_of,
)
from convattn.convert.rounding import (
    Difference,
    Predictions,
    Roundings,
    compare_outputs,
    compare_parts,
    count_predictions,
    differences,
    shapes_of,
    vary,
)
from convattn.convert.taps import AnyConvolution, summed_otherwise
from convattn.errors import ArgumentError, ConversionError
from convattn.structure import dtype_name

_BATCH = 64
"""Images that run at once."""

FEW = 4
"""Images on which single layers are compared."""

_VARIES = (
    "rounding, random numbers or state kept between runs change its outputs too much to compare"
)
_NOTHING = "it returns no floating-point number other than 0"

_FARTHER = 2
"""How many times as far as an output a layer may be. A merged normalisation puts a large bias first: with AVX2 the sum
is then 2.5 times as far (median of 30 layers; 0.99 times with AVX-512)."""


@dataclass(frozen=True)
class NetworkComparison:
    """How far a network is from its source on some images."""

    arguments: Arguments  # What the networks were run on
    reference: str  # Dtype in which the source computes the reference
    outputs: tuple[
        Difference, ...
    ]  # Two differences per output: against rounding, and against scale
    differing: tuple[str, ...]  # Parts of the output beside floating-point numbers that differ
    predictions: Predictions | None  # None where the first output is not rows of scores
    not_covered: tuple[str, ...]  # What the comparison could not show
    hides: bool  # Whether an output has parts that cannot be seen into
    # The first layer that differs, or no difference, where outputs show little; else None
    layers: Difference | None = None

    @property
    def nearest_to_rounding(self) -> Difference:
        """The output nearest to its budget of rounding, or farthest beyond."""
        return max(self.outputs, key=lambda output: output.share)

    @property
    def farthest(self) -> Difference:
        """The output of the largest error, relative to its values."""
        return max(self.outputs, key=lambda output: output.relative)

    def measured(self, judged: Difference) -> dict[str, Any]:
        """Returns what both networks ran on, and what was measured there, as fields of a certificate."""
        return {
            "images": self.arguments.words,
            "shapes": self.arguments.shapes(),
            "measured_error": judged.error,
            "rounding": judged.rounding,
            "largest": judged.largest,
        }

    def judge(
        self, *, exact: bool, promised: bool, changed: int | None, tolerance: float | None
    ) -> Verdict:
        """Returns the verdict on two networks.

        Args:
            exact: Whether everything but the outputs lets them be the same.
            promised: Whether they were promised to be the same.
            changed: How many decisions count as changed.
            tolerance: Largest difference that is called close, as a share of its scale; None calls none so.
        """
        alike = not changed and not self.differing
        same = exact and self.nearest_to_rounding.share <= 1 and not self.differing
        shown = self.layers is None or self.layers.share <= 1
        if same and shown and not self.hides:
            return "exact"
        if self.layers is not None:
            return "failed" if promised and not shown else "different"
        finite = all(math.isfinite(output.error) for output in self.outputs)
        if not finite or (promised and not same):
            return "failed"
        farthest = self.farthest
        if tolerance is not None and farthest.largest > 0 and farthest.relative <= tolerance:
            return "close" if alike else "different"
        return "different"


def compare_networks(  # noqa: PLR0915 - one comparison, read downwards
    source: nn.Module,
    other: nn.Module,
    arguments: Arguments,
    convolutions: Sequence[NetworkConvolution],
    *,
    to_conv: bool,
    rounded: Sequence[nn.Module] = (),
    may_be_flat: bool = False,
) -> NetworkComparison:
    """Runs both networks, and measures how far the other one is from the source in float64.

    Runs that differ by rounding alone show what rounding explains: the source on images with other last digits, and
    the network of convolutions with these summed tap by tap, against the same convolutions in float64. Where the
    other network is the one of convolutions (`to_conv`), it must also agree in float64 with the source as far as
    rounding moves the source in its own dtype.

    `other` is a copy of the converted network in evaluation mode; it runs, and may change itself. `rounded` holds
    copies of the source whose weights have other last digits. If the other one `may_be_flat`, it may return the tensors
    of the source in a list. Raises ArgumentError if the source does not take the
    images, and ConversionError if the other network does not run.
    """
    notes = list[str]()
    arguments = noticing_draws(source, arguments, _BATCH, notes)
    batches = arguments.batches(_BATCH)

    # the source, in its own dtype with several roundings, and in float64
    first, *moved = run_source(source, batches)
    places = first.numbers
    plain = list(places.values())
    steps = steps_of(source, plain)
    dtypes = [x.dtype for x in plain]
    dtype = min(dtypes, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
    runs = [first, *moved, *(run_batches(one, batches) for one in rounded)]
    of_source = [run.ordered(places) for run in runs]
    high = run_in_float64(source, batches, notes, places)

    # the network of convolutions, in float64, and summed tap by tap
    network = other if to_conv else source
    as_read = partial(_with_convolutions, network, convolutions)
    convolved = None
    if high is not None:
        change = partial(as_read, lambda conv, x: copy.deepcopy(conv).double()(x))
        convolved = run_in_float64(network, batches, notes, places, change)
    of_convolutions = []
    if not to_conv or (convolved is not None and dtype == torch.float64):
        try:
            summed = run_copy(network, batches, partial(as_read, summed_otherwise))
        except ArgumentError as error:  # the network itself has run on these images
            why = f"{type(error.__cause__).__name__}: {error.__cause__}"
            raise ConversionError(f"the network does not run with layers in it: {why}") from error
        of_convolutions.append(summed.ordered(places))

    # the other itself comes last, because it may change itself
    try:
        other_run = run_batches(other, batches, like=first if may_be_flat else None)
    except Exception as error:  # a foreign network may look at its layers in any way
        name = "other" if rounded else "the converted network"
        raise ConversionError(f"{name} does not run: {type(error).__name__}: {error}") from error
    result = other_run.ordered(places)
    if to_conv:
        of_convolutions.append(result)

    # layers are compared where outputs show little
    honest = [*of_source, *of_convolutions, high or plain, convolved or plain]
    returns_nothing = not any(x.any() for x in plain)
    shapes = shapes_of(plain)
    by_layers = returns_nothing or any(shapes_of(run) != shapes for run in honest)
    by_layers = by_layers or vary(high or plain, of_source, steps)
    reference = torch.float64
    if high is None or convolved is None or by_layers:
        reference = dtype
        high = [x.double() for x in plain]
        convolved = None
        of_convolutions = [] if to_conv else of_convolutions
    layers = None
    if by_layers:
        why = _NOTHING if returns_nothing else _VARIES
        compared = f"its layers were compared, in {dtype_name(reference)}"
        notes.append(f"the network as a whole: {why}, so {compared}")
        of_source = [run for run in of_source if shapes_of(run) == shapes]
        of_convolutions = [run for run in of_convolutions if shapes_of(run) == shapes]
        *_, layers = compare_layers(
            source, rounded, arguments, lambda images, _: layer_outputs(other, images)[0]
        )

    outputs, allowances = compare_outputs(
        result, high, convolved, of_source, of_convolutions, steps, notes
    )
    if not (to_conv or by_layers) and not all(output.same for output in outputs):
        notes.append(
            "the network as a whole: with its convolutions as they were read, it computes something else"
        )
    differing, hides = compare_parts(
        first.others, other_run.others, [run.others for run in moved], notes
    )
    return NetworkComparison(
        arguments=arguments,
        reference=dtype_name(reference),
        outputs=tuple(outputs),
        differing=differing,
        predictions=count_predictions(plain, result, allowances),
        not_covered=tuple(notes),
        hides=hides,
        layers=layers,
    )


# --- The network of convolutions --------------------------------------------------------------------------------------


def _with_convolutions(
    network: nn.Module,
    convolutions: Sequence[NetworkConvolution],
    compute: Callable[[AnyConvolution, Tensor], Tensor],
    copied: nn.Module,
) -> nn.Module:
    """Lets `compute` run the convolutions of a copied network, as they were read; returns the copy.

    So rounding shows in every layer, and no misreading passes for it. Parameters that are those of the network are read
    when they are used, because a network may change them in its forward.
    """

    def forward(
        conv: AnyConvolution,
        own: Mapping[str, str],
        present: dict[str, Any],
        *positional: Tensor,
        **named: Tensor,
    ) -> Tensor:
        conv._parameters = {**conv._parameters, **{name: present[key] for name, key in own.items()}}
        image, *_ = *positional, *named.values()
        return compute(conv, image)

    layers = []
    for one in convolutions:
        place = copied.get_submodule(one.name)
        present = place._parameters  # not the place: a cycle would keep the copy in memory
        own = _shared_parameters(network, one)
        layer = place if one.call is None else nn.Identity()
        layer.forward = partial(forward, copy.copy(one.conv), own, present)
        layers.append((one, layer))
    return place_layers(copied, layers)


def _shared_parameters(network: nn.Module, convolution: NetworkConvolution) -> dict[str, str]:
    """Names the parameters of a convolution that are those of the module in its place, with their names there."""
    shared = {}
    held = network.get_submodule(convolution.name)._parameters
    call = convolution.call
    for name, tensor in convolution.conv.named_parameters():
        own = name if call is None else getattr(call, name)
        original = held.get(own or "")
        if original is not None and original.data_ptr() == tensor.data_ptr():
            shared[name] = own
    return shared


# --- Layers -----------------------------------------------------------------------------------------------------------


def compare_layers(
    source: nn.Module,
    rounded: Sequence[nn.Module],
    arguments: Arguments,
    values_of: Callable[[Arguments, Sequence[str]], Mapping[str, Tensor]],
) -> tuple[int, str | None, Difference]:
    """Returns how many layers could be matched by their names, and the first that is outside its tolerance.

    That is its name, or None, and how far it is off.
    A layer is passed over if all that take its output, or else the module that holds it, are within their tolerances.

    Args:
        source: The network that is right.
        rounded: Copies of it that compute with other roundings.
        arguments: What they run on; of a batch of images the first ones.
        values_of: Returns outputs of the other network's layers on images, by names of the source's.
    """
    images = arguments.batches(FEW)[0]
    exact = copy_network(source).eval().double()
    high, takers = layer_outputs(exact, images, torch.float64)
    values = values_of(images, list(high))
    roundings = {}
    for name, x in high.items():
        value = values.get(name)
        if value is not None and value.shape == x.shape and not x.isnan().any():
            roundings[name] = Roundings(x)
    steps = {}
    moved = [images.rounded_differently(seed) for seed in range(ROUNDINGS)]
    # of a fresh copy each, because a network may change itself
    runs = [(copy_network(source).eval(), given) for given in (images, *moved)]
    runs += [(network, images) for network in rounded]
    for network, given in runs:
        for name, low in layer_outputs(network, given)[0].items():
            if name in roundings and low.shape == high[name].shape:
                roundings[name].add(low)
                steps[name] = torch.finfo(low.dtype).eps
    apart = {}
    for name, step in steps.items():
        allowed = _FARTHER * roundings[name].allowed(step)
        one = differences(values[name], high[name], allowed)[0]
        if one.same:
            apart[name] = one
    for name, one in apart.items():
        parent = name.rpartition(".")[0]
        after = [apart[taker].share <= 1 for taker in takers.get(name, [parent]) if taker in apart]
        passed_over = bool(after) and all(after)
        if one.share > 1 and not passed_over:
            return len(apart), name, one
    return len(apart), None, Difference()
