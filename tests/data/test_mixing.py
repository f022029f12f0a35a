import math

import pytest
import torch
from einops import einsum
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from convattn.data import cutmix, mixup
from convattn.errors import ArgumentError, ShapeError
from convattn.lab.augment import _symmetric_beta
from convattn.testing.budget import assert_within_budget, references

ALPHAS = [1e-3, 0.2, 0.5, 1.0, 2.0, 300.0]
SEEDS = st.integers(0, 2**31)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def numbered(batch=11, rows=5, cols=7):
    """Images of one number each, their own place in the batch, and one-hot targets of just as many classes."""
    return torch.arange(batch).float().view(-1, 1, 1, 1).expand(batch, 3, rows, cols), torch.eye(
        batch
    )


@given(alpha=st.sampled_from(ALPHAS), seed=SEEDS)
def test_targets_say_how_much_of_which_image_a_blend_holds(alpha, seed):
    images = torch.randn(11, 3, 5, 7, generator=seeded(1))
    blended, shares = mixup(images, torch.eye(11), alpha=alpha, generator=seeded(seed))

    def blend(shares, images):
        return einsum(
            shares, images, "batch parts, parts channels rows cols -> batch channels rows cols"
        )

    assert_within_budget(blended, *references(blend, shares, images))
    # a share and its complement, each rounded once, are rounded once more in the sum
    assert (shares.sum(1) - 1).abs().max() <= torch.finfo(torch.float32).eps
    assert shares.min() >= 0
    assert (shares > 0).sum(1).max() <= 2


@given(alpha=st.sampled_from(ALPHAS), seed=SEEDS)
def test_a_cut_image_holds_one_box_of_its_partner_and_the_target_counts_its_pixels(alpha, seed):
    images, targets = numbered()
    pasted, shares = cutmix(images, targets, alpha=alpha, generator=seeded(seed))
    for number, (image, share) in enumerate(zip(pasted, shares, strict=True)):
        assert torch.equal(image, image[:1].expand(3, 5, 7))
        foreign = image[0] != number
        rows, cols = foreign.any(dim=1), foreign.any(dim=0)
        assert torch.equal(foreign, rows[:, None] & cols[None, :])
        for side in (rows, cols):
            assert (side.int().diff().abs().sum() + side[0] + side[-1]) in (0, 2)
        partners = image[0][foreign].unique().long().tolist()
        assert len(partners) <= 1
        area = foreign.sum().item() / 35
        expected = torch.zeros(11, dtype=torch.float64)
        expected[number] += 1 - area
        expected[partners] += area
        assert (share - expected).abs().max() <= torch.finfo(torch.float32).eps


@given(alpha=st.sampled_from(ALPHAS), seed=SEEDS)
def test_every_image_is_one_partner(alpha, seed):
    """Of distinct images, column b of the targets sums over all that show image b: it is its own share and one more."""
    _, shares = mixup(*numbered(), alpha=alpha, generator=seeded(seed))
    order = torch.randperm(11, generator=seeded(seed))
    own = torch.where(order == torch.arange(11), 0.0, shares.diagonal())
    expected = torch.diag(own).index_put((torch.arange(11), order), 1 - own, accumulate=True)
    assert (shares - expected).abs().max() <= torch.finfo(torch.float32).eps


@pytest.mark.parametrize("alpha", ALPHAS)
def test_shares_are_beta(alpha):
    """Mean ½, E(λ − ½)² = 1/(4(2α + 1)) and E(λ − ½)⁴ = 3/(16(2α + 1)(2α + 3)), each within four standard errors."""
    draws = 40_000
    centred = _symmetric_beta(draws, alpha, seeded(7)) - 0.5
    assert centred.abs().max() <= 0.5
    moments = {2: 1 / (4 * (2 * alpha + 1)), 4: 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))}
    assert abs(centred.mean()) < 4 * math.sqrt(moments[2] / draws)
    for power, expected in moments.items():
        numbers = centred**power
        # at the smallest α nearly every number is the same; its own spread then says too little
        spread = max(numbers.std().item(), expected / math.sqrt(draws))
        assert abs(numbers.mean() - expected) < 4 * spread / math.sqrt(draws)


