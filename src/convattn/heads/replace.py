"""Replaces heads that a report calls convolutions by convolutions."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, final

import torch
from torch import Tensor, nn

from convattn.convert.certificate import LeftAlone
from convattn.convert.fit import Fitted, Refinement, fit_layers, require_batch
from convattn.convert.surgery import (
    Arguments,
    copy_module,
    copy_network,
    full_name,
    graft,
    keep_modes,
    read_arguments,
    run,
)
from convattn.errors import (
    ArgumentError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
    must_be,
    must_be_a,
    must_fit,
)
from convattn.heads.convolved_attention import (
    OWN,
    ConvolvedAttention,
    ConvolvedImages,
    read_attention,
    require_replaceable,
)
from convattn.heads.foreign_vits import rows_and_cols_of_timm, rows_and_cols_of_transformers
from convattn.heads.head_replacement import HeadReplacement, ReplacedHead, ReplacementTrial
from convattn.heads.head_report import CONVOLUTIONAL, HeadReport, HeadStatistics, LayerReport
from convattn.heads.kernel_means import MeasuredHeads, measured_heads
from convattn.sealed import weights_digest
from convattn.wording import some

LEAST_SHARE = 0.95
"""Share of its attention on positions that a head's kernel must hold, or the report's radius is too small."""

_PATTERNS = ("global", "sequence")


def check_threshold(threshold: object) -> float:
    """Returns the threshold, or raises ArgumentError if it is not a number in (0, 1]."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise ArgumentError(must_be("threshold", "a number in (0, 1]", threshold))
    return float(threshold)


def check_heads(report: HeadReport, heads: object) -> frozenset[tuple[str, int]]:
    """Returns the heads that the caller names, or raises if they are not pairs of a layer's name and a number."""
    if isinstance(heads, str) or not isinstance(heads, Sequence | set | frozenset):
        raise ArgumentError(must_be_a("heads", "pairs of a layer's name and the number of a head", heads))
    known = {layer.name: len(layer.heads) for layer in report.layers}
    for item in heads:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
            raise ArgumentError(must_be("heads", "pairs of a layer's name and the number of a head", item))
        name, number = item
        if name not in known:
            raise UnknownNameError("layer", name, known)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < known[name]:
            raise ArgumentError(must_be("heads", f"numbers from 0 to {known[name] - 1} in {name}", number))
    return frozenset((name, int(number)) for name, number in heads)


def why_not_layer(layer: LayerReport) -> str | None:
    """Returns why none of a layer's heads can be replaced; None if they can."""
    if layer.pattern not in _PATTERNS:
        return f"its layer attends in a pattern ({layer.pattern}) whose borders are not those of the grid"
    return None if layer.normalised else "its layer's weights do not sum to one"


def why_not_head(layer: LayerReport, head: HeadStatistics, threshold: float | None) -> str | None:
    """Returns why a head is left; None if it is replaced. `threshold` is None for heads that the caller names."""
    unusable = _why_unusable(layer, head.position_kernel)
    if unusable is not None or threshold is None:
        return unusable
    score = head.position_score.value
    if math.isnan(score):
        return "its position score is not known: its weights do not vary, or it was measured on one image"
    if score < threshold:
        return "its position score is below the threshold"
    if not head.kernel_share.value >= LEAST_SHARE:
        return f"the report's radius holds less than {LEAST_SHARE:.0%} of its attention"
    return None


def _why_unusable(layer: LayerReport, kernel: Sequence[float]) -> str | None:
    """Returns why a kernel cannot be run; None if it can."""
    if len(kernel) != len(layer.displacements) or not math.isfinite(sum(kernel)) or min(kernel, default=-1) < 0:
        return "the report holds no kernel of weights for it"
    if sum(kernel) <= 0:
        return "its kernel holds no weight: all of its attention is on prefix tokens, or beyond the report's radius"
    if any(step != round(step) for shift in layer.displacements for step in shift):
        return "its keys lie between the positions"
    return None


def random_heads(report: HeadReport, count: int, *, seed: int = 0) -> tuple[tuple[str, int], ...]:
    """Draws heads of a report at random, as a control for `replace_convolutional_heads`.

    Args:
        report: The report.
        count: How many to draw.
        seed: Seed.

    Returns:
        Pairs of a layer's name and the number of a head, to be given as `heads`.

    Raises:
        ArgumentError: `count` is larger than the number of heads, or `report` is not a HeadReport.
    """
    if not isinstance(report, HeadReport):
        raise ArgumentError(must_be_a("report", "a HeadReport", report))
    every = [(layer.name, head.head) for layer in report.layers for head in layer.heads]
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(every):
        raise ArgumentError(must_be("count", f"from 0 to {len(every)}, the heads of the report", count))
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))[:count]
    return tuple(every[index] for index in sorted(order.tolist()))


_MOST = 1 + 2.0**-7
"""Most that shares may sum to: bfloat16 rounds shares of sum 1 to no more."""


