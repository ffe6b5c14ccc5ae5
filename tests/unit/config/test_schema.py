"""The declarations of all settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import NODEFAULT

from everthread.config.declaration import PriceTable, ResetPolicyTable, declarations
from everthread.config.parse import read_config
from everthread.config.schema import (
    CompressionSettings,
    DelegationSettings,
    GatewaySettings,
    HttpSettings,
    LimitSettings,
    McpServer,
    MemorySettings,
    PlatformAccount,
    ProviderSettings,
    QuotaSettings,
    ReviewSettings,
    ScheduleSettings,
    Settings,
    TerminalSettings,
    ToolSettings,
    WebhookSettings,
)
from everthread.config.tables import Source, Table
from everthread.domain.errors import BadConfig
from everthread.domain.spend import Price

KINDS = (
    *(
        ProviderSettings,
        LimitSettings,
        DelegationSettings,
        Price,
        MemorySettings,
        ToolSettings,
        McpServer,
        CompressionSettings,
        ReviewSettings,
        ScheduleSettings,
        TerminalSettings,
    ),
    *(GatewaySettings, QuotaSettings, HttpSettings, WebhookSettings, PlatformAccount),
)


NAMED = [
    *(name for kind in (Settings, *KINDS) for name in kind.__struct_fields__),
    *("mcpServers", "reset", "platforms", "chat_types", "group", "mode", "zone", "hour", "idle_minutes", "openai/x"),
]


VALUES = st.recursive(
    st.one_of(
        st.sampled_from(["", "idle", "daily", "local", "openai/x", "http://x", "${A}", "~", "Europe", "UTC"]),
        *(st.text(max_size=5), st.integers(), st.floats(), st.booleans(), st.dates()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMED) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(NAMED), VALUES, max_size=3))
def test_any_values_are_read_or_refused(values: dict[str, Any]) -> None:
    top = Table(Source(Path("x"), ""), (), values)
    told = ""
    try:
        read_config(top, Path("/home"), Path(".env"))
    except BadConfig as error:
        told = str(error)
    assert told == "" or re.match("x:1: .+", told)


def test_the_reference_has_a_table_for_every_declaration() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text()
    for kind in (Settings, *KINDS, PriceTable, ResetPolicyTable):
        if kind is not Price:
            assert f"writes the settings of {kind.__name__}: -->" in page
            assert all(f"\n| `{each.key}` |" in page for each in declarations(kind) if each.setting.help)


def test_every_declaration_can_be_evaluated_and_every_default_is_within_its_bounds() -> None:
    for kind in (Settings, *KINDS, ResetPolicyTable):
        for each in declarations(kind) if kind is not Price else ():
            assert each.setting.help or kind is Settings, each
            if each.type in (int, float) and each.default is not None:
                assert each.setting.low <= each.default <= each.setting.high, each
            if each.choices and each.default not in (None, NODEFAULT):
                assert each.default in each.choices, each
