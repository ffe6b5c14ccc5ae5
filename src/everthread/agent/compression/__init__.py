"""Compression: continue a long conversation in a new session that starts from a summary.

In the order of data flow:

- `service`: decide when to compress, and apply the result between two turns.
- `policy`: thresholds, the cut between covered and kept turns, the gain. Pure functions.
- `attempt`: make one summary or extract, and cross to the continuation.
- `summarizer`: the default context engine, which calls the auxiliary model.
- `state`: fill level and pauses of sessions.
"""
