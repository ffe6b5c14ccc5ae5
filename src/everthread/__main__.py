"""Entry point of the `everthread` command. Passes `bootstrap` functions to `cli`, which may not import them.

`python -m everthread` puts the current folder first on `sys.path`: a module or a plugin there would take the place of
an installed one. So that entry is removed before anything else is imported, even `__future__`.
"""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from typing import TYPE_CHECKING

from everthread import gc_tuning as collecting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from everthread.bootstrap.runtime import Runtime
    from everthread.config.schema import Settings
    from everthread.domain.model import Session


def main() -> None:
    """Run the command line and exit with its code."""
    collecting.postpone_collection()
    from everthread.cli.main import run  # noqa: PLC0415 - what it imports is there to stay, and not to be searched

    code = run(open_runtime, list_newest=glance, open_serving=open_serving)
    collecting.skip_final_collection()
    sys.exit(code)


def open_runtime(settings: "Settings") -> "Runtime":
    """Open the runtime of a terminal command, for the project in the working folder."""
    from everthread.bootstrap.runtime import Runtime  # noqa: PLC0415 - a help text need not wait for the store
    from everthread.config.environment import working_folder  # noqa: PLC0415 - as above

    return Runtime(settings, project=working_folder())


def open_serving(settings: "Settings") -> "Runtime":
    """Open the runtime of a gateway, with reset policies and without a project."""
    from everthread.bootstrap.runtime import Runtime  # noqa: PLC0415 - as above

    return Runtime(settings, policies=settings.reset)


def glance(path: "Path", limit: int) -> "Sequence[tuple[Session, int]] | None":
    """List the newest sessions without opening a runtime; None if only a runtime can read the file."""
    from everthread.fast_list import newest_sessions  # noqa: PLC0415 - as above

    return newest_sessions(path, limit)


if __name__ == "__main__":
    main()
