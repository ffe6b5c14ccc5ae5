"""What memory providers and imports cost.

`reply_ratio_dead_provider` is the processor time of a turn with a provider whose server is gone, over that of the same
turn without: the median of rounds in which homes answer alternately. `reply_ratio_no_provider` is that of two homes
which both have none: how far the other can be trusted.
`deliveries_per_s` is how many turns a second arrive at a stub server in another process, one request each, by the wall.
`drain_100k_rss_growth_mb` is how much a process of its own grows while it delivers 100,000 entries that have waited.
`import_hermes_100k_cpu_s` is the whole command, from a Hermes home of 100,000 messages to our store, in seconds of
processor time.
"""

from __future__ import annotations

from benchmarks.measuring import Steps, run
from benchmarks.providers_dead import dead_provider
from benchmarks.providers_delivery import deliveries, long_backlog
from benchmarks.providers_import import import_hermes

# Deliveries come first: what the others leave in this process would make them slower.
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
