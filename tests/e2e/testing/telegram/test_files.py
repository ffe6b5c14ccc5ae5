"""Files of users and of the bot, through both bot libraries."""

from __future__ import annotations

import struct
import zlib

import pytest
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

from everthread.testing.telegram import protocol as wire

pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + b"\x80" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


async def test_files_are_sent_with_their_captions(library: Library) -> None:
    async with scene(library) as s:
        picture, note = png(120, 80), b"OggS" + b"\0" * 500
        await s.bot.send_photo(ANN, library.file(picture, "a.png"), caption="*photo*", parse_mode="MarkdownV2")
        await s.bot.send_document(ANN, library.file(b"\x00\r\n--bytes\r\n\xff", "réport.bin"), caption="report")
        await s.bot.send_voice(ANN, library.file(note, "note.ogg"), duration=3)
        _, photo, document, voice = await s.people.messages(ANN)
        assert [one.file.kind for one in (photo, document, voice) if one.file] == ["photo", "document", "voice"]
        assert (photo.marked, document.text, voice.text) == ("**photo**", "report", "")
        assert photo.file
        assert document.file
        assert voice.file
        assert await s.people.file(photo.file.file_id) == picture
        assert document.file.name == "réport.bin"
        assert await s.people.file(document.file.file_id) == b"\x00\r\n--bytes\r\n\xff"
        assert await s.people.file(voice.file.file_id) == note


async def test_a_stored_file_is_sent_again_by_its_id(library: Library) -> None:
    async with scene(library) as s:
        sent = await s.bot.send_document(ANN, library.file(b"once", "a.txt"))
        again = await s.bot.send_document(ANN, sent.document.file_id)
        assert again.document.file_id == sent.document.file_id
        await refused(s.bot.send_document(ANN, "nonsense"), library.bad, "wrong file identifier")
        await refused(s.bot.send_photo(ANN, library.file(b"no picture", "a.png")), library.bad, "IMAGE_PROCESS_FAILED")


async def test_files_of_users_are_received(library: Library) -> None:
    async with scene(library) as s:
        picture = png(200, 100)
        await s.people.say(ANN, "look at this", file=wire.AttachedFile("photo", picture))
        await s.people.say(ANN, file=wire.AttachedFile("voice", b"OggS...", duration_s=4))
        await s.people.say(ANN, file=wire.AttachedFile("document", b"a,b\n1,2\n", "table.csv", "text/csv"))
        _, photo, voice, document = [one.message for one in await s.bot.get_updates()]
        assert photo.caption == "look at this"
        largest = photo.photo[-1]
        assert (largest.width, largest.height, largest.file_size) == (200, 100, len(picture))
        assert await library.download(s.bot, largest.file_id) == picture
        assert voice.voice.mime_type == "audio/ogg"
        assert await library.download(s.bot, voice.voice.file_id) == b"OggS..."
        assert (document.document.file_name, document.document.mime_type) == ("table.csv", "text/csv")
        assert await library.download(s.bot, document.document.file_id) == b"a,b\n1,2\n"
        await refused(s.bot.get_file("nonsense"), library.bad, "invalid file_id")
