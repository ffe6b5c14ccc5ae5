"""`/hooks/NAME`: accept signed messages of other programs, each once."""

from __future__ import annotations

import hashlib
import hmac
import re
from secrets import token_bytes
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from everthread.config.schema import Settings, WebhookScheme, WebhookSettings
from everthread.domain.clock_rules import is_recent
from everthread.domain.model import (
    HOOKS_PLATFORM,
    ChatType,
    Inbound,
    InboxRow,
    InboxState,
    SessionKey,
    replace_surrogates,
)
from everthread.gateway.rate_limit import hook_bucket
from everthread.web.errors import HttpError
from everthread.web.request import ApiCall, decode_body
from everthread.web.responses import json_response

_RANDOM_SECRET = token_bytes(32)
AGE_S_MAX = 300.0
FIELD_CHARS_MAX = 20_000
TEXT_CHARS_MAX = 200_000
DEPTH_MAX = 16
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_FIELD = re.compile(r"\{([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"sha256=[0-9a-f]{64}")
_HEADERS: tuple[tuple[WebhookScheme, str], ...] = (("everthread", "x-signature"), ("github", "x-hub-signature-256"))


class WebhookAccepted(Struct):
    id: int
    """The id of the message in the inbox."""
    new: bool
    """False for a repeated delivery."""


class Proof(Struct, frozen=True):
    """The signature of a delivery, in a well-formed header."""

    scheme: WebhookScheme
    signature: str
    timestamp: bytes = b""
    """The signed time; GitHub signs none."""

    @property
    def delivery_id(self) -> str:
        """Identifies a repeated delivery.

        An id in a header would not do: an attacker could replay a delivery under another id.
        """
        return f"{self.scheme}:{self.digest}"

    @property
    def digest(self) -> str:
        return self.signature.removeprefix("sha256=")


async def receive(call: ApiCall) -> Response:
    """Send a signed message to the agent."""
    gateway, name = call.gateway, call.request.path_params["name"]
    proof = read_proof(call, name, gateway.clock.now())
    body = await call.body()
    hook = verified_hook(gateway.settings, call.state.webhooks.get(name), proof, body)
    text = f"(From the webhook {name})\n{render_text(hook, body)}"
    owner = hook.owner or gateway.settings.owner
    call.check_limits(hook=name)
    key = SessionKey(gateway.settings.profile, HOOKS_PLATFORM, ChatType.DM, name)
    inbound = Inbound(key, owner, text, name, proof.delivery_id)
    if (known := await _accepted_before_upgrade(call, inbound, proof)) is not None:
        row, new = known, False
    else:
        row, new = await gateway.lifecycle.accept(inbound)
    gateway.inbound.accepted += new
    if not new:
        gateway.rate_limiter.refund(hook_bucket(name))
    if new or row.state is InboxState.WAITING:
        gateway.worker.submit(row, gateway.inbound.busy_mode(HOOKS_PLATFORM))
    return json_response(WebhookAccepted(row.id, new), 202)


async def _accepted_before_upgrade(call: ApiCall, inbound: Inbound, proof: Proof) -> InboxRow | None:
    """Return the row of a delivery that was accepted when ids had no scheme: GitHub's can be replayed at any time."""
    if proof.scheme != "github":
        return None
    old = replace(inbound, update_id=proof.digest)
    return await call.gateway.store.read_inline(lambda uow: uow.inbox.known(old))


def read_proof(call: ApiCall, name: str, now: float) -> Proof:
    """Check all that is known before the body. The answer is the same for every name that a webhook may have."""
    if not _NAME.fullmatch(name):
        raise _unsigned("Wrong signature.")
    headers = call.request.headers
    sent: list[tuple[WebhookScheme, str]] = [
        (scheme, text.strip().lower()) for scheme, header in _HEADERS for text in headers.getlist(header)
    ]
    if len(sent) != 1 or not _SIGNATURE.fullmatch(sent[0][1]):
        raise _unsigned("Send one signature: X-Signature or X-Hub-Signature-256, as sha256= and 64 hex digits.")
    (scheme, signature), timestamp = sent[0], ""
    if scheme == "everthread":
        timestamp = call.header("x-timestamp") or ""
        if not _TIMESTAMP.fullmatch(timestamp) or not is_recent(int(timestamp), now, AGE_S_MAX):
            raise _unsigned("X-Timestamp must be the current time in seconds since 1970.")
    if call.header("content-length") is None and call.header("transfer-encoding") is None:
        raise HttpError(411, "Send Content-Length, or a chunked body.", "length_required")
    return Proof(scheme, signature, timestamp.encode())


def verified_hook(settings: Settings, hook: WebhookSettings | None, proof: Proof, body: bytes) -> WebhookSettings:
    """Return the webhook whose secret signed the delivery.

    For an unknown name, for a disabled webhook, and for another scheme than the webhook's, verify with a random secret,
    so that neither answer nor timing reveals which names exist.
    """
    secret = settings.secret(hook.secret_env) if hook is not None and hook.scheme == proof.scheme else None
    digest = hmac.new(secret.encode() if secret else _RANDOM_SECRET, digestmod=hashlib.sha256)
    if proof.timestamp:
        digest.update(proof.timestamp + b".")
    digest.update(body)
    is_right = hmac.compare_digest(f"sha256={digest.hexdigest()}", proof.signature)
    if hook is None or not secret or not is_right:
        raise _unsigned("Wrong signature.")
    return hook


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
