"""How well weights by displacement describe a head, and how much of a layer the best convolution explains."""

from itertools import product
from math import prod

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn import functional

from convattn.heads.head_report import Estimate
from convattn.heads.head_sums import HeadSums, Pairs, images_in_cache, jackknife, tiles
from convattn.heads.layout import AttentionCall

_ROUNDS_OF_LIKELIHOOD, _SETTLED, _LEAST = 100, 1e-5, 1e-8
_STEPS, _ROUNDING, _LARGEST = 100, 1e-13, 2048
"""Newton steps of one head; rounding of its likelihood; number of queries or displacements whose steps take minutes."""


def fit_logs(
    sums: HeadSums, pairs: Pairs
) -> tuple[Float64[Tensor, "heads displacements"], Bool[Tensor, " heads"]]:
    """Fits ln w(δ), Σ w = 1, by maximum likelihood: each displacement gets the attention that was measured at it.

    Also returns which heads have converged. Rounds over all heads at once are enough for nearly all of them; Newton's
    method then fits the others, heads that look beyond the border.
    """
    measured = sums.by_displacement.clamp_min(0)
    wanted = measured / measured.sum(dim=1, keepdim=True) * pairs.queries
    there = _keys_by_displacement(pairs)
    weights, settled = _in_rounds(wanted, there, pairs)
    logs = weights.log()
    for head in (~settled).nonzero()[:, 0].tolist():
        known = wanted[head] > 0
        seen = there[:, known]
        seen = seen[(seen > 0).any(dim=1)]
        if min(seen.shape) > _LARGEST:
            continue
        start = (wanted[head] / pairs.counts)[known].log()
        found, settled[head] = _by_newton(wanted[head, known], seen.log(), start)
        logs[head] = -torch.inf
        logs[head, known] = found
    return logs.log_softmax(dim=1), settled


def _in_rounds(
    wanted: Float64[Tensor, "heads displacements"],
    there: Float64[Tensor, "queries displacements"],
    pairs: Pairs,
) -> tuple[Float64[Tensor, "heads displacements"], Bool[Tensor, " heads"]]:
    """Returns weights, and which heads have settled.

    The gradient of the log-likelihood in ln w is what was measured less what w gives; its curvature is taken to be
    twice the diagonal, which keeps steps safe. Sharing out in proportion would take n rounds to bring a weight that
    should be 0 down to 1/n.
    """
    weights = wanted / pairs.counts
    rounds = 0
    while True:
        inverse = (weights @ there.mT).reciprocal().nan_to_num(posinf=0.0)
        given = weights * (inverse @ there)
        settled = _settled(wanted, given)
        if rounds == _ROUNDS_OF_LIKELIHOOD or bool(settled.all()):
            return weights, settled
        curvature = given - weights.square() * (inverse.square() @ there)
        step = (wanted - given) / (2 * curvature.clamp_min(0) + _LEAST)
        weights = weights * step.clamp(-1, 1).exp()
        weights = weights / weights.sum(dim=1, keepdim=True)
        rounds += 1


