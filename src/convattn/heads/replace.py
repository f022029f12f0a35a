"""Replaces heads that a report calls convolutions by convolutions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan, prod

import torch
from torch import nn

from convattn.convert.foreign_check import certify
from convattn.convert.network_runs import copy_network
from convattn.convert.surgery import graft
from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a
from convattn.heads.catalogue import attention_class, is_own, read_matrices
from convattn.heads.convolved_attention import ConvolvedAttention, MeasuredHeads
from convattn.heads.families.attention_class import TokenAttention
from convattn.heads.head_report import AGAIN, HeadReport, LayerReport, weight_digests
from convattn.heads.patch_grid import fix_grid
from convattn.heads.replaceable_heads import check_heads, measured_heads, why_not
from convattn.heads.verdict import CONVOLUTIONAL
from convattn.random_numbers import standard_normal
from convattn.record import Record
from convattn.structure import full_name
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
        >>> import timm, torch
        >>> from convattn import analyze, replace_convolutional_heads
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1).eval()
        >>> report = analyze(vit, torch.randn(4, 3, 48, 48), controls=(), progress=False)
        >>> _, record = replace_convolutional_heads(vit, report, heads=[("blocks.0.attn", 2)])
        >>> [head.head for head in record.replaced], [head.head for head in record.left]
        ([2], [0, 1])
    """

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
        rule = f"R² ≥ {self.threshold:g}"
        if isnan(self.threshold):
            rule = "named by the caller"
        layers = {head.layer for head in self.heads}
        with_softmax = len(layers) - len(self.layers_without_softmax)
        every = counted(len(self.heads), "head")
        left = f"{len(self.left)} of {every}"
        lines = [
            f"head replacement: {len(self.replaced)} of {every} of {self.model} ({rule})",
            f"  softmax         left in {with_softmax} of {counted(len(layers), 'layer')}, for {left}",
            f"  parameters      {self.parameters_before:,} before, {self.parameters:,} now",
        ]
        reasons = Counter(head.reason for head in self.left)
        for reason, count in sorted(reasons.items()):
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
    no query, key and softmax. Kernels and shares are parameters, so that the network can be trained on. It takes images
    that it cuts into the grid of the report; for others the convolution that cuts them raises ShapeError.

    Args:
        model: timm's or transformers' ViT, torchvision's, timm's ConViT, or transformers' BERT; it is not changed.
        report: What `analyze` measured on this network.
        threshold: Least position score R², in (0, 1].
        heads: Pairs of a layer's name and a head's number: replace these, whatever their score.
        same_weights: Whether to raise an error if the report was measured on other weights or other layers than the
            network has now. False is for weights that were cast since, or are loaded afterwards.

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
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not number or not 0 < threshold <= 1:
        raise ArgumentError(must_be("threshold", "a number in (0, 1]", threshold))
    _require_of_model(report, model)
    named = None if heads is None else check_heads(report, heads)
    other_weights = _other_weights(report, model, same_weights=same_weights)
    network = copy_network(model)
    unchanged: dict[str, nn.Module] = {}
    new_layers: dict[nn.Module, nn.Module] = {}
    records: list[ReplacedHead] = []
    refused: list[str] = []
    for layer in report.layers:
        old = network.get_submodule(layer.name)
        try:
            matrices = _read_layer(old, layer)
        except UnsupportedModelError as error:
            refused.append(f"  {layer.name} ({type(old).__name__}): {error}")
            records += _records(layer, [str(error)] * len(layer.heads), ())
            continue
        reasons = why_not(layer, threshold, named)
        box: tuple[int, ...] = ()
        replaced = [head for head, reason in enumerate(reasons) if reason is None]
        if replaced:
            measured = measured_heads(layer, replaced)
            box = tuple(measured.kernel.shape[1:])
            any_length = layer.pattern == "sequence" and not layer.prefix
            grid = None if any_length else layer.grid
            attention = ConvolvedAttention(matrices, measured, grid)
            known = attention_class(old)
            if known is not None and known.foreign:
                unchanged[layer.name] = _with_no_head_replaced(layer, matrices)
            new_layers[old] = _keep_modes(old, matrices.wrap(attention))
            if len(layer.grid) > 1:
                fix_grid(network, layer, report.image_shape)
        records += _records(layer, reasons, box)
    if len(refused) == len(report.layers):
        listed = "\n".join(refused)
        raise UnsupportedModelError(f"cannot replace heads of {type(model).__name__}:\n{listed}")
    if unchanged:
        _require_same(model, unchanged, report.image_shape)
    network = graft(network, new_layers)
    with_softmax = {head.layer for head in records if not head.replaced}
    without_softmax = [layer.name for layer in report.layers if layer.name not in with_softmax]
    return network, HeadReplacement(
        model=type(model).__name__,
        threshold=float(threshold) if named is None else nan,
        heads=tuple(records),
        layers_without_softmax=tuple(without_softmax),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        parameters_before=sum(parameter.numel() for parameter in model.parameters()),
        not_covered=(*_NOT_COVERED, *other_weights),
    )


