"""The agent: run turns, each computed from the stored conversation.

In the order of data flow:

- `inbox_worker`: the steps around a turn that the terminal and the gateway share.
- `turn`: the agent loop; ask the model, run its tools, repeat, commit.
- `turn_options`: limits of every turn, options of one turn.
- `turn_state`: a running turn; stop it, steer it, check its limits.
- `turn_guard`: the check before every effect of a turn.
- `prompt`: build the frozen system prompt of a session.
- `prompt_cache`: the encoded start of a session's next request.
- `transcript`: stored messages as a request shows them, and back.
- `model_call`: reserve budget, call a model, retry, fall back to the next one.
- `tools`: the tools of the model, and the runner of its calls.
- `skills`: the skill files that the model reads and writes.
- `delegation`: run a subtask in a child session.
- `events`: the events that a front end receives.
- `turn_outcome`: time limit, stop and errors of a turn.
- `turn_commit`: store the turn, start background work.
- `turn_release`: release a turn that cannot be finished.
- `store_retry`: repeat writes while the store is unavailable.
- `compression`: continue a long conversation from a summary.
- `titles`: generate session titles in the background.
- `review`: review conversations in the background and write notes.
- `note_compaction`: shorten notes to make room for new ones.
"""
