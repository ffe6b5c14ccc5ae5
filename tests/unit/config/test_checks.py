"""Checks of texts in settings."""

from __future__ import annotations

import pytest

from everthread.config import checks


@pytest.mark.parametrize(
    ("check", "valid", "invalid"),
    [
        (checks.check_url, "https://example.com/v1", "server.internal"),
        (checks.check_url, "http://127.0.0.1:8080", "http://user:secret@example.com"),
        (checks.check_webhook_url, "https://example.com/hook", "http://example.com/hook"),
        (checks.check_model, "ollama/qwen3", "llama9"),
        (checks.check_variable, "OPENAI_API_KEY", "1KEY"),
        (checks.check_account, "telegram:12345", "99999"),
        (checks.check_platform, "work-bot", "http"),
        (checks.check_proxy, "10.0.0.0/8", "10.0.0.1/8"),
        (checks.check_proxy, "2001:db8::1", "proxy.example"),
        (checks.check_proxy, "unix", "http.sock"),
        (checks.check_zone, "UTC", "Nowhere/City"),
        (checks.check_chat_type, "dm", "room"),
        (checks.check_references, "Bearer ${TOKEN}", "Bearer ${}"),
        (checks.check_text, "plain", "with\x1b[31mcolour"),
        (checks.check_argument, "--flag", "a\0b"),
    ],
)
def test_a_check_returns_a_problem_for_an_invalid_text_only(check: checks.Check, valid: str, invalid: str) -> None:
    assert check(valid) == ""
    assert check(invalid) != ""
    assert invalid not in check(invalid)


def test_references_are_found_and_filled() -> None:
    assert checks.references("${A}-${B_2} $C") == ["A", "B_2"]
    assert checks.fill_references("${A}-${B}", str.lower) == "a-b"
