"""Faults, each as often as it is told to happen, on real processes. `make test` has few of each, `make faults` many."""
