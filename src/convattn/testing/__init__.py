"""Helpers for testing convattn and code built on it: the error budget, and `contracts`, which needs pytest."""

from convattn.budget import Sums, assert_within_budget, budget, references, roundings

__all__ = ["Sums", "assert_within_budget", "budget", "references", "roundings"]
