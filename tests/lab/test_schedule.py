import math

import numpy as np
import pytest

from convattn.lab.recipe import CosineRecipe, StepsRecipe, TriangleRecipe
from convattn.lab.run_setup import learning_rate_factor


def factor(recipe, step, total):
    return learning_rate_factor(recipe, step, epochs=total, steps_per_epoch=1)


def test_cosine_follows_its_formula():
    for step in range(101):
        expected = step / 7 if step < 7 else 0.5 + 0.5 * math.cos(math.pi * (step - 7) / 93)
        actual = factor(CosineRecipe(warmup=0.075), step, 100)
        assert actual == pytest.approx(expected, rel=1e-15, abs=1e-15), f"step {step}"


def test_cosine_without_warmup_starts_at_one():
    assert factor(CosineRecipe(warmup=0.0), 0, 10) == 1


def test_steps_multiply_at_each_milestone():
    factors = [factor(StepsRecipe(milestones=(3, 5), factor=0.1), step, 7) for step in range(7)]
    assert factors == pytest.approx([1, 1, 1, 0.1, 0.1, 0.01, 0.01], rel=1e-15)


def test_milestones_count_epochs():
    recipe = StepsRecipe(milestones=(80, 150, 250))
    at = {
        epoch: learning_rate_factor(recipe, epoch * 500, epochs=300, steps_per_epoch=500)
        for epoch in (79, 80, 299)
    }
    assert at == pytest.approx({79: 1, 80: 0.1, 299: 1e-3})


def test_warmup_is_a_share_of_all_steps():
    recipe = CosineRecipe(warmup=0.05)
    assert learning_rate_factor(recipe, 7500, epochs=300, steps_per_epoch=500) == 1
    assert learning_rate_factor(recipe, 3750, epochs=300, steps_per_epoch=500) == 0.5


def test_triangle_lies_on_two_straight_lines():
    for step in range(101):
        expected = np.interp(step, [0, 23, 100], [0.2, 1, 0.07])
        actual = factor(TriangleRecipe(start=0.2, peak=0.23, end=0.07), step, 100)
        assert actual == pytest.approx(expected, rel=1e-14), f"step {step}"


def test_triangle_without_a_rise_starts_at_one():
    assert factor(TriangleRecipe(start=0.2, peak=0.0, end=0.5), 0, 7) == 1


def test_triangle_of_a_recipe_counts_all_steps():
    recipe = TriangleRecipe(start=0.2, peak=0.25, end=0.1)
    factors = [
        learning_rate_factor(recipe, step, epochs=4, steps_per_epoch=10) for step in (0, 10, 40)
    ]
    assert factors == pytest.approx([0.2, 1, 0.1], rel=1e-15)
