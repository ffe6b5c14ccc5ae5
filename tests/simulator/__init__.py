"""Deterministic simulator.

| module | contents |
|---|---|
| `runner` | command line: run seeds in parallel, shrink failing schedules |
| `scenario` | schedules: actions and their weights |
| `simulation` | one simulation: two processes, users, two memory back ends, injected faults |
| `agent_simulation` | the same with agents: compression, review, delegated work |
| `fault_actions`, `file_actions` | the actions that inject faults, and those on files |
| `home` | home directory with note files that people edit |
| `event_loop` | event loop on virtual time |
| `environment` | clock, faults, simulated processes and store front |
| `backends`, `plugin` | memory providers and a plugin, with their faults |
| `process`, `agent_process` | a simulated process, without and with agents |
| `agent_model` | the model that agents call |
| `observed_lifecycle`, `operations` | lifecycle that reports its operations; the operations |
| `reference_model`, `reference_types` | reference model of the expected state |
| `invariants`, `agent_invariants` | checks against the reference model |
| `summary_`, `note_`, `turn_` and `forget_invariants` | checks of summaries, notes, cancelled turns, forgotten facts |
| `coverage` | pairs of a boundary and a fault that were seen |
| `store_consistency` | consistency checks between the rows of a store |
"""
