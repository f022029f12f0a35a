"""What trained networks lose and gain when heads that are convolutions run as convolutions."""
