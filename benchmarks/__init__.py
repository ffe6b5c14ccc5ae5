"""What the core costs, measured. `python -m benchmarks.core` prints every figure beside its target."""
