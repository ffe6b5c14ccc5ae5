"""Pins of MCP tools."""

from __future__ import annotations

from msgspec.structs import replace

from everthread.domain.model import NoteAction, NoteTarget, NoteVersion
from everthread.store.derived_text import WRITTEN
from everthread.store.tool_pins import ToolPin
from everthread.store.unit_of_work import UnitOfWork

PIN = ToolPin("files", "read", "i", "d", '{"description":"Reads about the hive."}', 1.0)
NOTE = NoteVersion("n", 1, "ann", NoteTarget.USER, NoteAction.ADD, "about the hive", "s", None, 1.0)


def test_the_first_pin_of_a_tool_is_kept_until_it_is_replaced(uow: UnitOfWork) -> None:
    assert uow.tool_pins.get("files", "read") is None
    assert uow.tool_pins.add(PIN) == PIN
    changed = replace(PIN, identity="j", digest="e", definition="{}", at=2.0)
    assert uow.tool_pins.add(changed) == PIN
    uow.tool_pins.put(changed)
    assert uow.tool_pins.get("files", "read") == changed


def test_pins_are_removed_by_tool_or_by_server(uow: UnitOfWork) -> None:
    pins = [PIN, replace(PIN, tool="write"), replace(PIN, server="mail")]
    for pin in pins:
        uow.tool_pins.put(pin)
    assert uow.tool_pins.all() == tuple(pins)
    assert uow.tool_pins.remove("files", "delete") == ()
    assert uow.tool_pins.remove("files", "write") == (pins[1],)
    assert uow.tool_pins.remove("files") == (pins[0],)
    assert uow.tool_pins.all() == (pins[2],)


def test_forgetting_a_fact_erases_the_text_of_a_pin_and_keeps_its_hashes(uow: UnitOfWork) -> None:
    uow.tool_pins.put(PIN)
    uow.derived.put_note(NOTE, WRITTEN)
    uow.erasure.scrubber.scrub_fact("n", "ann")
    assert uow.tool_pins.get("files", "read") == replace(PIN, definition="{}")
