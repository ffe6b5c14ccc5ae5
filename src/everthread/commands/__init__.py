"""Slash commands, shared by every front end. Commands keep no state between calls.

registry: the table of commands; parse a message, find its command, run it
context: the input and the result of a command, and shared wording
completion: completion of commands and their arguments
sessions: commands that change the session or its transcript
turns: commands that act on the current session and its answers
model: show or change the model
memory: show, edit and undo notes
note_history: the history of notes and skills
search: search the messages of all sessions
usage: tokens and cost
export: write a session as Markdown
recap: the last turns of a resumed session
approval: approve tool calls and pairing codes
"""
