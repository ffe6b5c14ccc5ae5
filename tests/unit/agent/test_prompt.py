"""Parts of the system prompt and their order."""

from __future__ import annotations

from everthread.agent.prompt import (
    HOW_TO_REMEMBER,
    IDENTITY,
    SMALL_IDENTITY,
    PromptParts,
    StoredPrompt,
    decode_prompt,
    encode_prompt,
    system_prompt,
)
from everthread.domain.model import Cause
from everthread.ports.model import Prompt, ToolSchema

MEMORY = ToolSchema("memory", "Keep a note.", {"type": "object", "properties": {"content": {"type": "string"}}})


def test_stable_parts_come_first() -> None:
    given = PromptParts("I am Ada.", "Be kind.", "NOTES", ("BLOCK",), "SUMMARY", "Monday")
    prompt = system_prompt(given, [MEMORY], small=False)
    places = [prompt.index(part) for part in ("I am Ada.", "Be kind.", "BLOCK", "NOTES", "Monday", "SUMMARY")]
    assert places == sorted(places)
    assert IDENTITY not in prompt


def test_the_default_identity_is_used_without_a_soul_file() -> None:
    assert system_prompt(PromptParts(), (), small=False).startswith(IDENTITY)


def test_the_memory_tool_is_mentioned_only_if_the_model_has_it() -> None:
    assert HOW_TO_REMEMBER in system_prompt(PromptParts(), [MEMORY], small=False)
    assert HOW_TO_REMEMBER not in system_prompt(PromptParts(), (), small=False)


def test_a_session_after_an_expiry_mentions_it() -> None:
    assert "for a while" in system_prompt(PromptParts(cause=Cause.IDLE), (), small=False)
    assert "with the day" in system_prompt(PromptParts(cause=Cause.DAILY), (), small=False)
    assert "ended" not in system_prompt(PromptParts(cause=Cause.NEW), (), small=False)


def test_a_small_model_gets_a_short_prompt() -> None:
    prompt = system_prompt(PromptParts(rules="Many rules.", notes="NOTES"), (), small=True)
    assert prompt == SMALL_IDENTITY


def test_a_stored_prompt_is_restored_unchanged() -> None:
    frozen = StoredPrompt("stub/one", Prompt("one", "Über alles: 漢字", (MEMORY,)))
    assert decode_prompt(encode_prompt(frozen)) == frozen
    assert encode_prompt(decode_prompt(encode_prompt(frozen))) == encode_prompt(frozen)
