"""Trained networks converted both ways: accuracy, time and certificates before and after."""
