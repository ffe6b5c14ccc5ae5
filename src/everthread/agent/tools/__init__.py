"""Tools of the model, and the runner of its calls.

In the order of data flow:

- `runner`: the tool set of an agent; approve, record and run the calls of a model answer.
- `approval`: decide which calls the user is asked about, and what is shown.
- `tool_pins`: compare the tools of MCP servers with those that the user approved.
- `arguments`: validate the arguments of a call.
- `memory`: `memory`, `session_search` and `recall`.
- `skills`: `skill_list`, `skill_view` and `skill_write`.
- `schedule`: `schedule`.
"""
