"""Replaces heads that a report calls convolutions by convolutions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from convattn.convert.surgery import (
    copy_network,
    full_name,
    graft,
    keep_modes,
)
from convattn.errors import (
    ArgumentError,
    UnsupportedModelError,
    must_be,
    must_be_a,
)
from convattn.heads.catalogue import is_own, read_matrices
from convattn.heads.convolved_attention import ConvolvedAttention
from convattn.heads.families.attention_class import TokenAttention
from convattn.heads.head_report import HeadReport, LayerReport
from convattn.heads.patch_grid import fix_grid
from convattn.heads.replaceable_heads import (
    check_heads,
    measured_heads,
    why_not_head,
    why_not_layer,
)
from convattn.heads.verdict import CONVOLUTIONAL
from convattn.record import Record
from convattn.sealed import weights_digest
from convattn.wording import counted, some


@dataclass(frozen=True)
class ReplacedHead:
    """One head of a network, and whether it was replaced."""

    layer: str  # Dotted name of the layer
    head: int  # Number in the layer, from 0
    score: float  # Position score R² in the report
    replaced: bool  # Whether it averages by displacement now
    box: tuple[int, ...]  # Taps along each axis of the kernel that it runs in; empty if it was left
    reason: str  # Why it was replaced or left


@dataclass(frozen=True)
class HeadReplacement(Record):
    """What `replace_convolutional_heads` has made of a network.

    Example:
        >>> import timm
        >>> from convattn import analyze, replace_convolutional_heads
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1).eval()
        >>> report = analyze(vit, torch.randn(4, 3, 48, 48), controls=(), progress=False)
        >>> _, record = replace_convolutional_heads(vit, report, heads=[("blocks.0.attn", 2)])
        >>> [head.head for head in record.replaced], [head.head for head in record.left]
        ([2], [0, 1])
    """

    schema_version: ClassVar[int] = 3

    model: str  # Class of the network
    threshold: float  # Position score from which heads were replaced; nan if they were named
    heads: tuple[ReplacedHead, ...]  # All heads of the report
    layers_without_softmax: tuple[
        str, ...
    ]  # Layers with all heads replaced; they hold no query, key and softmax
    parameters: int  # Number of parameters now
    parameters_before: int  # Number of parameters before
    not_covered: tuple[str, ...] = ()  # What this says nothing about

    @property
    def replaced(self) -> tuple[ReplacedHead, ...]:
        """The heads that were replaced."""
        return tuple(head for head in self.heads if head.replaced)

    @property
    def left(self) -> tuple[ReplacedHead, ...]:
        """The heads that were left as they are."""
        return tuple(head for head in self.heads if not head.replaced)

    def summary(self) -> str:
        """Returns the record in a few lines of plain text."""
        chosen = (
            "named by the caller"
            if self.threshold != self.threshold
            else f"R² ≥ {self.threshold:g}"
        )
        without = counted(len(self.layers_without_softmax), "layer")
        lines = [
            f"head replacement: {len(self.replaced)} of {counted(len(self.heads), 'head')} of {self.model} ({chosen})",
            f"  softmax         none left in {without}",
            f"  parameters      {self.parameters_before:,} before, {self.parameters:,} now",
        ]
        reasons = {head.reason for head in self.left}
        for reason in sorted(reasons):
            count = sum(head.reason == reason for head in self.left)
            lines.append(f"  left            {counted(count, 'head')}: {reason}")
        lines += [f"  not covered     {item}" for item in self.not_covered]
        return "\n".join(lines)


_NOT_COVERED = (
    "images unlike those of the report: kernels and shares are means over its images",
    "dropout of attention weights in training: heads that average have none",
)


def replace_convolutional_heads(
    model: nn.Module,
    report: HeadReport,
    threshold: float = CONVOLUTIONAL,
    *,
    heads: Sequence[tuple[str, int]] | None = None,
    same_weights: bool = True,
) -> tuple[nn.Module, HeadReplacement]:
    """Copies a network and lets the heads that are convolutions run as convolutions, without training.

    A head is one if its position score in the report is at least `threshold`. It then averages its values under the
    report's mean kernel K_h, over the positions that exist: y[q] = Σ_j π_j v[j] + (1 − Σ_j π_j) Σ_δ K_h(δ) v[q+δ] /
    Σ_δ K_h(δ), with π_j the mean share of the j-th prefix token. A prefix token's own query takes its mean weights.
    Other heads attend as before, with their rows of the queries and keys; a layer of which all heads are replaced holds
    no query, key and softmax. Kernels and shares are parameters, so that the network can be trained on.

    Args:
        model: timm's or transformers' ViT, torchvision's, timm's ConViT, or transformers' BERT; it is not changed.
        report: What `analyze` measured on this network.
        threshold: Least position score R², in (0, 1].
        heads: Pairs of a layer's name and a head's number: replace these, whatever their score.
        same_weights: Whether to raise an error if the report was measured with other weights than the network has now.
            False is for weights that were cast since, or are loaded afterwards.

    Returns:
        The network, with the dtype, device and mode of the old one (kernels in at least float32), and the record.

    Raises:
        ArgumentError: An argument is out of range, or the report is of another network or other weights.
        UnsupportedModelError: No layer of the report can be read; the message says why for each. Or a layer runs more
            than once on an image.

    Example:
        >>> import timm, torch
        >>> from convattn import analyze
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1).eval()
        >>> report = analyze(vit, torch.randn(4, 3, 48, 48), controls=(), progress=False)
        >>> made, record = replace_convolutional_heads(vit, report, heads=[("blocks.0.attn", 2)])
        >>> len(record.replaced), len(record.left), made(torch.zeros(1, 3, 48, 48)).shape
        (1, 2, torch.Size([1, 1000]))
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(must_be_a("model", "a network (torch.nn.Module)", model))
    if not isinstance(report, HeadReport):
        raise ArgumentError(must_be_a("report", "a HeadReport", report))
    if (
        isinstance(threshold, bool)
        or not isinstance(threshold, int | float)
        or not 0 < threshold <= 1
    ):
        raise ArgumentError(must_be("threshold", "a number in (0, 1]", threshold))
    named = None if heads is None else check_heads(report, heads)
    _require_of_model(report, model)
    limits = (*_NOT_COVERED, *_weights_limit(report, model, same_weights=same_weights))
    made = copy_network(model)
    new_layers: dict[nn.Module, nn.Module] = {}
    records: list[ReplacedHead] = []
    refused: list[str] = []
    for layer in report.layers:
        reasons = _reasons(layer, float(threshold), named)
        wanted = [head for head, reason in enumerate(reasons) if reason is None]
        old = made.get_submodule(layer.name)
        boxes: dict[int, tuple[int, ...]] = {}
        try:
            matrices = _read_layer(old, layer)
            if wanted:
                groups = measured_heads(layer, wanted)
                grid = None if layer.pattern == "sequence" and not layer.prefix else layer.grid
                new_layers[old] = keep_modes(
                    old, matrices.wrap(ConvolvedAttention(matrices, groups, grid))
                )
                if len(layer.grid) == 2:
                    fix_grid(made, layer.name, layer.grid)
                boxes = {
                    head: tuple(group.kernel.shape[1:]) for group in groups for head in group.heads
                }
        except UnsupportedModelError as error:
            refused.append(f"{layer.name} ({type(old).__name__}): {error}")
            reasons = [str(error)] * len(layer.heads)
        for head, reason in zip(layer.heads, reasons, strict=True):
            score, box = head.position_score.value, boxes.get(head.head, ())
            why = "it is a convolution" if reason is None else reason
            records.append(ReplacedHead(layer.name, head.head, score, reason is None, box, why))
    if len(refused) == len(report.layers):
        listed = "\n".join(f"  {reason}" for reason in refused)
        raise UnsupportedModelError(f"cannot replace heads of {type(model).__name__}:\n{listed}")
    made = graft(made, new_layers)
    changed = list(dict.fromkeys(head.layer for head in records if head.replaced))
    with_softmax = {head.layer for head in records if not head.replaced}
    return made, HeadReplacement(
        model=type(model).__name__,
        threshold=float(threshold) if named is None else math.nan,
        heads=tuple(records),
        layers_without_softmax=tuple(name for name in changed if name not in with_softmax),
        parameters=sum(parameter.numel() for parameter in made.parameters()),
        parameters_before=sum(parameter.numel() for parameter in model.parameters()),
        not_covered=limits,
    )


