"""What a conversion promises and what was measured of it: bounds, rounding, and the record of both."""
