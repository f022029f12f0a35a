"""Numbers with which the heads of each axis-additive encoding look at one pixel each, and at the nearest one inside."""

import math

import torch

ALPHA = 800.0
"""Sharpness at which a weight one pixel off the centre, e^−α, is 0 even in float64, and with it every gradient of the
encoding. It and the numbers below are exact in every dtype, but for the sines."""

WAVE = 0.2
"""Frequency of a cosine that falls for 15 pixels on either side of its top."""


def quadratic_numbers(centres):
    return {"centres": centres, "root_sharpness": torch.full((len(centres),), math.sqrt(2 * ALPHA))}


def linear_distance_numbers(centres):
    return {"centres": centres, "log_slope": torch.full((len(centres),), 7.0)}  # e^7 is above α


def learned_axial_numbers(centres):
    """Tables of δ² and δ of the small encoding, and head vectors that weigh them as −α(δ² − 2Δδ)."""
    steps = torch.arange(-15.0, 16.0)
    table = torch.stack([steps**2, steps, *[torch.zeros(31)] * 3], dim=-1)
    vectors = torch.zeros(centres.shape[1], len(centres), 5)
    vectors[..., 0], vectors[..., 1] = -ALPHA, 2 * ALPHA * centres.mT
    return {
        "head_vectors": vectors,
        **{f"tables.{axis}": table for axis in range(centres.shape[1])},
    }


def sinusoidal_numbers(centres):
    """One wave, a cosine around the centre; its height leaves −α and more to the next pixel, and fits float16."""
    vectors = torch.zeros(centres.shape[1], len(centres), 6)
    vectors[..., 1], vectors[..., 4] = (
        6e4 * torch.sin(WAVE * centres.mT),
        6e4 * torch.cos(WAVE * centres.mT),
    )
    return {"head_vectors": vectors}


def axial_distance_numbers(centres):
    """Two units per head and axis, relu(log δ − log Δ) and relu(log Δ − log δ), falling by more than α a pixel."""
    heads, axes = centres.shape
    logs, signs = (
        centres.sign() * torch.log1p(centres.abs()),
        torch.tensor([1.0, -1.0]).repeat(heads),
    )
    steep = torch.zeros(heads, 2 * heads)
    for head in range(heads):
        steep[
            head, 2 * head : 2 * head + 2
        ] = -1.5e4  # neighbours within 15 pixels differ by 0.06 or more
    numbers = {}
    for axis in range(axes):
        numbers[f"axes.{axis}.inner.weight"] = signs[:, None]
        numbers[f"axes.{axis}.inner.bias"] = -signs * logs[:, axis].repeat_interleave(2)
        numbers[f"axes.{axis}.outer.weight"] = steep
    return numbers


HARD_NUMBERS = {
    "quadratic": quadratic_numbers,
    "linear_distance": linear_distance_numbers,
    "learned_axial": learned_axial_numbers,
    "sinusoidal": sinusoidal_numbers,
    "axial_distance": axial_distance_numbers,
    "shift": lambda _: {},
}
"""Parameters by name, as functions of the centres: whole displacements, (heads, dims)."""

HARD_OPTIONS = {"sinusoidal": {"max_period": WAVE**-3}, "axial_distance": {"hidden": 4}}
"""Options that an encoding needs for its numbers: three frequencies, the second the wave's; two hidden units for each
of two heads."""
