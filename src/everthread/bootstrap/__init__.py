"""The composition root: the only place that names adapters, and that knows the real clock and real randomness."""
