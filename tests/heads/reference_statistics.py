"""Statistics of heads on whole maps, in float64, written to be read: the second road to every number.

Weights are (images, queries, keys) of one head, positions are (queries, axes) and (keys, axes); NaN stands for a
query or a key without a position. `allowed` is (queries, keys).
"""

from itertools import product

import numpy as np


def reference(weights, queries, keys, allowed=None):
    """Returns every number of one head by its definition."""
    here, there = ~np.isnan(queries[:, 0]), ~np.isnan(keys[:, 0])
    valid = np.outer(here, there)
    if allowed is not None:
        valid = valid & allowed
    delta = keys[None] - queries[:, None]
    pairs = [(q, k) for q, k in product(range(len(queries)), range(len(keys))) if valid[q, k]]
    numbers = {}

    size = np.abs(weights)
    mass = sum(size[:, q, k].sum() for q, k in pairs)
    shift = sum(size[:, q, k].sum() * delta[q, k] for q, k in pairs) / mass
    covariance = (
        sum(
            size[:, q, k].sum() * np.outer(delta[q, k] - shift, delta[q, k] - shift)
            for q, k in pairs
        )
        / mass
    )
    numbers["shift"], numbers["spread"] = shift, np.sqrt(np.trace(covariance))
    numbers["distance"] = (
        sum(size[:, q, k].sum() * np.linalg.norm(delta[q, k]) for q, k in pairs) / mass
    )

    rows = [q for q in range(len(queries)) if valid[q].any()]
    entropies, masses = [], []
    for image, q in product(range(len(weights)), rows):
        on_positions = size[image, q, valid[q]]
        share = on_positions[on_positions > 0] / on_positions.sum()
        entropies.append(-(share * np.log(share)).sum())
        masses.append(on_positions.sum())
    numbers["entropy"] = np.average(entropies, weights=masses)
    numbers["effective_positions"] = np.exp(numbers["entropy"])
    on_rows = len(weights) * len(rows)
    numbers["non_locality"] = numbers["distance"] * mass / on_rows
    paid = weights[:, rows][:, :, ~there]
    numbers["prefix_share"] = np.abs(paid).sum() / (np.abs(paid).sum() + mass)
    numbers["prefix_weights"] = paid.sum(axis=(0, 1)) / on_rows

    where = {}
    for q, k in pairs:
        where.setdefault(tuple(np.round(delta[q, k], 6)), []).append((q, k))
    mean = {step: np.mean([weights[:, q, k] for q, k in places]) for step, places in where.items()}
    most = max(map(len, where.values()))
    common = {step: value for step, value in mean.items() if 4 * len(where[step]) >= most}
    numbers["hard_shift"] = max(common, key=lambda step: common[step])
    numbers["hard_share"] = common[numbers["hard_shift"]]
    numbers["kernel"] = mean

    values = np.array([weights[:, q, k] for q, k in pairs])
    averaged = np.array([mean[tuple(np.round(delta[q, k], 6))] for q, k in pairs])[:, None]
    total = np.square(values - values.mean()).sum()
    numbers["shift_invariance"] = 1 - np.square(values - averaged).sum() / total
    numbers["content_share"] = (
        values.var(axis=1, ddof=1).mean() / (total / values.size) if len(weights) > 1 else np.nan
    )
    return numbers


def reference_jackknife(others):
    """Returns the standard error of a statistic from its values without each group of images."""
    groups, mean = len(others), sum(others) / len(others)
    return ((groups - 1) / groups * sum((other - mean) ** 2 for other in others)) ** 0.5


def reference_error(errors, totals, groups):
    """Returns the standard error of 1 − Σ errors / Σ totals, by leaving out one group of following images at a time.

    `errors` and `totals` have one number for each image.
    """
    images = len(errors)
    members = [number * groups // images for number in range(images)]
    others = []
    for left in range(groups):
        kept = [number for number in range(images) if members[number] != left]
        others.append(
            1 - sum(errors[number] for number in kept) / sum(totals[number] for number in kept)
        )
    return reference_jackknife(others)


def reference_convolution(x, y, held_x, held_y, grid, kernel_size):
    """Fits a convolution with zero padding by numpy's least squares.

    Returns, of each image held out, the squared errors and the squares about the mean of the images fitted to.
    """

    def windows(images):
        reach = kernel_size // 2
        padded = np.pad(
            images.reshape(len(images), *grid, -1), [(0, 0), *[(reach, reach)] * len(grid), (0, 0)]
        )
        rows = []
        for image in padded:
            for place in product(*map(range, grid)):
                part = image[tuple(slice(at, at + kernel_size) for at in place)]
                rows.append([*part.ravel(), 1.0])
        return np.array(rows)

    target = y.reshape(-1, y.shape[-1])
    held = held_y.reshape(-1, y.shape[-1])
    solution = np.linalg.lstsq(windows(x), target, rcond=None)[0]
    missed, about = held - windows(held_x) @ solution, held - target.mean(axis=0)
    return [np.square(part).reshape(len(held_x), -1).sum(axis=1) for part in (missed, about)]
