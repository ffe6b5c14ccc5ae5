"""Composition root: the only package that names adapters and uses the real clock and randomness.

In the order of data flow:

| module | contents |
|---|---|
| `clock` | the system clock, ids |
| `process_locks` | detect dead processes with flock |
| `runtime` | `Runtime`: wire store, lifecycle, memory, agent and gateway |
| `inspection` | operations of `Runtime` that need no open store: tests of services, copies of a store |
| `memory_providers` | create the configured memory providers |
| `platforms` | create the configured platforms and the transcriber |
| `agent` | create the model clients, the tools and the agents |
| `hermes_plugins` | list and test memory plugins of Hermes Agent |
"""
