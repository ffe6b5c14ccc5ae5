"""Measure memory providers and imports.

`reply_ratio_dead_provider` is the CPU time of a turn with a provider whose server refuses connections, divided by that
of the same turn without it: the median of interleaved rounds. `reply_ratio_no_provider` is the control: two homes
without a provider.
`deliveries_per_s` is the number of turns per second of wall-clock time that a stub server in another process receives,
one request each.
`drain_100k_rss_growth_mb` is the memory growth of a separate process that delivers a backlog of 100,000 entries.
`import_hermes_100k_cpu_s` is the CPU time of the whole command that imports a Hermes home of 100,000 messages.
"""

from __future__ import annotations

from benchmarks.measurement import Steps, run
from benchmarks.providers_delivery import deliveries, long_backlog
from benchmarks.providers_import import import_hermes
from benchmarks.providers_unavailable import dead_provider

# Deliveries come first: memory left by the others would slow them down.
STEPS: Steps = {
    "deliveries": deliveries,
    "dead_provider": dead_provider,
    "long_backlog": long_backlog,
    "import": import_hermes,
}

TARGETS = {
    "reply_ratio_dead_provider": 1.05,
    "deliveries_per_s": 500.0,
    "drain_100k_rss_growth_mb": 30.0,
    "import_hermes_100k_cpu_s": 30.0,
}

if __name__ == "__main__":
    run("benchmarks.providers", __doc__, STEPS, TARGETS)
