"""Replaces heads that a report calls convolutions by convolutions."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from convattn.adapters.replacement.attention import ConvolvedAttention
from convattn.adapters.replacement.bound import bind_to_grid
from convattn.adapters.replacement.choice import check_heads, check_threshold, why_not_head, why_not_layer
from convattn.adapters.replacement.consistent import require_consistent_head, require_consistent_layer
from convattn.adapters.replacement.measured import MeasuredHeads, measured_heads
from convattn.adapters.replacement.own import OWN, ConvolvedImages, require_replaceable
from convattn.adapters.replacement.readers import read_attention
from convattn.adapters.replacement.refit import refit_outputs
from convattn.adapters.replacement.trial import compare_on_images
from convattn.convert.classes import full_name
from convattn.convert.copies import copy_network
from convattn.convert.fit.layer import require_batch
from convattn.convert.network.modules import graft, keep_modes
from convattn.convert.network.running import read_arguments
from convattn.errors import ArgumentError, UnsupportedModelError, must_be, must_be_a
from convattn.records import HeadReplacement, HeadReport, ReplacedHead
from convattn.records.head_report import CONVOLUTIONAL, LayerReport
from convattn.records.words import some
from convattn.sealed import weights_digest

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
    refit: Tensor | None = None,
    images: Tensor | tuple[Any, ...] | Mapping[str, Any] | None = None,
    same_weights: bool = True,
) -> tuple[nn.Module, HeadReplacement]:
    """Copies a network and lets the heads that are convolutions run as convolutions, without training.

    A head is one if its position score in the report is at least `threshold`. It then averages its values under the
    report's mean kernel K_h, over the positions that exist: y[q] = Σ_j π_j v[j] + (1 − Σ_j π_j) Σ_δ K_h(δ) v[q+δ] /
    Σ_δ K_h(δ), with π_j the mean share of the j-th prefix token. A prefix token's own query takes its mean weights.
    Other heads attend as before, with their rows of the queries and keys; a layer of which all heads are replaced holds
    no query, key and softmax. Kernels and shares are parameters, so that the network can be trained on.

    Args:
        model: timm's or transformers' ViT, torchvision's, timm's ConViT, transformers' BERT, or a network of this
            library with content, of which whole layers are replaced; it is not changed.
        report: What `analyze` measured on this network.
        threshold: Least position score R², in (0, 1].
        heads: Pairs of a layer's name and a head's number: replace these, whatever their score.
        refit: Some hundred images, without labels, on which the output matrix of each layer with replaced heads is then
            fitted by least squares to the layer as it was; one of five is held out, and a fit that does not help there
            is undone. None keeps the output matrices. Not of BERT and of this library's layers.
        images: Held-out images, or arguments in a tuple or a mapping, on which both networks are compared and timed.
        same_weights: Whether to raise an error if the report was measured with other weights than the network has now.
            False is for weights that were cast since, or are loaded afterwards.

    Returns:
        The network, with the dtype, device and mode of the old one (kernels in at least float32), and the record.

    Raises:
        ArgumentError: An argument is out of range, the report is of another network or other weights, or contradicts
            itself, or none of the layers can be refitted.
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
    least = check_threshold(threshold)
    named = None if heads is None else check_heads(report, heads)
    given = None if images is None else read_arguments(model, images)
    if refit is not None:
        require_batch("refit", refit)
    _require_of_model(report, model)
    limits = [*_NOT_COVERED, *_of_other_weights(report, model, same_weights=same_weights)]
    made = copy_network(model)
    replaced: dict[nn.Module, nn.Module] = {}
    found: list[ReplacedHead] = []
    refused: list[str] = []
    bare: list[str] = []
    for layer in report.layers:
        if why_not_layer(layer) is None:
            require_consistent_layer(report, layer)
        choice = _choose(layer, None if named is not None else least, named)
        wanted = [head for head, reason in enumerate(choice) if reason is None]
        old = made.get_submodule(layer.name)
        boxes: dict[int, tuple[int, ...]] = {}
        try:
            rebuild = _rebuilder(old, layer, len(wanted))
            if wanted:
                for head in wanted:
                    require_consistent_head(layer, layer.heads[head])
                groups = measured_heads(layer, wanted)
                replaced[old] = keep_modes(old, rebuild(groups))
                if len(layer.grid) == 2 and not isinstance(old, OWN):
                    bind_to_grid(made, layer.name, layer.grid)
                boxes = {head: tuple(group.kernel.shape[1:]) for group in groups for head in group.heads}
                bare += [layer.name] * (len(wanted) == len(layer.heads))
        except UnsupportedModelError as error:
            refused.append(f"{layer.name} ({type(old).__name__}): {error}")
            choice = [str(error)] * len(layer.heads)
        found += [_told(layer, head, reason, boxes) for head, reason in enumerate(choice)]
    if len(refused) == len(report.layers):
        listed = "\n".join(f"  {reason}" for reason in refused)
        raise UnsupportedModelError(f"cannot replace heads of {type(model).__name__}:\n{listed}")
    made = graft(made, replaced)
    changed = list(dict.fromkeys(head.layer for head in found if head.replaced))
    refinement = None if refit is None or not changed else refit_outputs(model, made, changed, refit)
    return made, HeadReplacement(
        model=type(model).__name__,
        threshold=least if named is None else math.nan,
        heads=tuple(found),
        layers_without_softmax=tuple(bare),
        parameters=_count(made),
        parameters_before=_count(model),
        refinement=refinement,
        trial=None if given is None else compare_on_images(model, made, given),
        not_covered=tuple(limits),
    )


