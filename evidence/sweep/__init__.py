"""Converts one network of every family of several homes, on both paths, and writes down what came of it."""
