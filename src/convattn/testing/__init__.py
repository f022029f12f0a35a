"""Helpers for testing convattn and code built on it. The library itself does not import them."""
