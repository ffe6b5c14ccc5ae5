"""The chat of `everthread` and `everthread -p`, independent of the view.

session: enter and leave the session of a terminal, wait for its turns
chat: the interactive chat; read messages, run commands, end on signals
slash_commands: run slash commands and show their results
turns: answer the messages of this terminal and stop the running answer
approvals: ask the user to approve a tool call
recovery: finish the turns of dead terminals
other_clients: find turns that other clients added to the session
status: keep the status line up to date
input_history: read recent messages of the user
greeting: messages at the start and at the end
oneshot: answer one prompt and exit
plain_view: the chat view on plain streams
"""
