"""`everthread completion`: print a script for bash, zsh or fish."""

from __future__ import annotations

import click

from everthread.cli.context import home_option, json_option
from everthread.cli.output import Result, render

_INSTALL_PATHS = {
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
    """Print a shell completion script. It completes commands, options, sessions and settings.

    \b
    Examples:
      everthread completion bash > ~/.local/share/bash-completion/completions/everthread
      everthread completion fish > ~/.config/fish/completions/everthread.fish
      eval "$(everthread completion zsh)"
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    # `source()` would start the shell to check its version; the template needs no shell.
    made = kind(context.find_root().command, {}, "everthread", "_EVERTHREAD_COMPLETE")
    script = made.source_template % made.source_vars()
    render(Result({"shell": shell, "script": script, "goes_to": _INSTALL_PATHS[shell]}, script), as_json)
