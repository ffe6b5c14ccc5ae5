"""Speech to text at an OpenAI-compatible endpoint: `POST /audio/transcriptions`."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
import msgspec

from everthread.domain.errors import ModelError, ModelRefused, ModelUnauthorized, ModelUnavailable

CALL_S = 40.0
CONNECT_S = 10.0
RESPONSE_BYTES_MAX = 1_000_000


class _TranscriptionResponse(msgspec.Struct):
    text: str


class OpenAICompatTranscriber:
    def __init__(
        self,
        base_url: str,
        model: str,
        key: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        call_s: float = CALL_S,
    ) -> None:
        self._url = f"{base_url}/audio/transcriptions"
        self._model = model
        self._headers = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
        self._call_s = call_s
        self._session: aiohttp.ClientSession | None = None

    async def transcribe(self, audio: bytes, name: str, mime: str) -> str:
        form = aiohttp.FormData({"model": self._model, "response_format": "json"})
        form.add_field("file", audio, filename=name, content_type=mime or "application/octet-stream")
        try:
            async with self._http().post(self._url, data=form, allow_redirects=False) as response:
                status, body = response.status, await response.content.read(RESPONSE_BYTES_MAX)
                while len(body) < RESPONSE_BYTES_MAX and (more := await response.content.readany()):
                    body += more
        # The text of these errors can contain headers, and so the key: report the type only.
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ModelUnavailable(f"it can't be reached ({type(error).__name__})") from None
        if status != 200:
            raise _error(status)
        try:
            return msgspec.json.decode(body, type=_TranscriptionResponse).text.strip()
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ModelUnavailable("its response can't be read") from None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(self._call_s, connect=CONNECT_S),
            )
        return self._session


def _error(status: int) -> ModelError:
    if status in (401, 403):
        return ModelUnauthorized(f"its key is not accepted ({status})")
    if status == 429 or status >= 500:
        return ModelUnavailable(f"it failed ({status})")
    return ModelRefused(f"it refused ({status})")
