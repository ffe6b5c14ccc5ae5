"""Files sent by users and by the bot."""

from __future__ import annotations

import hashlib
import mimetypes
import struct

from everthread.testing.telegram.errors import bad_request
from everthread.testing.telegram.objects import Document, PhotoSize, StoredFile, Voice

UPLOAD_BYTES_MAX = 50_000_000
PHOTO_BYTES_MAX = 10_000_000
DOWNLOAD_BYTES_MAX = 20_000_000

_FOLDERS = {"photo": "photos", "document": "documents", "voice": "voice"}


class Files:
    def __init__(self) -> None:
        self._content: dict[str, bytes] = {}
        self._by_path: dict[str, str] = {}
        self._stored: dict[str, StoredFile] = {}
        self._by_id: dict[str, PhotoSize | Document | Voice] = {}

    def photo(self, content: bytes) -> tuple[PhotoSize, ...]:
        """Store a photo in its original size and a smaller one. Telegram keeps several sizes, the largest last."""
        if len(content) > PHOTO_BYTES_MAX:
            raise bad_request(f"file is too big, maximum size is {PHOTO_BYTES_MAX} bytes")
        size = image_size(content)
        if size is None:
            raise bad_request("IMAGE_PROCESS_FAILED")
        width, height = size
        if width + height > 10_000 or width > 20 * height or height > 20 * width:
            raise bad_request("PHOTO_INVALID_DIMENSIONS")
        whole = self._store("photo", content, ".jpg")
        thumb = self._store("photo", content, ".jpg")
        scale = min(1.0, 90 / max(width, height))
        sizes = (
            PhotoSize(
                thumb.file_id,
                thumb.file_unique_id,
                max(1, round(width * scale)),
                max(1, round(height * scale)),
                thumb.file_size,
            ),
            PhotoSize(whole.file_id, whole.file_unique_id, width, height, whole.file_size),
        )
        for one in sizes:
            self._by_id[one.file_id] = one
        return sizes

    def document(self, content: bytes, name: str, mime: str) -> Document:
        dot, suffix = name.rpartition(".")[1:]
        kept = self._store("document", content, f".{suffix}" if dot else "")
        mime = mimetypes.guess_type(name)[0] or mime or "application/octet-stream"
        made = Document(kept.file_id, kept.file_unique_id, kept.file_size, name or None, mime)
        self._by_id[kept.file_id] = made
        return made

    def voice(self, content: bytes, duration_s: int, mime: str) -> Voice:
        kept = self._store("voice", content, ".oga")
        made = Voice(kept.file_id, kept.file_unique_id, duration_s, kept.file_size, mime or "audio/ogg")
        self._by_id[kept.file_id] = made
        return made

    def find(self, file_id: str) -> PhotoSize | Document | Voice:
        """Look up a file by its id."""
        if file_id not in self._by_id:
            raise bad_request("wrong file identifier/HTTP URL specified")
        return self._by_id[file_id]

    def stored(self, file_id: str) -> StoredFile:
        if file_id not in self._stored:
            raise bad_request("invalid file_id" if file_id else "file_id not specified")
        return self._stored[file_id]

    def content(self, file_id: str) -> bytes:
        return self._content[self.stored(file_id).file_id]

    def read_path(self, path: str) -> bytes | None:
        return self._content.get(self._by_path.get(path, ""))

    def _store(self, kind: str, content: bytes, suffix: str) -> StoredFile:
        if not content:
            raise bad_request("file must be non-empty")
        if len(content) > UPLOAD_BYTES_MAX:
            raise bad_request("file is too big")
        number = len(self._stored)
        path = f"{_FOLDERS[kind]}/file_{number}{suffix}"
        unique = hashlib.sha256(content).hexdigest()[:15]
        kept = StoredFile(f"EmuFile{kind.capitalize()}-{number:06d}-{unique}", f"AQAD{unique}", len(content), path)
        self._stored[kept.file_id] = kept
        self._content[kept.file_id] = content
        self._by_path[path] = kept.file_id
        return kept


def image_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, WebP or JPEG; None for other content."""
    if content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) >= 24:
        return struct.unpack(">II", content[16:24])
    if content[:6] in (b"GIF87a", b"GIF89a") and len(content) >= 10:
        return struct.unpack("<HH", content[6:10])
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP" and len(content) >= 30:
        return _webp_size(content)
    return _jpeg_size(content) if content.startswith(b"\xff\xd8") else None


def _webp_size(content: bytes) -> tuple[int, int] | None:
    match content[12:16]:
        case b"VP8X":
            return int.from_bytes(content[24:27], "little") + 1, int.from_bytes(content[27:30], "little") + 1
        case b"VP8 ":
            width, height = struct.unpack("<HH", content[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(content[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            return None


def _jpeg_size(content: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", content[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None