def _by_newton(
    wanted: Float64[Tensor, " displacements"],
    there: Float64[Tensor, "queries displacements"],
    logs: Float64[Tensor, " displacements"],
) -> tuple[Float64[Tensor, " displacements"], bool]:
    """Returns ln w of one head and whether it has settled, by damped Newton steps; `there` are logarithms as well.

    With P[q, δ] the share of query q that w gives to δ, the curvature is diag(Σ_q P) − PᵀP.
    """

    def at(logs: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.logsumexp(there + logs, dim=1, keepdim=True)
        return total.sum() - (wanted * logs).sum(), (there + logs - total).exp()

    damping = 1.0
    loss, shares = at(logs)
    for _ in range(_STEPS):
        given = shares.sum(dim=0)
        if bool(_settled(wanted, given)):
            return logs, True
        step = _solve((1 + damping) * given + _LEAST, shares, wanted - given)
        new_loss, new_shares = at(logs + step)
        better = bool(new_loss - loss <= _ROUNDING * loss.abs())
        damping = max(damping / 4, _LEAST) if better else 4 * damping
        if better:
            logs, loss, shares = logs + step, new_loss, new_shares
    return logs, bool(_settled(wanted, shares.sum(dim=0)))


def _solve(
    diagonal: Float64[Tensor, " displacements"],
    shares: Float64[Tensor, "queries displacements"],
    gap: Float64[Tensor, " displacements"],
) -> Float64[Tensor, " displacements"]:
    """Solves (diag − PᵀP) x = gap, by whichever of PᵀP and P diag⁻¹ Pᵀ is smaller."""
    queries, displacements = shares.shape
    if displacements < queries:
        return torch.linalg.solve(diagonal.diag() - shares.mT @ shares, gap)
    scaled = shares / diagonal
    inner = torch.eye(queries, dtype=shares.dtype, device=shares.device) - scaled @ shares.mT
    return gap / diagonal + scaled.mT @ torch.linalg.solve(inner, scaled @ gap)


def _settled(
    wanted: Float64[Tensor, "*heads displacements"], given: Float64[Tensor, "*heads displacements"]
) -> Tensor:
    """Tells which heads have converged, so that they get what was measured; a head of nan counts as converged."""
    return ~((wanted - given).abs().amax(dim=-1) > _SETTLED * wanted.amax(dim=-1))


def _keys_by_displacement(pairs: Pairs) -> Float64[Tensor, "queries displacements"]:
    """Returns how many keys each query has at each displacement."""
    bins, size = pairs.bins.flatten(0, 1), len(pairs.counts)
    found = torch.zeros(len(bins), size + 1, dtype=torch.float64, device=bins.device)
    return found.scatter_add_(1, bins, torch.ones_like(bins, dtype=torch.float64))[:, :size]


_FLAT = 1e-14
"""Squared distance to uniform attention that rounding explains, as a share of a query's squared attention."""


def explained(
    errors: list[Float64[Tensor, " images"]],
    totals: list[Float64[Tensor, " images"]],
    groups: int,
    least: float = 0.0,
) -> Estimate:
    """Returns R² = 1 − Σ errors / Σ totals over batches, with the standard error of a jackknife over groups of images.

    `totals` are the squared errors of a trivial model. R² is nan unless they are more than `least` an image.
    """
    error, total = (torch.cat(parts) if parts else torch.zeros(0) for parts in (errors, totals))
    if not float(total.sum()) > least * len(total):
        return Estimate(float("nan"), float("nan"))
    parts = torch.arange(len(error)) * min(groups, len(error)) // len(error)
    keep = [parts != part for part in parts.unique()] if len(error) > 1 else []
    others = [float(1 - error[kept].sum() / total[kept].sum()) for kept in keep]
    return Estimate(float(1 - error.sum() / total.sum()), jackknife(others))


class KernelFit:
    """Weights by displacement of every head of a layer, fitted to sums over images and scored on others.

    Attributes:
        logs: ln w(δ) of every head; None before the first images to score.
        settled: Which heads have the weights of maximum likelihood.
        mass: Mean attention of a query on positions.
        errors: Squared errors of these weights, for each batch of images scored.
        totals: Those of uniform attention.
    """

    def __init__(self) -> None:
        """Starts without images."""
        self.logs: Float64[Tensor, "heads displacements"] | None = None
        self.settled = torch.ones(0, dtype=torch.bool)
        self.mass: Float64[Tensor, " heads"] = torch.zeros(0)
        self.errors: list[Float64[Tensor, "heads images"]] = []
        self.totals: list[Float64[Tensor, "heads images"]] = []

    def score(self, call: AttentionCall, pairs: Pairs, fitted: HeadSums) -> None:
        """Adds images to score; `fitted` are the sums over the images to fit to, used for the first batch only."""
        if self.logs is None:
            everything = fitted.map(lambda part: part.sum(dim=0))
            self.mass = everything.by_displacement.sum(dim=1) / (everything.images * pairs.queries)
            self.logs, self.settled = fit_logs(everything, pairs)
        alike = shared_out(torch.zeros_like(pairs.counts), pairs)
        errors, totals = [], []
        for chosen, tile in tiles(call, pairs):
            by_position = [shared_out(logs, pairs) for logs in self.logs[chosen]]
            mass = self.mass[chosen, None, None]
            for model, found in (
                (torch.stack(by_position, dim=1), errors),
                (alike[:, None], totals),
            ):
                expected = (mass * model).to(tile.dtype)
                apart = [
                    (part - expected).square_().sum(dim=4)
                    for part in tile.split(images_in_cache(tile))
                ]
                found.append(torch.cat(apart).double().sum(dim=(1, 3)).mT)
        self.errors.append(torch.cat(errors))
        self.totals.append(torch.cat(totals))

    def estimate(self, head: int, groups: int) -> Estimate:
        """Returns R² of a head on the images scored.

        It is 0 for weights that describe the head no better than uniform attention.
        """
        if self.logs is None:
            return Estimate(float("nan"), float("nan"))
        errors, totals = ([part[head] for part in parts] for parts in (self.errors, self.totals))
        return explained(errors, totals, groups, least=_FLAT * float(self.mass[head]) ** 2)

    def kernel(self, head: int, inside: Int64[Tensor, " kernel"]) -> tuple[float, ...]:
        """Returns the weights of a head at some displacements; over all of them they sum to its mean attention."""
        if self.logs is None:
            return ()
        return tuple((self.mass[head] * self.logs[head, inside].exp()).tolist())

    @property
    def unsettled(self) -> int:
        """Number of heads whose weights are not yet those of maximum likelihood."""
        return int((~self.settled).sum())


def shared_out(
    logs: Float64[Tensor, " displacements"], pairs: Pairs
) -> Float64[Tensor, "groups rows cols"]:
    """Returns weights of every pair by displacement, given as logarithms, such that those of a query sum to 1."""
    scores = torch.cat([logs, logs.new_full((1,), -torch.inf)])[pairs.bins]
    return scores.softmax(dim=2).masked_fill((scores == -torch.inf).all(dim=2, keepdim=True), 0.0)


def uniform_distance(pairs: Pairs) -> float:
    """Returns the mean attention distance of uniform attention."""
    alike = shared_out(torch.zeros_like(pairs.counts), pairs)
    lengths = torch.cat([pairs.lengths, pairs.lengths.new_zeros(1)])
    return float((alike * lengths[pairs.bins]).sum() / pairs.queries)


FEATURES = 288
"""Most inputs of a window, taps × components; more would cost as much as the network itself."""

_ROUNDS = 8
"""Rounds of orthogonal iteration: enough for directions that are twice as strong as those left out."""

_RIDGES = 10.0 ** torch.arange(-9, 1)


class ConvolutionFit:
    """A least-squares convolution, fitted to one batch after another and then scored on others.

    The input, padded with zeros, is reduced to its first principal components on the first batch if channels × taps
    are more than `FEATURES`. That can only hide what a convolution explains, so that the score is a lower bound. A
    ridge, chosen by generalised cross-validation on the images of the fit, avoids overfitting to few images.
    """

    def __init__(self, grid: tuple[int, ...], kernel_size: int) -> None:
        """Starts without images."""
        self.grid, self.kernel_size = grid, kernel_size
        self.fitted = 0  # Number of images fitted to
        self.errors: list[Float64[Tensor, " images"]] = []
        self.totals: list[Float64[Tensor, " images"]] = []
        self._basis: Float[Tensor, "channels components"] | None = None
        self._sums: dict[str, Tensor] = {}
        self._solution: tuple[Tensor, Tensor, Tensor] | None = (
            None  # Weights, bias, mean of the output
        )

    @property
    def components(self) -> int:
        """Principal components of the input that are seen; 0 before the first batch."""
        return 0 if self._basis is None else self._basis.shape[1]

    @property
    def images(self) -> tuple[int, int]:
        """Images fitted to, and images scored."""
        return self.fitted, sum(map(len, self.errors))

    def fit(
        self,
        x: Float[Tensor, "images positions channels"],
        y: Float[Tensor, "images positions outputs"],
    ) -> None:
        """Adds images to fit to."""
        if self._basis is None:
            self._basis = _principal(x, max(1, FEATURES // self.kernel_size ** len(self.grid)))
        features, target = self._features(x, self._basis), _rows(y)
        added = {
            "gram": (features.mT @ features).double(),
            "cross": (features.mT @ target).double(),
            "feature_sum": features.sum(dim=0).double(),
            "target_sum": target.sum(dim=0).double(),
            "target_squares": _squares(target).sum(),
            "rows": torch.tensor(float(len(target)), dtype=torch.float64),
        }
        self._sums = (
            {name: self._sums[name] + value for name, value in added.items()}
            if self._sums
            else added
        )
        self.fitted += len(x)

    def score(
        self,
        x: Float[Tensor, "images positions inputs"],
        y: Float[Tensor, "images positions outputs"],
    ) -> None:
        """Adds images to score; from the first of them on, the fit is done."""
        assert self._basis is not None
        if self._solution is None:
            self._solution = self._solve()
        target, features = _rows(y), self._features(x, self._basis)
        weights, bias, mean = (part.to(target) for part in self._solution)
        missed = target - torch.addmm(bias, features, weights)
        self.errors.append(_squares(missed).view(len(x), -1).sum(dim=1))
        self.totals.append(_squares(target - mean).view(len(x), -1).sum(dim=1))

    def estimate(self, groups: int) -> Estimate:
        """Returns R² on the images scored, with the standard error of a jackknife over groups of them."""
        return explained(self.errors, self.totals, groups)

    def _features(
        self,
        x: Float[Tensor, "images positions channels"],
        basis: Float[Tensor, "channels components"],
    ) -> Float[Tensor, "rows features"]:
        """Returns the window of every position, one row each."""
        reduced = (x.to(basis.dtype) @ basis).unflatten(1, self.grid)
        before = (self.kernel_size - 1) // 2
        padded = functional.pad(
            reduced, (0, 0, *(before, self.kernel_size - 1 - before) * len(self.grid))
        )
        taps = product(range(self.kernel_size), repeat=len(self.grid))
        cut = [
            padded[:, *(slice(at, at + size) for at, size in zip(tap, self.grid, strict=True))]
            for tap in taps
        ]
        return torch.cat(cut, dim=-1).reshape(len(x) * prod(self.grid), -1)

    def _solve(self) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the convolution from the sums: its weights, its bias and the mean of the output."""
        state = self._sums
        rows = state["rows"]
        feature_mean, target_mean = state["feature_sum"] / rows, state["target_sum"] / rows
        gram = state["gram"] - rows * feature_mean.outer(feature_mean)
        cross = state["cross"] - rows * feature_mean.outer(target_mean)
        squares = state["target_squares"] - rows * target_mean.square().sum()
        values, vectors = torch.linalg.eigh(gram)
        values, turned = values.clamp_min(0), vectors.mT @ cross
        power = turned.square().sum(dim=1)
        ridges = _RIDGES.double() * values.mean().clamp_min(torch.finfo(torch.float64).tiny)
        shrunk = 1 / (values[None] + ridges[:, None])
        error = squares - (power * (2 * shrunk - values * shrunk.square())).sum(dim=1)
        freedom = (values * shrunk).sum(dim=1)
        # A fit with as many degrees of freedom as rows explains anything, and is never chosen.
        criterion = torch.where(freedom < 0.9 * rows, error / (rows - freedom).square(), torch.inf)
        best = shrunk[criterion.argmin()]
        weights = vectors @ (best[:, None] * turned)
        return weights, target_mean - feature_mean @ weights, target_mean


def _rows(values: Float[Tensor, "images positions channels"]) -> Float[Tensor, "rows channels"]:
    """Puts all positions of all images below one another, in at least float32."""
    return values.flatten(0, 1).to(torch.promote_types(values.dtype, torch.float32))


def _squares(rows: Float[Tensor, "rows channels"]) -> Float64[Tensor, " rows"]:
    """Returns the squared length of each row, added up in its own dtype."""
    return rows.square().sum(dim=1).double()


def _principal(
    x: Float[Tensor, "images positions channels"], count: int
) -> Float[Tensor, "channels components"]:
    """Returns the directions in which the input is largest, or all channels if they are no more than `count`.

    They are found by orthogonal iteration, and span the largest ones nearly: a good basis is all that is needed.
    """
    rows = _rows(x)
    channels = rows.shape[1]
    if channels <= count:
        return torch.eye(channels, dtype=rows.dtype, device=rows.device)
    count = min(
        count, len(rows)
    )  # beyond the rank of the first batch, rounding would choose the directions
    moment = rows.mT @ rows
    draw = torch.Generator().manual_seed(0)
    found = torch.randn(channels, count, generator=draw, dtype=torch.float64).to(rows)
    for _ in range(_ROUNDS):
        found = torch.linalg.qr(moment @ found).Q
    return found
