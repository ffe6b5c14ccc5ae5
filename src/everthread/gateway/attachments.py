"""Fetch the attachments of messages, keep them in the home, and describe them in words for the model.

Fetching happens after a message is stored and before its turn begins, within a time limit. What cannot be fetched is
described as such, and the message is answered without it. Pending attachments are rows of the inbox, so another process
can fetch them after a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from everthread.concurrency import cancel_tasks
from everthread.domain.errors import ModelError, PlatformError, PlatformUnavailable, StoreError
from everthread.domain.media import FILE_BYTES_MAX, Media, reserved_bytes, safe_file_name
from everthread.domain.model import InboxRow, Reply, ReplyState, SessionKey, replace_surrogates
from everthread.gateway.outbox import Outbox
from everthread.gateway.routing import text_with_attachments
from everthread.log_context import log_fields, log_scope
from everthread.ports.clock import Clock
from everthread.ports.platform import Platform, Update
from everthread.ports.transcriber import Transcriber
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.gateway")

BYTES_MAX = FILE_BYTES_MAX
IN_MEMORY_BYTES_MAX = 3 * BYTES_MAX
"""Total size of the attachments that are being fetched at the same time, over all chats."""
COUNT_MAX = 10
READ_BYTES_MAX = 30_000
"""Bytes of a text file that the model reads."""
FETCH_S_MAX = 30.0
TRANSCRIBE_S_MAX = 45.0
TRIES = 3
PAUSE_S = 1.0
STORE_PAUSE_S = 2.0

NO_TRANSCRIBER = "I can't transcribe voice messages here. Please write to me instead."
NOT_TRANSCRIBED = "I could not transcribe your voice message. Please try again later, or write to me."
NOT_FETCHED = "(it could not be fetched)"
_ID_CHARS_MAX = 40
_NAME_CHARS_MAX = 80
_TEXT = re.compile(r"text/.*|application/(json|toml|xml|yaml|x-yaml|javascript|x-sh)")


class Attachments(Struct, frozen=True):
    """The attachments of a message, as they are described to the model."""

    media: tuple[Media, ...]
    notice: str = ""
    """Text for the sender, mostly empty. A voice message that cannot be transcribed is not among the media."""

    @property
    def to_fetch(self) -> tuple[Media, ...]:
        return tuple(media for media in self.media if media.handle)


class AttachmentFetcher:
    """Fetches attachments from platforms into a folder."""

    def __init__(
        self, platforms: Mapping[str, Platform], folder: Path, transcriber: Transcriber | None, clock: Clock
    ) -> None:
        self._platforms = platforms
        self._folder = folder
        self._transcriber = transcriber
        self._clock = clock
        self._budget = ByteBudget(IN_MEMORY_BYTES_MAX)

    def plan(self, update: Update) -> Attachments:
        """Decide what to fetch later, and the path of each file. Does no I/O."""
        platform = self._platforms.get(update.platform)
        if not update.media or platform is None or not platform.capabilities.fetches:
            return Attachments(tuple(replace(media, handle="") for media in update.media))
        usable = [media for media in update.media[:COUNT_MAX] if media.kind != "voice" or self._transcriber is not None]
        has_unusable = len(usable) < len(update.media[:COUNT_MAX])
        planned = tuple(replace(media, path=_path(update, number, media)) for number, media in enumerate(usable))
        return Attachments(planned, NO_TRANSCRIBER if has_unusable else "")

    async def fetch(self, platform_name: str, pending: tuple[Media, ...]) -> Attachments:
        """Fetch what has a handle. Never fails: a missing file is described in words."""
        platform = self._platforms.get(platform_name)
        fetched: list[Media | None] = []
        for media in pending:
            size = min(media.size or BYTES_MAX, BYTES_MAX)
            async with self._budget.reserve(size):
                fetched.append(await self._fetch_one(platform, media, size))
        media = tuple(one for one in fetched if one is not None)
        return Attachments(media, NOT_TRANSCRIBED if None in fetched else "")

    async def _fetch_one(self, platform: Platform | None, media: Media, size: int) -> Media | None:
        """Fetch, then keep or transcribe; return `None` for a voice message that was not transcribed."""
        content = await self._download(platform, media, size) if platform is not None else None
        if content is None:
            return replace(media, handle="", path="", words=NOT_FETCHED)
        if media.kind != "voice":
            return await self._keep(media, content)
        text = await self._transcribe(media, content)
        return replace(media, handle="", path="", words=text) if text is not None else None

    def file_path(self, media: Media) -> str:
        """Return the absolute path of a kept attachment."""
        return str(self._folder / media.path) if media.path else ""

    def remove(self, media: Media) -> None:
        """Remove the file of an attachment that is no longer needed."""
        if media.path:
            with suppress(OSError):
                (self._folder / media.path).unlink(missing_ok=True)

    async def _download(self, platform: Platform, media: Media, bytes_max: int) -> bytes | None:
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                for tried in range(1, TRIES + 1):
                    try:
                        return await platform.fetch(media, bytes_max)
                    except PlatformUnavailable as error:
                        if tried == TRIES:
                            raise
                        await self._clock.sleep(max(error.retry_after, tried * PAUSE_S))
        except (PlatformError, TimeoutError) as error:
            log.warning("%s: an attachment was not fetched: %s", platform.name, error)
        except Exception:
            # A bug of an adapter, which would happen again: the message must not wait for ever.
            log.exception("%s: an attachment was not fetched", platform.name)
        return None

    async def _transcribe(self, media: Media, content: bytes) -> str | None:
        if self._transcriber is None:
            return None
        try:
            async with asyncio.timeout(TRANSCRIBE_S_MAX):
                return replace_surrogates(await self._transcriber.transcribe(content, media.name, media.mime)) or None
        except (ModelError, TimeoutError) as error:
            log.warning("a voice message was not transcribed: %s", error)
        except Exception:
            log.exception("a voice message was not transcribed")
        return None

    async def _keep(self, media: Media, content: bytes) -> Media:
        media = replace(media, handle="", size=len(content))
        try:
            await asyncio.to_thread(_write, self._folder / media.path, content)
        except OSError as error:
            # The file may be there in part.
            self.remove(media)
            log.warning("an attachment was not written: %s", error.strerror)
            return replace(media, path="", words="(it could not be stored)")
        return replace(media, words=_text_in(media, content))


def _path(update: Update, number: int, media: Media) -> str:
    """Name the file after its update, so that a repeated update overwrites it. Voice messages are not kept."""
    if media.kind == "voice":
        return ""
    file_id = f"{update.account}-{update.update_id}-{number}"
    if len(file_id) > _ID_CHARS_MAX or safe_file_name(file_id) != file_id or file_id.startswith("."):
        # Hashed rather than cleaned: two different ids must not become the same file name.
        file_id = hashlib.sha256(file_id.encode(errors="replace")).hexdigest()[:_ID_CHARS_MAX]
    name = safe_file_name(media.name or media.kind)[-_NAME_CHARS_MAX:]
    return f"{safe_file_name(update.platform)}/{file_id}-{name}"


def _text_in(media: Media, content: bytes) -> str:
    """Return the beginning of a text file; empty for other files."""
    if not _TEXT.fullmatch(media.mime) or b"\0" in content[:READ_BYTES_MAX]:
        return ""
    text = replace_surrogates(content[:READ_BYTES_MAX].decode("utf-8", "replace"))
    return text if len(content) <= READ_BYTES_MAX else f"{text}\n(shortened; the rest is in the file)"


def _write(path: Path, content: bytes) -> None:
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(content)


class AttachmentQueue:
    """Fetches the attachments of stored messages in the background, one message after another for each key."""

    def __init__(self, store: Store, clock: Clock, fetcher: AttachmentFetcher, outbox: Outbox) -> None:
        self._store = store
        self._clock = clock
        self._fetcher = fetcher
        self._outbox = outbox
        self._tasks: dict[int, asyncio.Future[None]] = {}
        """By inbox id."""
        self._last: dict[SessionKey, asyncio.Future[None]] = {}
        """The last task of each key."""

    def is_pending(self, inbox_id: int) -> bool:
        return inbox_id in self._tasks

    def enqueue(self, row: InboxRow, done: Callable[[], None] = lambda: None) -> None:
        """Fetch the attachments of a message behind those of its key, then call `done`. Does not block."""
        if not row.inbound.has_pending_media or row.id in self._tasks:
            return
        key = row.inbound.key
        task = asyncio.ensure_future(self._fetch(row, self._last.get(key)))
        self._tasks[row.id] = self._last[key] = task

        def ended(task: asyncio.Future[None]) -> None:
            del self._tasks[row.id]
            if self._last.get(key) is task:
                del self._last[key]
            if not task.cancelled():
                done()

        task.add_done_callback(ended)

    async def wait(self, row: InboxRow) -> None:
        """Wait until the message's attachments are fetched or the queue is finished."""
        self.enqueue(row)
        if (task := self._tasks.get(row.id)) is not None:
            await asyncio.wait({task})

    async def finish(self) -> None:
        """Stop fetching. Another process fetches the rest."""
        await cancel_tasks(self._tasks.values())

    async def _fetch(self, row: InboxRow, before: asyncio.Future[None] | None) -> None:
        with log_scope(**log_fields(row.inbound.key, owner=row.inbound.owner)):
            await self._fetch_after(before, row)

    async def _fetch_after(self, before: asyncio.Future[None] | None, row: InboxRow) -> None:
        if before is not None:
            await asyncio.wait({before})
        inbound = row.inbound
        attachments = await self._fetcher.fetch(inbound.key.platform, inbound.media)
        shown = tuple(replace(media, path=self._fetcher.file_path(media)) for media in attachments.media)
        while True:
            try:
                await self._save(row, shown, attachments)
                return
            except StoreError as error:
                log.warning("could not store attachments; retrying: %s", error)
            except Exception:
                # A bug, which must not lose the message.
                log.exception("could not store attachments; retrying")
            await self._clock.sleep(STORE_PAUSE_S)

    async def _save(self, row: InboxRow, shown: tuple[Media, ...], attachments: Attachments) -> None:
        inbound, now = row.inbound, self._clock.now()
        # Only kind and path are stored: the words are part of the text.
        kept = tuple(Media(media.kind, path=media.path) for media in attachments.media if media.path)
        media_bytes = reserved_bytes(attachments.media)
        notice = Reply(f"unheard-{row.id}", inbound.key, "", inbound.owner, attachments.notice, ReplyState.READY, now)

        def save(uow: UnitOfWork) -> tuple[bool, Reply | None]:
            # As it is stored now: a part of it may have been forgotten during the download.
            stored = uow.inbox.get(row.id)
            text = text_with_attachments(stored.inbound.text if stored else "", inbound.media, shown)
            is_waiting = uow.inbox.unpack(row.id, text, kept, media_bytes)
            return is_waiting, uow.outbox.put_reply(notice) if is_waiting and attachments.notice else None

        is_waiting, reply = await self._store.write(save)
        if reply is not None:
            self._outbox.put(reply)
        if not is_waiting:
            # The message was set aside or forgotten meanwhile.
            for media in attachments.media:
                self._fetcher.remove(media)


class ByteBudget:
    """FIFO byte-budget semaphore."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._free = bytes_max
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncGenerator[None]:
        """Reserve `size` bytes, at most the whole budget, while the context is entered."""
        size = min(size, self._bytes_max)
        async with self._queue:
            while self._free < size:
                self._freed.clear()
                await self._freed.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._freed.set()
