"""`everthread completion`: what makes a shell complete commands, options, sessions and settings."""

from __future__ import annotations

import click

from everthread.cli import output as show
from everthread.cli.context import home_option, json_option

_WHERE = {
    "bash": "~/.local/share/bash-completion/completions/everthread",
    "zsh": "a folder of $fpath, as _everthread",
    "fish": "~/.config/fish/completions/everthread.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@home_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print a script that completes everthread's words in a shell.

    \b
    Examples:
      everthread completion bash > ~/.local/share/bash-completion/completions/everthread
      everthread completion fish > ~/.config/fish/completions/everthread.fish
      eval "$(everthread completion zsh)"
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    # Its source alone: click would start the shell to learn its version.
    made = kind(context.find_root().command, {}, "everthread", "_EVERTHREAD_COMPLETE")
    script = made.source_template % made.source_vars()
    if as_json:
        show.print_json({"shell": shell, "script": script, "goes_to": _WHERE[shell]})
    else:
        click.echo(script)
