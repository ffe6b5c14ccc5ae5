"""Benchmarks. `python -m benchmarks.core` prints every figure beside its target."""