def _require_of_model(report: HeadReport, model: nn.Module) -> None:
    """Raises an error if a layer of the report is not in the network, of another class, or runs more than once."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if not report.layers:
        raise ArgumentError("report must have layers, but has none")
    for layer in report.layers:
        once, runs, _ = layer.name.partition(" (call ")
        if runs and once in modules:
            raise UnsupportedModelError(f"{once} runs more than once on an image, and its heads cannot be replaced")
        if layer.name not in modules:
            raise ArgumentError(f"report must be of this network, but this one has no layer {layer.name!r}")
        kind = full_name(type(modules[layer.name]))
        if kind != layer.kind:
            raise ArgumentError(must_be("report", f"of this network, where {layer.name} is a {kind}", layer.kind))
    listed = [layer.name for layer in report.layers]
    if len(set(listed)) != len(listed):
        raise ArgumentError("report must name each layer once")


def _of_other_weights(report: HeadReport, model: nn.Module, *, same_weights: bool) -> list[str]:
    """Says if the weights of the network are not known to be those measured; with `same_weights`, others raise."""
    if report.weights is None:
        return ["whether the report was measured with these weights: it holds no digest of them"]
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


def _rebuilder(old: nn.Module, layer: LayerReport, replaced: int) -> Callable[[Sequence[MeasuredHeads]], nn.Module]:
    """Returns what makes a layer anew with some heads replaced, or raises UnsupportedModelError with the reason."""
    if isinstance(old, OWN):
        heads, made = old.num_heads, partial(ConvolvedImages, old)
        require_replaceable(old, replaced)
    else:
        read = read_attention(old)
        grid = None if layer.pattern == "sequence" and not layer.prefix else layer.grid
        heads, made = read.heads, lambda groups: read.wrap(ConvolvedAttention(read, groups, grid))
    if heads != len(layer.heads):
        raise ArgumentError(f"report must be of this network, but {layer.name} has {heads} heads")
    return made


def _choose(layer: LayerReport, threshold: float | None, named: frozenset[tuple[str, int]] | None) -> list[str | None]:
    """Returns for each head of a layer why it is left, or None."""
    whole = why_not_layer(layer)
    reasons = []
    for head in layer.heads:
        if named is not None and (layer.name, head.head) not in named:
            reasons.append("it was not named")
        else:
            reasons.append(whole or why_not_head(layer, head, threshold))
    return reasons


def _told(layer: LayerReport, head: int, reason: str | None, boxes: Mapping[int, tuple[int, ...]]) -> ReplacedHead:
    score = layer.heads[head].position_score.value
    box = boxes.get(head, ())
    why = "it is a convolution" if reason is None else reason
    return ReplacedHead(layer.name, head, score, reason is None, box, why)


def _count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
