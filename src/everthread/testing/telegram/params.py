"""Parameters of a call: query string, form, multipart form or JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from everthread.testing.telegram.errors import bad_request

T = TypeVar("T")

_NAME = re.compile(r'[;\s]name="([^"]*)"')
_FILE_NAME = re.compile(r'filename="([^"]*)"')
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Upload:
    name: str
    mime: str
    content: bytes


class Params:
    def __init__(self, values: Mapping[str, Any], uploads: Mapping[str, Upload] | None = None) -> None:
        self.uploads = uploads or {}
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(name) not in (None, "")

    def text(self, name: str) -> str:
        """Value as text; empty if missing."""
        value = self._values.get(name)
        if value is None:
            return ""
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    def integer(self, name: str, default: int = 0) -> int:
        try:
            return int(self.text(name) or default)
        except ValueError:
            return default

    def flag(self, name: str) -> bool:
        return self.text(name).lower() in ("true", "yes", "1")

    def read(self, name: str, kind: type[T], what: str) -> T | None:
        """Decode a parameter that is an object (JSON text in a form). `what` names it in a refusal."""
        if not self.has(name):
            return None
        value = self._values[name]
        try:
            if isinstance(value, str):
                return msgspec.json.decode(value, type=kind)
            return msgspec.convert(value, kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise bad_request(f"can't parse {what}: {error}") from error


def read_params(query: str, content_type: str, body: bytes) -> Params:
    values: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json" and body.strip():
            values |= msgspec.json.decode(body, type=dict[str, Any])
        elif kind == "application/x-www-form-urlencoded":
            values |= dict(parse_qsl(body.decode(), keep_blank_values=True))
        elif kind.startswith("multipart/"):
            return _multipart(values, content_type, body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise bad_request("can't parse the request's body") from error
    return Params(values)


def _multipart(values: dict[str, Any], content_type: str, body: bytes) -> Params:
    uploads: dict[str, Upload] = {}
    boundary = _BOUNDARY.search(content_type)
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode())[1:-1] if boundary else []
    for part in parts:
        head, _, content = part.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        about = headers.get("content-disposition", "")
        name, file_name = _NAME.search(about), _FILE_NAME.search(about)
        if name is None:
            continue
        if file_name is None:
            values[name[1]] = content.decode()
        else:
            mime = headers.get("content-type", "application/octet-stream")
            uploads[name[1]] = Upload(file_name[1].replace("%22", '"'), mime, content)
    return Params(values, uploads)
