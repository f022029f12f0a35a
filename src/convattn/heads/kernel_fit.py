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


def fit_logs(sums: HeadSums, pairs: Pairs) -> tuple[Float64[Tensor, "heads displacements"], Bool[Tensor, " heads"]]:
    """Finds ln w(δ), Σ w = 1, such that, shared out, every displacement gets the attention that was measured.

    Also says which heads do not get there. Nearly all do in rounds, which take all heads at once; a head that looks
    beyond the border takes Newton's method.
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
    wanted: Float64[Tensor, "heads displacements"], there: Float64[Tensor, "queries displacements"], pairs: Pairs
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


def _settled(wanted: Float64[Tensor, "*heads displacements"], given: Float64[Tensor, "*heads displacements"]) -> Tensor:
    """Says which heads get what was measured; those of which nothing is known (nan) are settled."""
    return ~((wanted - given).abs().amax(dim=-1) > _SETTLED * wanted.amax(dim=-1))


def _keys_by_displacement(pairs: Pairs) -> Float64[Tensor, "queries displacements"]:
    """Returns how many keys each query has at each displacement."""
    bins, size = pairs.bins.flatten(0, 1), len(pairs.counts)
    found = torch.zeros(len(bins), size + 1, dtype=torch.float64, device=bins.device)
    return found.scatter_add_(1, bins, torch.ones_like(bins, dtype=torch.float64))[:, :size]


_FLAT = 1e-14
"""Squared distance to looking everywhere alike, as a share of the squared attention of a query, that is rounding."""


class KernelFit:
    """Weights by displacement of every head of a layer, fitted to sums over images and scored on others."""

    def __init__(self) -> None:
        """Starts without images."""
        self.state: dict[str, Tensor] = {}

    def score(self, call: AttentionCall, pairs: Pairs, fitted: HeadSums) -> None:
        """Adds images to score; `fitted` are the sums over the images to fit to, used for the first batch only."""
        if "logs" not in self.state:
            everything = fitted.map(lambda part: part.sum(dim=0))
            mass = everything.by_displacement.sum(dim=1) / (everything.images * pairs.queries)
            logs, settled = fit_logs(everything, pairs)
            self.state = {"logs": logs, "settled": settled, "mass": mass}
        alike = shared_out(torch.zeros_like(pairs.counts), pairs)
        errors, totals = [], []
        for chosen, tile in tiles(call, pairs):
            by_position = [shared_out(logs, pairs) for logs in self.state["logs"][chosen]]
            mass = self.state["mass"][chosen, None, None]
            for model, found in ((torch.stack(by_position, dim=1), errors), (alike[:, None], totals)):
                expected = (mass * model).to(tile.dtype)
                apart = [(part - expected).square_().sum(dim=4) for part in tile.split(images_in_cache(tile))]
                found.append(torch.cat(apart).double().sum(dim=(1, 3)).mT)
        for name, found in {"errors": torch.cat(errors), "totals": torch.cat(totals)}.items():
            self.state[name] = torch.cat([self.state[name], found], dim=1) if name in self.state else found

    def estimate(self, head: int, groups: int) -> Estimate:
        """Returns R² of a head on the images scored, with the standard error of a jackknife over groups of them.

        It is 0 for weights that describe the head no better than looking everywhere alike.
        """
        nan = float("nan")
        if "errors" not in self.state:
            return Estimate(nan, nan)
        errors, totals = self.state["errors"][head], self.state["totals"][head]
        if not float(totals.sum()) > _FLAT * float(self.state["mass"][head]) ** 2 * len(totals):
            return Estimate(nan, nan)
        parts = torch.arange(len(errors)) * min(groups, len(errors)) // len(errors)
        keep = [parts != part for part in parts.unique()] if len(errors) > 1 else []
        others = [float(1 - errors[kept].sum() / totals[kept].sum()) for kept in keep]
        return Estimate(float(1 - errors.sum() / totals.sum()), jackknife(others))

    def kernel(self, head: int, inside: Int64[Tensor, " kernel"]) -> tuple[float, ...]:
        """Returns the weights of a head at some displacements; over all of them they sum to its mean attention."""
        if "logs" not in self.state:
            return ()
        return tuple((self.state["mass"][head] * self.state["logs"][head, inside].exp()).tolist())

    @property
    def unsettled(self) -> int:
        """Number of heads whose weights are not yet those of maximum likelihood."""
        return int((~self.state["settled"]).sum()) if "settled" in self.state else 0


def shared_out(logs: Float64[Tensor, " displacements"], pairs: Pairs) -> Float64[Tensor, "groups rows cols"]:
    """Returns weights of every pair by displacement, given as logarithms, such that those of a query sum to 1."""
    scores = torch.cat([logs, logs.new_full((1,), -torch.inf)])[pairs.bins]
    return scores.softmax(dim=2).masked_fill((scores == -torch.inf).all(dim=2, keepdim=True), 0.0)


def uniform_distance(pairs: Pairs) -> float:
    """Returns the mean attention distance of a head that looks everywhere alike."""
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
    ridge, chosen by generalised cross-validation on the images of the fit, keeps few images from being learned by
    heart.
    """

    def __init__(self, grid: tuple[int, ...], kernel_size: int) -> None:
        """Starts without images."""
        self.grid, self.kernel_size = grid, kernel_size
        self.state: dict[str, Tensor] = {}

    @property
    def components(self) -> int:
        """Principal components of the input that are seen; 0 before the first batch."""
        return self.state["basis"].shape[1] if "basis" in self.state else 0

    @property
    def images(self) -> tuple[int, int]:
        """Images fitted to, and images scored."""
        scored = len(self.state["errors"]) if "errors" in self.state else 0
        return (int(self.state["images"]) if "images" in self.state else 0), scored

    def fit(self, x: Float[Tensor, "images positions channels"], y: Float[Tensor, "images positions outputs"]) -> None:
        """Adds images to fit to."""
        if "basis" not in self.state:
            self.state = {"basis": _principal(x, max(1, FEATURES // self.kernel_size ** len(self.grid)))}
        features, target = self._features(x), _rows(y)
        added = {
            "gram": (features.mT @ features).double(),
            "cross": (features.mT @ target).double(),
            "feature_sum": features.sum(dim=0).double(),
            "target_sum": target.sum(dim=0).double(),
            "target_squares": _squares(target).sum(),
            "rows": torch.tensor(float(len(target)), dtype=torch.float64),
            "images": torch.tensor(len(x)),
        }
        for name, value in added.items():
            self.state[name] = self.state[name] + value if name in self.state else value

    def score(
        self, x: Float[Tensor, "images positions channels"], y: Float[Tensor, "images positions outputs"]
    ) -> None:
        """Adds images to score; from the first of them on, the fit is done."""
        if "weights" not in self.state:
            self._solve()
        target, features = _rows(y), self._features(x)
        weights, bias, mean = (self.state[name].to(target) for name in ("weights", "bias", "target_mean"))
        missed = target - torch.addmm(bias, features, weights)
        errors = _squares(missed).view(len(x), -1).sum(dim=1)
        totals = _squares(target - mean).view(len(x), -1).sum(dim=1)
        for name, value in {"errors": errors, "totals": totals}.items():
            self.state[name] = torch.cat([self.state[name], value]) if name in self.state else value

    def estimate(self, groups: int) -> Estimate:
        """Returns R² on the images scored, with the standard error of a jackknife over groups of them."""
        if "errors" not in self.state or not float(self.state["totals"].sum()) > 0:
            return Estimate(float("nan"), float("nan"))
        errors, totals = self.state["errors"], self.state["totals"]
        parts = torch.arange(len(errors)) * min(groups, len(errors)) // len(errors)
        keep = [parts != part for part in parts.unique()] if len(errors) > 1 else []
        others = [float(1 - errors[kept].sum() / totals[kept].sum()) for kept in keep]
        return Estimate(float(1 - errors.sum() / totals.sum()), jackknife(others))

    def _features(self, x: Float[Tensor, "images positions channels"]) -> Float[Tensor, "rows features"]:
        """Returns the window of every position, one row each."""
        reduced = (x.to(self.state["basis"].dtype) @ self.state["basis"]).unflatten(1, self.grid)
        before = (self.kernel_size - 1) // 2
        padded = functional.pad(reduced, (0, 0, *(before, self.kernel_size - 1 - before) * len(self.grid)))
        taps = product(range(self.kernel_size), repeat=len(self.grid))
        cut = [padded[:, *(slice(at, at + size) for at, size in zip(tap, self.grid, strict=True))] for tap in taps]
        return torch.cat(cut, dim=-1).reshape(len(x) * prod(self.grid), -1)

    def _solve(self) -> None:
        """Computes the convolution from the sums."""
        state = self.state
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
        state["weights"] = vectors @ (best[:, None] * turned)
        state["bias"] = target_mean - feature_mean @ state["weights"]
        state["target_mean"] = target_mean


def _rows(values: Float[Tensor, "images positions channels"]) -> Float[Tensor, "rows channels"]:
    """Puts all positions of all images below one another, in at least float32."""
    return values.flatten(0, 1).to(torch.promote_types(values.dtype, torch.float32))


def _squares(rows: Float[Tensor, "rows channels"]) -> Float64[Tensor, " rows"]:
    """Returns the squared length of each row, added up in its own dtype."""
    return rows.square().sum(dim=1).double()


def _principal(x: Float[Tensor, "images positions channels"], count: int) -> Float[Tensor, "channels components"]:
    """Returns the directions in which the input is largest, or all channels if they are no more than `count`.

    They are found by orthogonal iteration, and span the largest ones nearly: a good basis is all that is needed.
    """
    rows = _rows(x)
    channels = rows.shape[1]
    if channels <= count:
        return torch.eye(channels, dtype=rows.dtype, device=rows.device)
    count = min(count, len(rows))  # beyond the rank of the first batch, rounding would choose the directions
    moment = rows.mT @ rows
    draw = torch.Generator().manual_seed(0)
    found = torch.randn(channels, count, generator=draw, dtype=torch.float64).to(rows)
    for _ in range(_ROUNDS):
        found = torch.linalg.qr(moment @ found).Q
    return found
