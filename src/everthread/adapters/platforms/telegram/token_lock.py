"""Lock that allows one gateway for each bot: two would take updates from each other.

The lock is on a file named after a hash of the token, in a folder that all homes of a user share. The system releases
it with the process. Telegram itself reports a second reader on another machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from everthread.domain.errors import PlatformUnavailable

LOCKED = (
    "another gateway on this machine serves this bot; stop one of them (everthread gateway stop), or get a token of "
    "its own for one of them from @BotFather"
)


class TokenLock:
    def __init__(self, folder: Path, token: str) -> None:
        self._path = folder / f"{hashlib.sha256(token.encode()).hexdigest()[:32]}.lock"
        self._file: int | None = None

    def acquire(self) -> None:
        """Acquire the lock, unless it is held already. Raises `PlatformUnavailable`."""
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
            raise PlatformUnavailable(LOCKED) from None
        self._file = file

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
