"""The command line.

main            the `everthread` command and the table of commands
lazy_group      a click group that imports a command when it is used
context         what every command gets: the home, ways to open it, shared options
commands/       one module or package for each command
chat/           conversations, in a pipe or line by line
terminal/       conversations on a full terminal
output          results as text or JSON, tables, progress bars
session_output  sessions as text and JSON
shell_complete  shell completion
stdin, files, editor    input and files
exit_codes      errors as one line and an exit code

Modules import click and nothing slower; a command imports what it needs when it runs.
"""