def require_consistent_layer(report: HeadReport, layer: LayerReport) -> None:
    """Raises ArgumentError, which names layer and field, if grid, displacements or heads cannot be those of a layer."""
    if not layer.grid or min(layer.grid) < 1:
        raise _wrong(layer, "grid", "sizes of at least 1", layer.grid)
    if (layer.pattern == "sequence") > (len(layer.grid) == 1):
        raise _wrong(layer, "grid", "of one axis, as its pattern is a sequence", layer.grid)
    if layer.prefix < 0:
        raise _wrong(layer, "prefix", "at least 0", layer.prefix)
    numbers = [head.head for head in layer.heads]
    if numbers != list(range(len(numbers))):
        raise _wrong(layer, "heads", "numbered from 0 in their order", numbers)
    met = set()
    for shift in layer.displacements:
        if len(shift) != len(layer.grid):
            raise _wrong(layer, "displacements", f"along {len(layer.grid)} axes, as its grid", shift)
        if not all(abs(step) <= report.radius for step in shift):
            raise _wrong(layer, "displacements", f"within the report's radius of {report.radius}", shift)
        if shift in met:
            raise _wrong(layer, "displacements", "different from each other", shift)
        met.add(shift)


def require_consistent_head(layer: LayerReport, head: HeadStatistics) -> None:
    """Raises ArgumentError, which names layer, head and field, if a head's prefix tokens cannot be those of a layer."""
    shares, tokens = head.prefix_weights, layer.prefix + prod(layer.grid)
    if len(shares) != layer.prefix or not _are_weights(shares) or sum(shares) > _MOST:
        expectation = f"{layer.prefix} shares of sum at most 1, one for each prefix token"
        raise _wrong(layer, f"prefix_weights of head {head.head}", expectation, shares)
    field = f"prefix_maps of head {head.head}"
    if len(head.prefix_maps) != layer.prefix:
        raise _wrong(layer, field, f"{layer.prefix}, one for each prefix token", len(head.prefix_maps))
    for row in head.prefix_maps:
        if len(row) != tokens:
            raise _wrong(layer, field, f"of {tokens} weights, one for each token", len(row))
        if not _are_weights(row) or not 0 < sum(row) < math.inf:
            raise _wrong(layer, field, "weights of at least 0, not all of them 0", row)


def _are_weights(numbers: tuple[float, ...]) -> bool:
    return all(math.isfinite(number) and number >= 0 for number in numbers)


def _wrong(layer: LayerReport, field: str, expectation: str, value: object) -> ArgumentError:
    return ArgumentError("report must agree with itself, but " + must_be(f"{layer.name}: {field}", expectation, value))


