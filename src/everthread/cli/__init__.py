"""The command line.

main: the `everthread` command and the table of commands
lazy_group: a click group that imports a command when it is used
context: the home, ways to open it, and options shared by commands
commands/: one module or package for each command
chat/: conversations, independent of the view
view: the interface between a chat and its view
terminal/: the view on a full terminal
stdin, files, editor: input and files
picker: choose one of several rows in the terminal
prompt_output: the terminal as prompt_toolkit draws on it
event_text: notices about the events of a turn, shared by all views
signals: handle signals in the event loop
status_line: the status line of a chat
output: results as text or JSON, tables, progress bars
session_output: sessions as text and JSON
settings_view: settings as text and JSON, without secrets
shell_complete: shell completion
exit_codes: errors as one line and an exit code

Modules import click and nothing slower; a command imports what it needs when it runs.
"""
