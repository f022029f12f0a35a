"""Certificates: bounds on the error of a conversion, and the error that was measured."""