def _rows_and_cols_of_torchvision(network: nn.Module, image: tuple[int, int]) -> tuple[int, int]:
    rows, cols = (size // int(network.patch_size) for size in image)  # type: ignore[call-overload, arg-type]
    return rows, cols


_CUTS: dict[str, Callable[[nn.Module, tuple[int, int]], tuple[int, int]]] = {
    "timm.layers.patch_embed.PatchEmbed": rows_and_cols_of_timm,
    "transformers.models.vit.modeling_vit.ViTPatchEmbeddings": rows_and_cols_of_transformers,
    "torchvision.models.vision_transformer.VisionTransformer": _rows_and_cols_of_torchvision,
}
"""Modules that are given an image and cut it into patches, by full name, with what tells rows and columns."""


@final
class MeasuredGrid:
    """Refuses images that are not cut into the rows and columns of the report, as a forward pre-hook.

    The tokens do not tell: 4 × 4 patches are as many as 2 × 8, but other ones lie beside each other.

    Attributes:
        sizes: Rows and columns of the report.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """Takes the grid of a layer's report."""
        self.sizes = sizes

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Reads the grid of an image, given to a module of `_CUTS`; another one than measured raises ShapeError."""
        if not arguments:
            return
        height, width = arguments[0].shape[-2:]
        found = _CUTS[full_name(type(module))](module, (int(height), int(width)))
        if found != self.sizes:
            grid, other = (" x ".join(map(str, sizes)) for sizes in (self.sizes, found))
            raise ShapeError(
                f"images must be cut into {grid} patches, on which the heads were measured, but these are cut into"
                f" {other}"
            )


def bind_to_grid(network: nn.Module, layer: str, sizes: tuple[int, ...]) -> None:
    """Lets the module that cuts the images of a layer refuse other grids, if one of `_CUTS` is found around the layer.

    It is found if the innermost module around the layer that holds any of `_CUTS` holds only one.
    """
    names = layer.split(".")
    for depth in reversed(range(len(names))):
        parts = network.get_submodule(".".join(names[:depth])).modules()
        found = [part for part in parts if full_name(type(part)) in _CUTS]
        if found:
            hooks = found[0]._forward_pre_hooks.values()
            known = any(isinstance(hook, MeasuredGrid) and hook.sizes == sizes for hook in hooks)
            if len(found) == 1 and not known:
                found[0].register_forward_pre_hook(MeasuredGrid(sizes))
            return


_BATCH = 64
"""Images that run at once."""

_ROUNDS = 7


def compare_on_images(before: nn.Module, after: nn.Module, given: Arguments) -> ReplacementTrial:
    """Runs both networks in evaluation mode; images that the first one does not take raise ArgumentError."""
    before, after = copy_module(before).eval(), copy_module(after).eval()
    batches = given.batches(_BATCH)
    try:
        old = [first_output(before, batch) for batch in batches]
    except Exception as error:  # a foreign network may fail in any way
        raise ArgumentError(must_fit(given.words, error)) from error
    new = [first_output(after, batch) for batch in batches]
    one, two = torch.cat(old).double(), torch.cat(new).double()
    size = one.square().mean().sqrt().item()
    change = (two - one).square().mean().sqrt().item()
    predicted = one.argmax(-1)
    times = _times(before, after, batches[0])
    count = len(old[0])
    return ReplacementTrial(
        images=len(one),
        outputs=one[0].numel(),
        largest_change=(two - one).abs().max().item(),
        relative_change=change / size if size else change,
        predictions=predicted.numel(),
        predictions_changed=int((predicted != two.argmax(-1)).sum()),
        milliseconds_before=1e3 * times[0] / count,
        milliseconds_after=1e3 * times[1] / count,
        rounds=_ROUNDS,
        batch=count,
        threads=torch.get_num_threads(),
    )


def first_output(network: nn.Module, batch: Arguments) -> Tensor:
    """Runs a network, and returns the first tensor of its output."""
    found = run(network, batch)
    if not found or not found[0].ndim:
        raise ArgumentError("the network must return a tensor with one row for each image")
    return found[0]


def _times(before: nn.Module, after: nn.Module, batch: Arguments) -> tuple[float, float]:
    """Returns the median seconds of a batch, the two networks in turn after one run to warm up."""
    taken: dict[nn.Module, list[float]] = {before: [], after: []}
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            for network, seconds in taken.items():
                arguments = batch.copied()
                started = time.perf_counter()
                network(*arguments.positional, **arguments.named)
                seconds.append(time.perf_counter() - started)
    return statistics.median(taken[before]), statistics.median(taken[after])


_RIDGE = 1e-3
"""Penalty on changes of the weights, as a share of the mean square of a layer's inputs."""


def refit_outputs(model: nn.Module, made: nn.Module, names: Sequence[str], images: Tensor) -> Refinement:
    """Fits W_out and its bias, layer by layer, so that the layer's output is nearest to that of the layer as it was.

    From the first layer to the last, each W_out moves to the minimum of `Σ ‖old output − new output‖² + μ‖change‖²`,
    given the heads that average and those that attend. Each layer sees the output of the layers that are already
    fitted. Every fifth image is held out, and a fit that does not help on those is undone.

    Args:
        model: The network as it was.
        made: The network with replaced heads, whose output matrices are changed in place.
        names: Names of the layers with replaced heads.
        images: At least 5 images, prepared as the network expects them.

    Returns:
        How much each fit helps on the held-out images, and which layers hold no output matrix.

    Raises:
        ArgumentError: The images do not fit the network, are too few, or no layer holds an output matrix.
    """
    require_batch("refit", images)
    teacher, student = copy_network(model).eval(), copy_network(made).eval()
    found = {name: _output(student.get_submodule(name)) for name in names}
    outputs = {output: name for name, output in found.items() if output is not None}
    left = [_left(name, student.get_submodule(name)) for name, output in found.items() if output is None]
    if not outputs:
        raise ArgumentError(f"refit must be None, because {left[0].summary()}")
    layers = {
        place: Fitted(outputs[part], part, teacher.get_submodule(outputs[part]))
        for place, part in student.named_modules()
        if isinstance(part, nn.Linear) and part in outputs
    }
    record = fit_layers(student, teacher, layers, images, _first, ridge=_RIDGE, argument="refit", left_alone=left)
    with torch.no_grad():
        for output, name in outputs.items():
            kept = _output(made.get_submodule(name))
            assert kept is not None
            kept.load_state_dict(output.state_dict())
    return record


def _output(layer: nn.Module) -> nn.Linear | None:
    """Returns the output matrix of a layer with replaced heads; None if it holds none."""
    heads = [part for part in layer.modules() if isinstance(part, ConvolvedAttention)]
    return heads[0].output if heads else None


def _left(name: str, layer: nn.Module) -> LeftAlone:
    ours = not any(isinstance(part, ConvolvedAttention) for part in layer.modules())
    reason = "layers of this library are not refitted" if ours else "another module applies its output matrix"
    return LeftAlone(name, type(layer).__name__, reason)


def _first(network: nn.Module, images: Tensor) -> Tensor:
    return first_output(network, Arguments((images,), {}, "the images"))


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