def test_shares_of_alpha_one_are_uniform():
    draws = 40_000
    ordered = _symmetric_beta(draws, 1.0, seeded(8)).sort().values
    distance = (ordered - (torch.arange(draws) + 0.5) / draws).abs().max() + 0.5 / draws
    assert distance < 1.95 / math.sqrt(
        draws
    )  # Kolmogorov and Smirnov, p = 0.001; the seed is fixed


@pytest.mark.parametrize("alpha", [1e-300, 1e300])
def test_extreme_alphas_leave_images_whole_or_blend_evenly(alpha):
    shares = _symmetric_beta(1000, alpha, seeded(9))
    assert torch.isfinite(shares).all()
    assert (
        torch.equal(shares, (shares > 0.5).double())
        if alpha < 1
        else (shares - 0.5).abs().max() < 1e-15
    )


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_one_seed_is_one_sequence_and_global_state_is_untouched(mix):
    images, targets = numbered()
    before, kept = torch.random.get_rng_state(), (images.clone(), targets.clone())
    generator = seeded(5)
    first, second = (mix(images, targets, alpha=1.0, generator=generator) for _ in range(2))
    again = mix(images, targets, alpha=1.0, generator=seeded(5))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], second[0])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(images, kept[0])
    assert torch.equal(targets, kept[1])


@pytest.mark.parametrize("mix", [mixup, cutmix])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept_and_draws_do_not_depend_on_them(mix, dtype):
    images, targets = numbered()
    mixed, shares = mix(images.to(dtype), targets, alpha=0.5, generator=seeded(6))
    assert mixed.dtype == dtype
    assert torch.equal(shares, mix(images, targets, alpha=0.5, generator=seeded(6))[1])
    assert mix(images, targets.to(dtype), alpha=0.5, generator=seeded(6))[1].dtype == dtype


def test_bytes_are_pasted_as_they_are():
    images, targets = numbered()
    pasted, shares = cutmix(images.byte(), targets, alpha=1.0, generator=seeded(3))
    expected, same = cutmix(images, targets, alpha=1.0, generator=seeded(3))
    assert torch.equal(pasted, expected.byte())
    assert torch.equal(shares, same)


@pytest.mark.parametrize("mix", [mixup, cutmix])
@pytest.mark.parametrize("batch", [0, 1])
def test_batches_without_a_partner(mix, batch):
    images, targets = numbered(batch=batch)
    mixed, shares = mix(images, targets, alpha=1.0, generator=seeded(2))
    assert torch.equal(mixed, images)
    assert mixed.shape == images.shape
    # one image is its own partner: share and complement sum to 1 but for rounding
    assert shares.shape == targets.shape
    assert (shares - targets).abs().sum() <= torch.finfo(torch.float32).eps


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_mixed_targets_are_what_the_loss_takes(mix):
    _, shares = mix(*numbered(), alpha=1.0, generator=seeded(1))
    scores = torch.zeros(11, 11)
    assert abs(F.cross_entropy(scores, shares, label_smoothing=0.1).item() - math.log(11)) < 1e-6


@pytest.mark.parametrize("mix", [mixup, cutmix])
@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf, math.nan])
def test_alpha_out_of_range_is_refused(mix, alpha):
    with pytest.raises(
        ArgumentError, match=f"alpha must be a positive finite number, but is {alpha}"
    ):
        mix(*numbered(), alpha=alpha, generator=seeded(0))


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_targets_that_are_no_shares_are_refused(mix, without_type_checks):
    images, targets = numbered()
    with pytest.raises(
        ShapeError, match=r"targets must be of shape \(11, classes\), .* but is \(11,\)"
    ):
        mix(images, torch.arange(11), alpha=1.0, generator=seeded(0))
    with pytest.raises(
        ShapeError, match=r"targets must be of shape \(11, classes\), .* but is \(10, 11\)"
    ):
        mix(images, targets[1:], alpha=1.0, generator=seeded(0))
    with pytest.raises(
        ArgumentError, match=r"targets must be shares of floating point, .* but is torch\.int64"
    ):
        mix(images, targets.long(), alpha=1.0, generator=seeded(0))


def test_bytes_are_not_blended(without_type_checks):
    images, targets = numbered()
    with pytest.raises(
        ArgumentError, match=r"images must be of floating point, .* but is torch\.uint8"
    ):
        mixup(images.byte(), targets, alpha=1.0, generator=seeded(0))
