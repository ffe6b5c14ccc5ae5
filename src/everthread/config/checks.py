"""Checks of texts in settings. Each returns what is wrong and what to do about it, or an empty text.

No check quotes the text: it may contain a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from everthread.domain.model import SUBAGENT_PLATFORM, ChatType
from everthread.domain.pairing import owner_problem, person_problem, user_problem

Check = Callable[[str], str]

TEXT_CHARS_MAX = 4096
_TEMPLATE_CHARS_MAX = 10_000
_MODEL_CHARS_MAX = 200
_RESERVED = ("cli", "group", "hooks", "http", SUBAGENT_PLATFORM)
_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_REFERENCE = r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}"
# `api_key`, `X-Api-Key`, `GITHUB_TOKEN`, `clientSecret`; but not `api_key_env`, which is the name of a variable.
_SECRET_NAME = (
    "(?i)(?:token|secret|password|passwd|passphrase|credentials?|authorization|cookie|api[_-]?key|(?:^|[_-])key)$"
)
SECRET_VALUE = (
    r"(?<![A-Za-z0-9])(?:sk-[\w-]{16,}|gh[opsur]_\w{30,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|AIza[\w-]{30,})"
)
"""Pattern of the API keys of well-known services."""


def _matches(pattern: str, problem: str) -> Check:
    # `re.fullmatch` compiles a pattern when it is needed: few configurations need them all.
    return lambda text: "" if re.fullmatch(pattern, text) else problem


check_owner = user_problem
check_person = person_problem
check_grantee = owner_problem
check_name = _matches(_NAME, "a name must be 1 to 64 letters, digits, or any of _ . -")
check_variable = _matches("[A-Za-z_][A-Za-z0-9_]{0,127}", "not the name of a variable; write one like OPENAI_API_KEY")
check_tool = _matches("[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}", "not the name of a tool")
check_plugin = _matches(r"[^\s\x00-\x1f\x7f]{1,128}", "not the name of a plugin; everthread plugins list shows them")
check_header = _matches("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}", "not the name of a header")
check_user = _matches(r"\S{1,128}", "not a user id of a platform")
check_account = _matches(r"[a-z][a-z0-9_-]{0,31}:\S{1,128}", "must be PLATFORM:USER, such as telegram:12345")
check_command = _matches("[a-z][a-z_-]{0,31}", "not the name of a command; write it without the slash")
check_transcriber = _matches(rf"{_NAME}/\S{{1,200}}", "not a model; write PROVIDER/MODEL, such as openai/whisper-1")
check_host = _matches("[^ ]+", "not an address; write one like 127.0.0.1")


def check_text(text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        return f"has more than {TEXT_CHARS_MAX} characters; shorten it"
    return "" if text.isprintable() else "has invisible characters; remove them"


def check_template(text: str) -> str:
    return "" if len(text) <= _TEMPLATE_CHARS_MAX else f"has more than {_TEMPLATE_CHARS_MAX} characters; shorten it"


def check_argument(text: str) -> str:
    return "has a NUL character; remove it" if "\0" in text else ""


def check_model(text: str) -> str:
    """Check the shape of PROVIDER/MODEL; the parser also checks that the provider exists."""
    if len(text) <= _MODEL_CHARS_MAX and text.isprintable() and re.fullmatch(rf"{_NAME}/\S+", text):
        return ""
    return "not a model; write PROVIDER/MODEL, such as ollama/qwen3"


def check_zone(text: str) -> str:
    from everthread.domain.errors import BadPolicy  # noqa: PLC0415 - few configurations name a zone
    from everthread.domain.timezones import load_zone  # noqa: PLC0415 - as above

    try:
        load_zone(text)
    except BadPolicy:
        return "unknown time zone; write an IANA name such as Europe/Berlin or UTC"
    return ""


def check_chat_type(text: str) -> str:
    known = [chat_type.value for chat_type in ChatType]
    return "" if text in known else f"not a chat type; use {', '.join(known)}"


def check_platform(text: str) -> str:
    """Check the name of a platform account or of a webhook."""
    if text in _RESERVED:
        return "a reserved name; choose another"
    valid = re.fullmatch("[a-z][a-z0-9_-]{0,31}", text)
    return "" if valid else "a name must be 1 to 32 lowercase letters, digits, - or _"


def check_proxy(text: str) -> str:
    """Check an address or a network of a proxy, or the word for the Unix socket."""
    from ipaddress import ip_network  # noqa: PLC0415 - few configurations name a proxy

    try:
        _ = text == "unix" or ip_network(text)
    except ValueError:
        return "not an address or a network; write one like 127.0.0.1 or 10.0.0.0/8, or unix for the socket"
    return ""


def check_url(url: str) -> str:
    from urllib.parse import parse_qsl, urlsplit  # noqa: PLC0415 - few configurations have a URL

    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "not a URL; write one like https://example.com/v1"
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        return "not an http URL; write one like https://example.com/v1"
    if parts.username or parts.password or any(is_secret_name(name) for name, _ in parse_qsl(parts.query)):
        return 'contains a secret; put the secret into .env and send it with headers = { NAME = "${VARIABLE}" }'
    return ""


def check_webhook_url(text: str) -> str:
    if problem := check_url(text):
        return problem
    local = re.match(r"http://(127\.0\.0\.1|localhost)[:/]", text)
    return "" if text.startswith("https://") or local else "must begin with https://"


# --- Secrets and references ------------------------------------------------------------------------------------------


def is_secret_name(name: str) -> bool:
    """True if a key or a variable of this name usually holds a secret."""
    return re.search(_SECRET_NAME, name) is not None


def check_references(text: str) -> str:
    """Check the `${NAME}` references in a header or a variable."""
    if "\0" in text or "\n" in text or "\r" in text:
        return "has a line break or a NUL character; remove it"
    if "${" in re.sub(_REFERENCE, "", text):
        return "has a ${ without a name; write ${NAME} with letters, digits and _"
    return ""


def references(text: str) -> list[str]:
    """Return the names of the variables that a text refers to."""
    return re.findall(_REFERENCE, text)


def fill_references(text: str, value_of: Callable[[str], str]) -> str:
    """Replace every `${NAME}` in a text."""
    return re.sub(_REFERENCE, lambda found: value_of(found[1]), text)
