"""Head reports of trained networks."""
