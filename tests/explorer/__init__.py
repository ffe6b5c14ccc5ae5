"""Bounded model checker: explores every order of steps, with a crash at every point, up to a number of steps.

The simulator runs random schedules of many steps; the explorer runs all schedules of a few steps. Both check the same
invariants against the same reference model.

| module | contents |
|---|---|
| `runner` | command line: explore the scenarios, or a tree with a mutant |
| `scenarios` | starting points, and the steps and bounds that are explored from each |
| `search` | breadth-first search with the shortest trace to a violation |
| `actions` | the steps as values, and those that are possible in a state |
| `world` | a state: the store, two processes, memory back ends, a chat platform; carries out steps |
| `stepped_store` | a process's store, which can kill the process at any statement or commit |
| `platform` | the chat platform and the memory provider without hooks |
| `copying` | fast copies of the state that is not in the store |
| `fingerprint` | canonical form of a state, to visit each state once |
| `settling` | after a schedule: faults stop, and all remaining work must be completed |
| `checks` | the invariants, after each step and after settling |
| `mutants` | run the explorer against the mutants of `tests/mutants` |
"""