def _keep_modes(old: nn.Module, new: nn.Module) -> nn.Module:
    """Gives a new module the mode of the old one, in training or not; parts taken over from the old one keep theirs."""
    taken = set(old.modules())
    for part in new.modules():
        if part not in taken:
            part.training = old.training
    return new


def _records(
    layer: LayerReport, reasons: Sequence[str | None], box: tuple[int, ...]
) -> list[ReplacedHead]:
    """Records the heads of a layer; `reasons` say why they are left, None for those that run in the box."""
    records = []
    for head, reason in zip(layer.heads, reasons, strict=True):
        replaced = reason is None
        records.append(
            ReplacedHead(
                layer=layer.name,
                head=head.head,
                score=head.position_score.value,
                replaced=replaced,
                box=box if replaced else (),
                reason=reason or "it is a convolution",
            )
        )
    return records


def _require_of_model(report: HeadReport, model: nn.Module) -> None:
    """Raises an error if a layer of the report is not in the network, of another class, or runs more than once."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if not report.layers:
        raise ArgumentError("report must have layers, but has none")
    names = [layer.name for layer in report.layers]
    if len(set(names)) != len(names):
        raise ArgumentError("report must name each layer once")
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


def _other_weights(report: HeadReport, model: nn.Module, *, same_weights: bool) -> list[str]:
    """Says if the network's weights are not those measured; with `same_weights` this raises."""
    digests = weight_digests(model, report.weights)
    changed = [name for name, digest in digests.items() if digest != report.weights[name]]
    if not changed:
        return []
    layers = some([name for name in changed if name]) or "other layers than those measured"
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
        raise UnsupportedModelError(
            "heads of this library's layers are not replaced; attention_to_conv converts those without content"
        )
    matrices = read_matrices(old)
    if matrices.heads != len(layer.heads):
        raise ArgumentError(
            f"report must be of this network, but {layer.name} has {matrices.heads} heads"
        )
    return matrices


def _with_no_head_replaced(layer: LayerReport, matrices: TokenAttention) -> nn.Module:
    """Makes a layer that attends by its matrices."""
    none = MeasuredHeads(
        heads=(),
        kernel=torch.zeros(0, *(1 for _ in layer.grid)),
        first=(0,) * len(layer.grid),
        prefix_shares=torch.zeros(0, layer.prefix),
        prefix_maps=torch.zeros(0, layer.prefix, layer.prefix + prod(layer.grid)),
    )
    return matrices.wrap(ConvolvedAttention(matrices, none, layer.grid))


def _require_same(
    model: nn.Module, layers: Mapping[str, nn.Module], sizes: tuple[int, ...]
) -> None:
    """Raises UnsupportedModelError unless layers of matrices that a user gave compute what those of the model do."""
    copied = copy_network(model)
    new_layers = {copied.get_submodule(name): layer for name, layer in layers.items()}
    images = standard_normal((2, *sizes)).to(next(model.parameters()))
    if len(sizes) == 1:
        images = torch.zeros(2, *sizes, dtype=torch.long, device=images.device)  # token ids
    certificate = certify(model, graft(copied, new_layers), images)
    if certificate.verdict != "exact":
        raise UnsupportedModelError(
            "`matrices` of register_attention must compute what the layers do, but with no head replaced:\n"
            f"{certificate.summary()}"
        )
