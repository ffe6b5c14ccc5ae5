"""Replacing a configuration file: whole or not at all, for its owner's eyes only."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from everthread.domain.errors import DiskFull, StoreUnwritable


def replace_file(file: Path, content: str) -> None:
    """Put the content into the file's place. A link stays one, and what it leads to is replaced."""
    target = file.resolve()
    draft = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Made for its owner alone.
        descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(draft, target)
    except OSError as error:
        if draft:
            Path(draft).unlink(missing_ok=True)
        said = f"{file}: {error.strerror}; nothing was changed"
        if error.errno == 28:
            raise DiskFull(f"{said}, free some space and try again") from error
        raise StoreUnwritable(f"{said}, make it and its folder writable for you") from error
