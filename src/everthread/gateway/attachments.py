"""What comes with a message: fetched and kept in the home, and what can be read or heard of it put into words.

That takes its time, so it is done after the message is stored and before its turn begins; within a bound, so that
nobody waits long for a film. What can't be had is said to be so, and the message is answered without it.

Fetching what came with messages that are stored: beside everything else, one after another at each key.

What is to be fetched stands in the inbox: whoever dies in between leaves it to the next process.

Room in memory for what is on its way to a file: there is so much of it, for all chats together.
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

from everthread.domain.errors import ModelError, PlatformError, PlatformUnavailable, StoreError
from everthread.domain.media import Media
from everthread.domain.model import InboxRow, Reply, ReplyState, SessionKey, whole
from everthread.gateway.outbox import Outbox
from everthread.gateway.routing import unpacked_words
from everthread.log_context import log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Platform, Update
from everthread.ports.transcriber import Transcriber
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.gateway")

BYTES_MAX = 20_000_000
AT_ONCE_BYTES_MAX = 3 * BYTES_MAX
"""Of all that is being fetched, wherever it came from: what more there is waits for it."""
COUNT_MAX = 10
READ_BYTES_MAX = 30_000
"""Of a file that is text, what the model is shown."""
FETCH_S_MAX = 30.0
HEAR_S_MAX = 45.0
TRIES = 3
PAUSE_S = 1.0

NO_EARS = "I can't listen to voice messages here, so I don't know what you said. Please write it to me."
NOT_HEARD = "I could not make out your voice message just now. Please try again in a while, or write it to me."
NOT_FETCHED = "(it could not be fetched)"
_WHICH_CHARS_MAX = 40
_NAME_CHARS_MAX = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_TEXT = re.compile(r"text/.*|application/(json|toml|xml|yaml|x-yaml|javascript|x-sh)")


class Unpacked(Struct, frozen=True):
    """What came with a message, as the model is told of it."""

    media: tuple[Media, ...]
    notice: str = ""
    """What whoever wrote it is to be told: mostly nothing. A voice that can't be heard is not among the media."""

    @property
    def to_fetch(self) -> tuple[Media, ...]:
        return tuple(media for media in self.media if media.handle)


class Luggage:
    def __init__(
        self, platforms: Mapping[str, Platform], folder: Path, transcriber: Transcriber | None, clock: Clock
    ) -> None:
        self._platforms = platforms
        self._folder = folder
        self._transcriber = transcriber
        self._clock = clock
        self._room = ByteBudget(AT_ONCE_BYTES_MAX)

    def handed_over(self, update: Update) -> Unpacked:
        """What is to be fetched later, and where each will be kept. Does nothing that takes time."""
        platform = self._platforms.get(update.platform)
        if not update.media or platform is None or not platform.capabilities.fetches:
            return Unpacked(tuple(replace(media, handle="") for media in update.media))
        heard = [media for media in update.media[:COUNT_MAX] if media.kind != "voice" or self._transcriber is not None]
        unheard = len(heard) < len(update.media[:COUNT_MAX])
        named = tuple(replace(media, path=_path(update, number, media)) for number, media in enumerate(heard))
        return Unpacked(named, NO_EARS if unheard else "")

    async def unpacked(self, platform_name: str, packed: tuple[Media, ...]) -> Unpacked:
        """Fetch what has a handle. Nothing of it can fail: what is not to be had is in words."""
        platform = self._platforms.get(platform_name)
        made: list[Media | None] = []
        for media in packed:
            size = min(media.size or BYTES_MAX, BYTES_MAX)
            async with self._room.taken(size):
                made.append(await self._made(platform, media, size))
        return Unpacked(tuple(one for one in made if one is not None), NOT_HEARD if None in made else "")

    async def _made(self, platform: Platform | None, media: Media, size: int) -> Media | None:
        """What is in it, kept or in words; none of a voice that was not heard."""
        content = await self._fetched(platform, media, size) if platform is not None else None
        if content is None:
            return replace(media, handle="", path="", words=NOT_FETCHED)
        if media.kind != "voice":
            return await self._kept(media, content)
        heard = await self._heard(media, content)
        return replace(media, handle="", path="", words=heard) if heard is not None else None

    def place_of(self, media: Media) -> str:
        """Where it is kept, for whoever opens it."""
        return str(self._folder / media.path) if media.path else ""

    def remove(self, media: Media) -> None:
        """It was fetched for nobody."""
        if media.path:
            with suppress(OSError):
                (self._folder / media.path).unlink(missing_ok=True)

    async def _fetched(self, platform: Platform, media: Media, bytes_max: int) -> bytes | None:
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
            log.warning("%s: what came with a message was not fetched: %s", platform.name, error or "too slow")
        except Exception:
            # A mistake of an adapter's, and it would be one again: the message must not wait for ever.
            log.exception("%s: what came with a message was not fetched", platform.name)
        return None

    async def _heard(self, media: Media, content: bytes) -> str | None:
        if self._transcriber is None:
            return None
        try:
            async with asyncio.timeout(HEAR_S_MAX):
                return whole(await self._transcriber.transcribe(content, media.name, media.mime)) or None
        except (ModelError, TimeoutError) as error:
            log.warning("a voice message was not heard: %s", error or "too slow")
        except Exception:
            log.exception("a voice message was not heard")
        return None

    async def _kept(self, media: Media, content: bytes) -> Media:
        media = replace(media, handle="")
        try:
            await asyncio.to_thread(_write, self._folder / media.path, content)
        except OSError as error:
            # There may be the beginning of it.
            self.remove(media)
            log.warning("what came with a message was not kept: %s", error.strerror)
            return replace(media, path="", words="(it could not be kept)")
        return replace(media, words=_words_in(media, content))


