"""Reports of heads: put together, worded, drawn, compared, and kept as tables."""
