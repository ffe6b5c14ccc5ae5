"""Repeated faults on real processes. `make test` runs few of each, `make faults` many."""
