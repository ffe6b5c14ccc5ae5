"""Bot API methods that send files, and `getFile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from everthread.testing.telegram.errors import bad_request
from everthread.testing.telegram.files import DOWNLOAD_BYTES_MAX
from everthread.testing.telegram.message_methods import MessageMethods
from everthread.testing.telegram.objects import Document, Message, PhotoSize, StoredFile, Voice
from everthread.testing.telegram.params import Params, Upload
from everthread.testing.telegram.state import TelegramState


class FileMethods:
    def __init__(self, world: TelegramState, messages: MessageMethods) -> None:
        self._files = world.files
        self._messages = messages
        self.methods: Mapping[str, Callable[[Params], object]] = {
            "sendphoto": self.send_photo,
            "senddocument": self.send_document,
            "sendvoice": self.send_voice,
            "getfile": self.get_file,
        }

    def send_photo(self, params: Params) -> Message:
        given = self._given(params, "photo")
        if isinstance(given, Upload):
            photo = self._files.photo(given.content)
        elif isinstance(given, PhotoSize):
            photo = (given,)
        else:
            raise bad_request("can't use file of type Document as Photo")
        return self._send(params, lambda message: replace(message, photo=photo))

    def send_document(self, params: Params) -> Message:
        given = self._given(params, "document")
        if isinstance(given, Upload):
            given = self._files.document(given.content, given.name, given.mime)
        if not isinstance(given, Document):
            raise bad_request("can't use file of type Photo as Document")
        return self._send(params, lambda message: replace(message, document=given))

    def send_voice(self, params: Params) -> Message:
        given = self._given(params, "voice")
        if isinstance(given, Upload):
            given = self._files.voice(given.content, params.integer("duration"), given.mime)
        if not isinstance(given, Voice):
            raise bad_request("can't use file of type Document as VoiceNote")
        return self._send(params, lambda message: replace(message, voice=given))

    def get_file(self, params: Params) -> StoredFile:
        stored = self._files.stored(params.text("file_id"))
        if stored.file_size > DOWNLOAD_BYTES_MAX:
            raise bad_request("file is too big")
        return stored

    def _send(self, params: Params, filled: Callable[[Message], Message]) -> Message:
        caption, entities = self._messages.caption_of(params)
        return self._messages.post(
            params, lambda message: filled(replace(message, caption=caption, caption_entities=entities))
        )

    def _given(self, params: Params, name: str) -> Upload | PhotoSize | Document | Voice:
        """Return the uploaded file, also if it is attached under another name, or a stored file by its id."""
        wanted = params.text(name)
        upload = params.uploads.get(wanted.removeprefix("attach://") if wanted else name)
        if upload is not None:
            return upload
        if not wanted:
            raise bad_request(f"there is no {name} in the request")
        if wanted.startswith(("http://", "https://")):
            # The emulator downloads nothing.
            raise bad_request("failed to get HTTP URL content")
        return self._files.described(wanted)