def _reasons(
    layer: LayerReport, threshold: float, named: frozenset[tuple[str, int]] | None
) -> list[str | None]:
    """Returns for each head of a layer why it is left; None for those that are replaced."""
    whole = why_not_layer(layer)
    reasons = []
    for head in layer.heads:
        if named is not None and (layer.name, head.head) not in named:
            reasons.append("it was not named")
        else:
            reasons.append(whole or why_not_head(layer, head, threshold if named is None else None))
    return reasons


def _require_of_model(report: HeadReport, model: nn.Module) -> None:
    """Raises an error if a layer of the report is not in the network, of another class, or runs more than once."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if not report.layers:
        raise ArgumentError("report must have layers, but has none")
    for layer in report.layers:
        once, runs, _ = layer.name.partition(" (call ")
        if runs and once in modules:
            raise UnsupportedModelError(
                f"{once} runs more than once on an image, and its heads cannot be replaced"
            )
        if layer.name not in modules:
            raise ArgumentError(
                f"report must be of this network, but this one has no layer {layer.name!r}"
            )
        kind = full_name(type(modules[layer.name]))
        if kind != layer.kind:
            raise ArgumentError(
                must_be("report", f"of this network, where {layer.name} is a {kind}", layer.kind)
            )
    listed = [layer.name for layer in report.layers]
    if len(set(listed)) != len(listed):
        raise ArgumentError("report must name each layer once")


def _weights_limit(report: HeadReport, model: nn.Module, *, same_weights: bool) -> list[str]:
    """Says if the weights of the network are not known to be those measured; with `same_weights`, others raise."""
    modules = dict(model.named_modules(remove_duplicate=False))
    digests = {name: weights_digest(modules[name]) for name in report.weights if name in modules}
    other = [name for name, digest in digests.items() if digest != report.weights[name]]
    if not other:
        return []
    layers = some([name for name in other if name]) or "other layers than those measured"
    if same_weights:
        raise ArgumentError(
            f"report must be measured with the weights that this {type(model).__name__} has now, but was measured with"
            f" others ({layers}). Measure it again; same_weights=False is for weights that were cast, or are loaded"
            " afterwards"
        )
    return [f"weights that the report was not measured with: {layers}"]


def _read_layer(old: nn.Module, layer: LayerReport) -> TokenAttention:
    """Copies the matrices of a layer, or raises UnsupportedModelError with the reason alone."""
    if is_own(old):
        content = "heads of this library's layers with content are not replaced"
        position = "it has no content: attention_to_conv makes a convolution of it"
        raise UnsupportedModelError(position if old.content is None else content)
    matrices = read_matrices(old)
    if matrices.heads != len(layer.heads):
        raise ArgumentError(
            f"report must be of this network, but {layer.name} has {matrices.heads} heads"
        )
    return matrices
