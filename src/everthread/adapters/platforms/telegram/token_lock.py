"""One bot, one gateway: two that read one bot's messages would take them from each other.

The lock is on a file that is named after the token (of which it tells nothing), in a folder that all homes of a user
share. The system lets go of it with the process. Who reads the bot from another machine is told by Telegram.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from everthread.domain.errors import PlatformUnavailable

TAKEN = (
    "another gateway on this machine serves this bot; stop one of them (everthread gateway stop), or get a token of "
    "its own for one of them from @BotFather"
)


class TokenLock:
    def __init__(self, folder: Path, token: str) -> None:
        self._path = folder / f"{hashlib.sha256(token.encode()).hexdigest()[:32]}.lock"
        self._file: int | None = None

    def acquire(self) -> None:
        """Raises `PlatformUnavailable` if somebody else has it, or nobody can. It may be asked for again."""
        if self._file is not None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise PlatformUnavailable(
                f"{self._path.parent}: {error.strerror}; this folder must be yours, to keep two gateways from one bot"
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise PlatformUnavailable(TAKEN) from None
        self._file = file

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