def _path(update: Update, number: int, media: Media) -> str:
    """Within the folder of such files. Delivered twice, it is kept once; a voice is not kept at all."""
    if media.kind == "voice":
        return ""
    which = f"{update.account}-{update.update_id}-{number}"
    if len(which) > _WHICH_CHARS_MAX or _UNSAFE.search(which) or which.startswith("."):
        # Whatever it is called, no other may be called the same: it would take its place.
        which = hashlib.sha256(which.encode(errors="replace")).hexdigest()[:_WHICH_CHARS_MAX]
    name = _UNSAFE.sub("_", media.name or media.kind)[-_NAME_CHARS_MAX:]
    return f"{_UNSAFE.sub('_', update.platform)}/{which}-{name}"


def _words_in(media: Media, content: bytes) -> str:
    """What is in a file that is text."""
    if not _TEXT.fullmatch(media.mime) or b"\0" in content[:READ_BYTES_MAX]:
        return ""
    text = whole(content[:READ_BYTES_MAX].decode("utf-8", "replace"))
    return text if len(content) <= READ_BYTES_MAX else f"{text}\n(and so on; the rest is in the file)"


def _write(path: Path, content: bytes) -> None:
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(content)


STORE_PAUSE_S = 2.0


class Unpacking:
    def __init__(self, store: Store, clock: Clock, luggage: Luggage, delivery: Outbox) -> None:
        self._store = store
        self._clock = clock
        self._luggage = luggage
        self._delivery = delivery
        self._doing: dict[int, asyncio.Future[None]] = {}
        self._last: dict[SessionKey, asyncio.Future[None]] = {}
        """Of each key, what is done last."""

    def holds(self, inbox_id: int) -> bool:
        """Whether that message is being unpacked."""
        return inbox_id in self._doing

    def begin(self, row: InboxRow, done: Callable[[], None] = lambda: None) -> None:
        """Have a message unpacked, behind those of its key; then `done` is called. Comes back at once."""
        if not row.inbound.is_packed or row.id in self._doing:
            return
        key = row.inbound.key
        task = asyncio.ensure_future(self._unpack(row, self._last.get(key)))
        self._doing[row.id] = self._last[key] = task

        def ended(task: asyncio.Future[None]) -> None:
            del self._doing[row.id]
            if self._last.get(key) is task:
                del self._last[key]
            if not task.cancelled():
                done()

        task.add_done_callback(ended)

    async def wait(self, row: InboxRow) -> None:
        """Until that message is unpacked, or nobody unpacks it any more."""
        self.begin(row)
        if (task := self._doing.get(row.id)) is not None:
            await asyncio.wait({task})

    async def finish(self) -> None:
        """Fetch nothing more. What was not fetched is left to another process."""
        tasks = list(self._doing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _unpack(self, row: InboxRow, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        inbound = row.inbound
        unpacked = await self._luggage.unpacked(inbound.key.platform, inbound.media)
        shown = tuple(replace(media, path=self._luggage.place_of(media)) for media in unpacked.media)
        text = unpacked_words(inbound.text, inbound.media, shown)
        while True:
            try:
                await self._store_unpacked(row, text, unpacked)
                return
            except StoreError as error:
                log.warning("what came with a message has to wait: %s", error, extra=log_fields(inbound.key))
            except Exception:
                # A mistake of ours; the message is not to be lost by it.
                log.exception("what came with a message has to wait", extra=log_fields(inbound.key))
            await self._clock.sleep(STORE_PAUSE_S)

    async def _store_unpacked(self, row: InboxRow, text: str, unpacked: Unpacked) -> None:
        inbound, name = row.inbound, f"unheard-{row.id}"
        # Of what is in it nothing is kept a second time.
        kept = tuple(Media(media.kind, path=media.path) for media in unpacked.media if media.path)
        notice = Reply(name, inbound.key, "", inbound.owner, unpacked.notice, ReplyState.READY, self._clock.now())

        def store(uow: UnitOfWork) -> tuple[bool, Reply | None]:
            waits = uow.inbox.unpack(row.id, text, kept)
            return waits, uow.outbox.put_reply(notice) if waits and unpacked.notice else None

        waits, told = await self._store.write(store)
        if told is not None:
            self._delivery.put(told)
        if not waits:
            # It was set aside, or forgotten, meanwhile.
            for media in unpacked.media:
                self._luggage.remove(media)


class ByteBudget:
    """Whoever wants some waits until there is so much, behind those who came before."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._free = bytes_max
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncGenerator[None]:
        """Room for so many bytes, at most all there is."""
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
