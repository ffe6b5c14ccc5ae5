"""The automatic token: created once, by the first start of a gateway on a store that never had a token.

The store contains its hash. Its text is in a file that only the user can read, so that `everthread tokens show` can
print it. A store that had a token never gets an automatic one again: revoking the last token locks the interface.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from everthread.domain.api_key import LOCAL, hash_token, is_token
from everthread.domain.errors import StoreUnwritable
from everthread.lifecycle.base import StoreOperations, transaction
from everthread.ports.clock import Clock
from everthread.store.api_keys import ApiKey
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.lifecycle")

_BYTES_MAX = 1024


class LocalToken(StoreOperations):
    """The automatic token of one store and its file."""

    def __init__(self, store: Store, clock: Clock, path: Path) -> None:
        super().__init__(store, clock)
        self._path = path

    async def create_first(self, token: str, owner: str) -> bool:
        """Create the automatic token from this text, unless the store has or had one. Return whether it was created."""
        if await self._store.read(lambda uow: uow.api_keys.ever_existed()):
            await self._remove_stale_file()
            return False
        if not await self._add_first(token, owner):
            # Another process created a token in this moment.
            return False
        log.info("created the API token %r; everthread tokens show prints it", LOCAL)
        return True

    @transaction
    def _add_first(self, uow: UnitOfWork, token: str, owner: str) -> bool:
        """Write file and key under the store's write lock, so that no other process writes the file meanwhile.

        The file is written first: a process that dies in between leaves a text that opens nothing, and the next start
        replaces it.
        """
        if uow.api_keys.ever_existed():
            return False
        _write_private(self._path, token)
        return uow.api_keys.add(ApiKey(hash_token(token), owner, LOCAL, self._clock.now(), automatic=True))

    async def text(self) -> str | None:
        """Return the text of the automatic token; None if there is none, or it is revoked."""
        token = read_private(self._path)
        if not is_token(token):
            return None
        key = await self._store.read(lambda uow: uow.api_keys.get(hash_token(token)))
        return token if key is not None and key.is_valid(self._clock.now()) else None

    async def is_lost(self, keys: Sequence[ApiKey]) -> bool:
        """Return True if the automatic token is valid and its text is not here: the store came without the file."""
        now = self._clock.now()
        return any(key.automatic and key.is_valid(now) for key in keys) and await self.text() is None

    async def revoke(self, owner: str, name: str) -> ApiKey | None:
        """Revoke a token and return it; None if there is none. The file of the automatic one is removed."""
        removed = await self._remove(owner, name)
        if removed is not None and removed.automatic:
            self._path.unlink(missing_ok=True)
        return removed

    @transaction
    def _remove(self, uow: UnitOfWork, owner: str, name: str) -> ApiKey | None:
        return uow.api_keys.remove(owner, name)

    async def _remove_stale_file(self) -> None:
        """Remove a text that opens nothing: its token was revoked or forgotten, or is of another store."""
        if self._path.exists() and await self.text() is None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def no_valid_key(keys: Sequence[ApiKey], now: float) -> bool:
    """Return True if no key opens anything, so that every request is refused."""
    return not any(key.is_valid(now) for key in keys)


def _write_private(path: Path, text: str) -> None:
    """Write the file atomically. At no time can another user read it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        # Left by a killed process with the same id.
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise StoreUnwritable(f"{path}: {error.strerror}; make the folder writable for your user") from error


def read_private(path: Path) -> str:
    """Return the text of the file; empty if there is none. A symbolic link is not followed."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read(_BYTES_MAX).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StoreUnwritable(f"{path}: {error.strerror}; make it a file that your user can read") from error
