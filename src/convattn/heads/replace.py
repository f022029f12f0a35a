"""Replaces the attention of heads by fixed weights: their kernel, their mean map, nothing, and more."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, nan, prod

import torch
from torch import Tensor, nn

from convattn.convert.network_runs import copy_network
from convattn.convert.surgery import graft, require_network
from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a, require_name
from convattn.heads.call_stack import CallStack, require_pixels, with_parents
from convattn.heads.catalogue import read_matrices
from convattn.heads.convolved_attention import ConvolvedAttention
from convattn.heads.families.attention_class import TokenAttention, TokenLayer
from convattn.heads.fixed_attention import FixedAttention, FixedHeads, MappedHeads
from convattn.heads.head_report import AGAIN, HeadReport, LayerReport
from convattn.heads.layout import WHOLE
from convattn.heads.replaceable_heads import (
    Arm,
    Head,
    below,
    kernel_by,
    measured_heads,
    read_arms,
    require_known,
)
from convattn.heads.verdict import CONVOLUTIONAL
from convattn.record import Record
from convattn.structure import full_name
from convattn.wording import counted


@dataclass(frozen=True)
class ReplacedHead:
    """One head of a network, and whether it was replaced."""

    layer: str  # Dotted name of the layer
    head: int  # Number in the layer, from 0
    score: float  # Position score R² in the report
    by: str  # What replaced it: a name of `by`, or "kernel of LAYER head NUMBER"; empty if it was left
    reason: str  # Why it was left; empty if it was replaced
    # Taps along each axis of the kernel that it runs in as a convolution; empty if it does not
    box: tuple[int, ...] = ()


@dataclass(frozen=True)
class HeadReplacement(Record):
    """What `replace_heads` has made of a network.

    Example:
        >>> import timm, torch
        >>> from convattn import analyze, replace_heads
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1).eval()
        >>> report = analyze(vit, torch.randn(4, 3, 48, 48), controls=(), progress=False)
        >>> _, record = replace_heads(vit, report, [("blocks.0.attn", 2)], "zero")
        >>> [(head.head, head.by) for head in record.replaced], [head.head for head in record.left]
        ([(2, 'zero')], [0, 1])
    """

    model: str  # Class of the network
    threshold: float  # Position score from which heads were replaced; nan if they were named
    heads: tuple[ReplacedHead, ...]  # All heads of the report
    layers_without_softmax: tuple[str, ...]  # Layers that hold no query, key and softmax any more
    parameters: int  # Number of parameters now
    parameters_before: int  # Number of parameters before
    not_covered: tuple[str, ...] = ()  # What this says nothing about

    @property
    def replaced(self) -> tuple[ReplacedHead, ...]:
        """The heads that were replaced."""
        return tuple(head for head in self.heads if head.by)

    @property
    def left(self) -> tuple[ReplacedHead, ...]:
        """The heads that were left as they are."""
        return tuple(head for head in self.heads if not head.by)

    def summary(self) -> str:
        """Returns the record in a few lines of plain text."""
        rule = f"R² ≥ {self.threshold:g}"
        if isnan(self.threshold):
            rule = "named by the caller"
        layers = {head.layer for head in self.heads}
        with_softmax = len(layers) - len(self.layers_without_softmax)
        every = counted(len(self.heads), "head")
        lines = [
            f"head replacement: {len(self.replaced)} of {every} of {self.model} ({rule})",
        ]
        for by, count in Counter(head.by for head in self.replaced).items():
            lines.append(f"  replaced        {counted(count, 'head')} by: {by}")
        lines += [
            f"  softmax         left in {with_softmax} of {counted(len(layers), 'layer')}",
            f"  parameters      {self.parameters_before:,} before, {self.parameters:,} now",
        ]
        reasons = Counter(head.reason for head in self.left)
        for reason, count in sorted(reasons.items()):
            lines.append(f"  left            {counted(count, 'head')}: {reason}")
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)


_NOT_COVERED = (
    "images unlike those of the report: kernels and shares are means over its images",
    "dropout of attention weights in training: heads with fixed weights have none",
)
_ANY_GRID = (*WHOLE, "windows", "shifted windows")
_ALIKE = {"zero": 0.0, "uniform": 1.0}


def replace_heads(
    model: nn.Module,
    report: HeadReport,
    heads: Sequence[Head] | None = None,
    by: str | Mapping[Head, Arm] = "kernel",
    *,
    threshold: float = CONVOLUTIONAL,
    same_weights: bool = True,
    maps: Mapping[str, Tensor] | None = None,
    prefix: str = "mean",
) -> tuple[nn.Module, HeadReplacement]:
    """Copies a network and gives heads fixed weights in the place of their attention, without training.

    A head multiplies its values by weights; here the weights no longer depend on the image. `by` says which they are:

    - "kernel": the head's own mean weights by displacement K, over the positions that exist, y[q] = Σ_j π_j v[j] +
      (1 − Σ_j π_j) Σ_δ K(δ) v[q+δ] / Σ_δ K(δ), with π_j the mean share of the j-th prefix token: the head is a
      convolution. Where the layer's matrices are known it runs as one, without its queries, keys and softmax.
    - "turned_90", "turned_180", "turned_270": its kernel, turned clockwise; of a sequence "reversed".
    - "one_tap": all of K at the displacement that has most of its attention.
    - "mean_map": its mean weights for each pair of tokens, from `maps`.
    - "uniform": the same weight for each token that the head may see.
    - "zero": the head adds nothing.
    - a mapping from heads to one of these names, or to another head, whose kernel it takes: {("blocks.3.attn", 1):
      ("blocks.3.attn", 4)}. Shares of prefix tokens stay the head's own.

    Masks and windows hold: weight that they hide is shared out among the tokens left, and if no weight is left, the
    mean is 0. Kernels, "uniform" and "zero" hold for images of any size, in windows too; kernels on sparse grids and
    mean maps hold for the report's grid, and others raise ShapeError. So do prefix tokens' queries, which take their
    mean weights with a kernel, unless `prefix` is "attend". Kernels that run as convolutions are parameters, so that
    the network can be trained on.

    Args:
        model: The network; it is not changed.
        report: What `analyze` measured on it.
        heads: Pairs of a layer's name and a head's number. None takes those whose position score is at least
            `threshold`, and of which the report's radius holds 95 % of the attention.
        by: What replaces them.
        threshold: Least position score R², in (0, 1].
        same_weights: Whether to raise an error if the report was measured on other weights or other layers than the
            network has now. False is for weights that were cast since, or are loaded afterwards.
        maps: For "mean_map": what `mean_maps` returns for this network.
        prefix: What queries of prefix tokens do in heads with a kernel: take their "mean" weights, which holds for the
            report's grid, or "attend" as before, which holds for every grid.

    Returns:
        The network, with the dtype, device and mode of the old one (kernels in at least float32), and the record.

    Raises:
        ArgumentError: An argument is out of range, heads are not in the report or named twice, maps are missing, or the
            report is of another network or other weights.
        UnknownNameError: There is no such replacement, or no such `prefix`.
        UnsupportedModelError: A head that is named cannot be replaced so, or none of the report can; the message says
            why. Or a layer runs more than once on an image.

    Example:
        >>> import timm, torch
        >>> from convattn import analyze
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1).eval()
        >>> report = analyze(vit, torch.randn(4, 3, 48, 48), controls=(), progress=False)
        >>> without, record = replace_heads(vit, report, [("blocks.0.attn", 2)], "zero")
        >>> len(record.replaced), len(record.left), without(torch.zeros(1, 3, 48, 48)).shape
        (1, 2, torch.Size([1, 1000]))
    """
    require_network("model", model)
    if not isinstance(report, HeadReport):
        raise ArgumentError(must_be_a("report", "a HeadReport", report))
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not number or not 0 < threshold <= 1:
        raise ArgumentError(must_be("threshold", "a number in (0, 1]", threshold))
    require_name("prefix", prefix, ("mean", "attend"))
    changed = _require_of_model(report, model, same_weights=same_weights)
    arms = read_arms(report, heads, by)
    named = heads is not None or isinstance(by, Mapping)
    least = nan if named else float(threshold)
    network = copy_network(model)
    calls = CallStack({})
    attends = prefix == "attend"
    running: list[str] = []  # Layers that run as they are, but for the fixed heads
    new_layers: dict[nn.Module, nn.Module] = {}
    records: list[ReplacedHead] = []
    refused: list[str] = []
    for layer in report.layers:
        old = network.get_submodule(layer.name)
        of_layer, kernels, unfit = _choose(report, layer, old, arms, least)
        refused += unfit
        chosen = {head.head: arms[layer.name, head.head] for head in of_layer if head.by}
        placed = not {*chosen.values()} <= {*_ALIKE}
        matrices = _matrices(old, layer) if kernels and kernels.keys() == chosen.keys() else None
        if matrices is not None:
            measured = measured_heads(layer, kernels)
            attention = ConvolvedAttention(matrices, measured, layer, calls, attends=attends)
            new_layers[old] = TokenLayer(attention, matrices.config)
            box = attention.means.box
            of_layer = [replace(head, box=box) if head.by else head for head in of_layer]
        elif chosen:
            fixed, grid = _fixed(layer, chosen, kernels, maps or {}, attends=attends)
            masked = "uniform" in chosen.values() and layer.pattern not in WHOLE
            new_layers[old] = FixedAttention(
                layer, old, fixed, calls, placed=placed or masked, grid=grid, attends=attends
            )
            running.append(layer.name)
        if placed and layer.pattern in WHOLE and len(layer.grid) > 1 and not layer.grid_source:
            guard = partial(require_pixels, report.image_shape[1:])
            network.register_forward_pre_hook(guard, with_kwargs=True)
        records += of_layer
    if refused and (named or not new_layers):
        listed = "\n".join(refused)
        raise UnsupportedModelError(f"cannot replace heads of {type(model).__name__}:\n{listed}")
    _keep_modes(new_layers)
    network = graft(network, new_layers)
    calls.follow(network, with_parents(running))
    soft = {*running, *(head.layer for head in records if not head.by)}
    if attends:
        soft |= {layer.name for layer in report.layers if layer.prefix}
    hard = [layer.name for layer in report.layers if layer.name not in soft]
    return network, HeadReplacement(
        model=type(model).__name__,
        threshold=least,
        heads=tuple(records),
        layers_without_softmax=tuple(hard),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        parameters_before=sum(parameter.numel() for parameter in model.parameters()),
        not_covered=(*_NOT_COVERED, *changed),
    )


def _choose(
    report: HeadReport,
    layer: LayerReport,
    old: nn.Module,
    arms: Mapping[Head, Arm],
    threshold: float,
) -> tuple[list[ReplacedHead], dict[int, tuple[float, ...]], list[str]]:
    """Returns which heads of a layer are replaced, by which kernels, and why others cannot be.

    A threshold of nan takes all.
    """
    records: list[ReplacedHead] = []
    kernels: dict[int, tuple[float, ...]] = {}
    refused: list[str] = []
    for head in layer.heads:
        number = head.head
        arm = arms.get((layer.name, number), "")
        kernel = None
        reason = "it was not named"
        if arm:
            try:
                require_known(old)
                kernel = kernel_by(report, layer, number, arm)
                reason = below(head, threshold)
            except UnsupportedModelError as error:
                reason = str(error)
                refused.append(f"  {layer.name}, head {number}: {reason}")
        by = "" if reason else arm
        if by and kernel is not None:
            kernels[number] = kernel
        if not isinstance(by, str):
            by = f"kernel of {by[0]} head {by[1]}"
        score = head.position_score.value
        records.append(ReplacedHead(layer.name, number, score, by, reason))
    return records, kernels, refused


def _matrices(old: nn.Module, layer: LayerReport) -> TokenAttention | None:
    """Copies the matrices of a layer, in which heads then run as convolutions; None if it runs as it is."""
    if layer.pattern not in WHOLE:
        return None
    try:
        matrices = read_matrices(old)
    except UnsupportedModelError:
        return None
    if matrices.heads != len(layer.heads):
        raise ArgumentError(
            f"report must be of this network, but {layer.name} has {matrices.heads} heads"
        )
    return matrices


def _fixed(
    layer: LayerReport,
    arms: Mapping[int, Arm],
    kernels: Mapping[int, tuple[float, ...]],
    maps: Mapping[str, Tensor],
    *,
    attends: bool,
) -> tuple[list[FixedHeads], tuple[int, ...] | None]:
    """Makes the weights of the heads of a layer, by what replaces them, and the only grid that they are for, if any."""
    fixed: list[FixedHeads] = []
    grid = None
    if kernels:
        fixed.append(measured_heads(layer, kernels, whole=True))
        if layer.pattern not in _ANY_GRID or (layer.prefix and not attends):
            grid = layer.grid
    for head, arm in arms.items():
        if arm == "mean_map":
            found = maps.get(layer.name, torch.empty(0))
            fits = found.ndim == 4 and found.shape[1] == len(layer.heads)
            if fits and layer.pattern in WHOLE:
                fits = found.shape[2] == found.shape[3] == layer.prefix + prod(layer.grid)
            if not fits:
                raise ArgumentError(
                    f"maps must hold those of the {len(layer.heads)} heads of {layer.name} for 'mean_map', as"
                    " mean_maps(model, images) returns them for images of the report's size"
                )
            fixed.append(MappedHeads((head,), found[:, [head]]))
            grid = layer.grid
        elif arm in _ALIKE:
            alike = torch.full((1, 1, 1, 1), _ALIKE[arm])
            fixed.append(MappedHeads((head,), alike))
    return fixed, grid


def _keep_modes(new_layers: Mapping[nn.Module, nn.Module]) -> None:
    """Gives new modules the mode of the old ones, in training or not; parts that they took over keep theirs."""
    for old, new in new_layers.items():
        taken = set(old.modules())
        for part in new.modules():
            if part not in taken:
                part.training = old.training


def _require_of_model(report: HeadReport, model: nn.Module, *, same_weights: bool) -> list[str]:
    """Raises an error if a layer of the report is not in the network, of another class, or runs more than once.

    Says if the network's weights are not those measured, which raises with `same_weights`.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if not report.layers:
        raise ArgumentError("report must have layers, but has none")
    for layer in report.layers:
        once, again, _ = layer.name.partition(AGAIN)
        if again and once in modules:
            raise UnsupportedModelError(
                f"{once} runs more than once on an image, and its heads cannot be replaced"
            )
        for name in (layer.name, layer.grid_source):
            if name not in modules:
                raise ArgumentError(
                    f"report must be of this network, but this one has no layer {name!r}"
                )
        kind = full_name(type(modules[layer.name]))
        if kind != layer.kind:
            expected = f"of this network, where {layer.name} is a {kind}"
            raise ArgumentError(must_be("report", expected, layer.kind))
    layers = report.changed_in(model)
    if not layers:
        return []
    if same_weights:
        raise ArgumentError(
            f"report must be measured with the weights that this {type(model).__name__} has now, but was measured with"
            f" others ({layers}). Measure it again; same_weights=False is for weights that were cast, or are loaded"
            " afterwards"
        )
    return [f"weights that the report was not measured with: {layers}"]
