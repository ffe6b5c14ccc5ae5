"""`/hooks/NAME`: accept signed messages of other programs, each once."""

from __future__ import annotations

import hashlib
import hmac
import re
from secrets import token_bytes
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from everthread.config.schema import WebhookSettings
from everthread.domain.model import ChatType, Inbound, InboxState, SessionKey, replace_surrogates
from everthread.web.errors import HttpError, stopping
from everthread.web.request import ApiCall, decode_body
from everthread.web.responses import json_response

HOOKS = "hooks"
_RANDOM_SECRET = token_bytes(32)
AGE_S_MAX = 300.0
FIELD_CHARS_MAX = 20_000
TEXT_CHARS_MAX = 200_000
DEPTH_MAX = 16
_FIELD = re.compile(r"\{([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\}")
_TIMESTAMP = re.compile(r"\d{1,12}")


class WebhookAccepted(Struct):
    id: int
    """The id of the message in the inbox."""
    new: bool
    """False for a repeated delivery."""


async def receive(call: ApiCall) -> Response:
    """Send a signed message to the agent."""
    gateway, name = call.gateway, call.request.path_params["name"]
    hook = gateway.settings.gateway.webhooks.get(name)
    secret = gateway.settings.secret(hook.secret_env) if hook is not None else None
    body = await call.body()
    # Verify with a random secret for unknown names, so that neither answer nor timing reveals which names exist.
    signature = verify_signature(call, secret.encode() if secret else _RANDOM_SECRET, body, gateway.clock.now())
    if hook is None or not secret:
        raise _unsigned("Wrong signature.")
    text = f"(From the webhook {name})\n{render_text(hook, body)}"
    if gateway.draining:
        raise stopping()
    key = SessionKey(gateway.settings.profile, HOOKS, ChatType.DM, name)
    owner = hook.owner or gateway.settings.owner
    row, new = await gateway.lifecycle.accept(Inbound(key, owner, text, name, signature))
    gateway.inbound.accepted += new
    if new or row.state is InboxState.WAITING:
        gateway.worker.submit(row, gateway.inbound.busy_mode(HOOKS))
    return json_response(WebhookAccepted(row.id, new), 202)


def verify_signature(call: ApiCall, secret: bytes, body: bytes, now: float) -> str:
    """Verify the signature and its age, and return it: it also identifies a repeated delivery.

    An id in a header would not do: an attacker could replay a delivery under another id.
    """
    if (signature := call.header("x-hub-signature-256")) is not None and call.header("x-signature") is None:
        content = body
    else:
        signature, timestamp = call.header("x-signature") or "", call.header("x-timestamp") or ""
        if not _TIMESTAMP.fullmatch(timestamp) or abs(now - int(timestamp)) > AGE_S_MAX:
            raise _unsigned("X-Timestamp must be the current time in seconds since 1970.")
        content = timestamp.encode() + b"." + body
    expected = hmac.new(secret, content, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(signature.strip().lower().encode(), f"sha256={expected}".encode()):
        raise _unsigned("Wrong signature.")
    return expected


def _unsigned(why: str) -> HttpError:
    return HttpError(401, why, "bad_signature")


def render_text(hook: WebhookSettings, body: bytes) -> str:
    """Fill the template with the body's fields; without a template, return the body."""
    if not hook.template:
        text = replace_surrogates(body.decode("utf-8", "replace"))
    else:
        fields = decode_body(body)
        text = _FIELD.sub(lambda found: _field(fields, found[1].split(".")[:DEPTH_MAX]), hook.template)
    text = replace_surrogates(text.replace("\0", ""))[:TEXT_CHARS_MAX]
    if not text.strip():
        raise HttpError(400, "The message is empty.", "bad_request")
    return text


def _field(value: Any, path: list[str]) -> str:
    """Return the field at a path as text; empty if it is missing."""
    for name in path:
        if isinstance(value, dict):
            value = value.get(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name[:6]) < len(value):  # pyright: ignore[reportUnknownArgumentType]
            value = value[int(name[:6])]  # pyright: ignore[reportUnknownVariableType]
        else:
            return ""
    if value is None:
        return ""
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:FIELD_CHARS_MAX]
