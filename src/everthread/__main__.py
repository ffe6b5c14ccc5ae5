"""The `everthread` command: hands the command line what it may not reach for itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from everthread.cli import run

if TYPE_CHECKING:
    from everthread.bootstrap import Runtime
    from everthread.config import Settings


def main() -> None:
    sys.exit(run(open_runtime))


def open_runtime(settings: Settings) -> Runtime:
    from everthread.bootstrap import Runtime  # noqa: PLC0415 - a help text need not wait for the store

    return Runtime(settings)


if __name__ == "__main__":
    main()
