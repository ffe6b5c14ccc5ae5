"""Settings: what holds, where it comes from, and that every complaint names the line it is about."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.config import dotenv
from everthread.config.declaration import PriceTable, ResetPolicyTable, declarations
from everthread.config.environment import debugging
from everthread.config.line_numbers import line_in_json, line_in_toml
from everthread.config.parse import read_config
from everthread.config.schema import GatewaySettings, HttpSettings, PlatformAccount, WebhookSettings
from everthread.config.settings import (
    CompressionSettings,
    DelegationSettings,
    LimitSettings,
    McpServer,
    MemorySettings,
    Price,
    ProviderSettings,
    ReviewSettings,
    ScheduleSettings,
    Settings,
    TerminalSettings,
    ToolSettings,
    default_model,
    home_paths,
    load,
)
from everthread.config.tables import Source, Table
from everthread.domain.errors import BadConfig
from everthread.domain.model import ChatType
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy

SECRET = "sk-ant-0123456789abcdefghij"


def written(
    home: Path, config: str | None = None, *, env: str | None = None, mcp: str | None = None, mode: int = 0o600
) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    for name, text in (("config.toml", config), (".env", env), ("mcp.json", mcp)):
        if text is not None:
            (home / name).write_bytes(text.encode())
            (home / name).chmod(mode)
    return home


def loaded(home: Path, config: str | None = None, *, environ: dict[str, str] | None = None, **files: Any) -> Settings:
    return load(str(written(home, config, **files)), environ or {})


def complaint(home: Path, config: str | None = None, **more: Any) -> str:
    with pytest.raises(BadConfig) as refusal:
        loaded(home, config, **more)
    text = str(refusal.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


# --- Without any file ------------------------------------------------------------------------------------------------


def test_a_home_is_enough(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    assert settings == loaded(tmp_path)
    assert settings == loaded(tmp_path, "")
    assert (settings.owner, settings.profile, settings.model, settings.fallback_models) == ("me", "main", "", ())
    assert (settings.limits, settings.memory, settings.tools) == (LimitSettings(), MemorySettings(), ToolSettings())
    assert settings.reset == ResetPolicies(ResetPolicy())
    assert settings.db_path == tmp_path / "everthread.db"
    assert settings.config_path == tmp_path / "config.toml"
    assert settings.env_path == tmp_path / ".env"
    assert settings.secret("ANYTHING") is None
    assert settings.warnings == ()


def test_loading_makes_nothing(tmp_path: Path) -> None:
    load(str(tmp_path / "not" / "there"), {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "0"])
def test_debugging_is_off_unless_it_is_on(value: str) -> None:
    assert not debugging({"EVERTHREAD_DEBUG": value})
    assert debugging({"EVERTHREAD_DEBUG": "1"})


# --- A whole file ----------------------------------------------------------------------------------------------------

WHOLE = """
owner = "ada"
profile = "work"
model = "mine/big"
auxiliary_model = "ollama/qwen3"
fallback_models = ["openai/x", "openrouter/anthropic/claude-sonnet-4.5"]

[providers.mine]
base_url = "https://models.example.com/v1/"
api_key_env = "MINE_KEY"
headers = { X-Team = "blue", Authorization = "Bearer ${MINE_KEY}" }
tools = false
context_tokens = 32000

[providers.openai]
api_key_env = "WORK_OPENAI_KEY"

[limits]
iterations = 5
turn_s = 60
output_tokens = 100
spend_per_day = 1.5

[prices."mine/big"]
input = 3
output = 15.0
cached = 0.3

[memory]
recall_s = 0.5
recall_tokens = 10
notes_chars = 20
user_chars = 30

[tools]
allow = ["shell", "mcp:files.write"]

[mcpServers.files]
command = "npx"
args = ["-y", "files\\n"]
env = { TOKEN = "${FILES_TOKEN}" }
cwd = "work"
timeout_s = 5
trust = true

[mcpServers.web]
url = "https://mcp.example.com/"
headers = { Authorization = "Bearer ${WEB_TOKEN}" }
disabled = true

[reset]
mode = "both"
idle_minutes = 30
hour = 5
zone = "Europe/Berlin"

[reset.platforms.telegram]
mode = "none"

[reset.chat_types.group]
mode = "idle"
"""


def test_a_whole_file_is_understood(tmp_path: Path) -> None:
    settings = loaded(tmp_path, WHOLE)
    assert (settings.owner, settings.profile) == ("ada", "work")
    assert (settings.model, settings.auxiliary_model) == ("mine/big", "ollama/qwen3")
    assert settings.fallback_models == ("openai/x", "openrouter/anthropic/claude-sonnet-4.5")
    assert settings.providers["mine"] == ProviderSettings(
        base_url="https://models.example.com/v1",
        api_key_env="MINE_KEY",
        headers={"X-Team": "blue", "Authorization": "Bearer ${MINE_KEY}"},
        tools=False,
        context_tokens=32_000,
    )
    assert settings.providers["openai"] == ProviderSettings(
        base_url="https://api.openai.com/v1", api_key_env="WORK_OPENAI_KEY"
    )
    assert settings.providers["anthropic"].kind == "anthropic"
    assert settings.limits == LimitSettings(5, 60.0, 100, 1.5)
    assert settings.prices == {"mine/big": Price(3.0, 15.0, 0.3)}
    assert settings.memory == MemorySettings(0.5, 10, 20, 30)
    assert settings.tools == ToolSettings(("shell", "mcp:files.write"))
    assert settings.mcp_servers == {
        "files": McpServer(
            "npx", ("-y", "files\n"), {"TOKEN": "${FILES_TOKEN}"}, tmp_path / "work", timeout_s=5.0, trust=True
        ),
        "web": McpServer(
            url="https://mcp.example.com/", headers={"Authorization": "Bearer ${WEB_TOKEN}"}, disabled=True
        ),
    }
    assert settings.reset == ResetPolicies(
        ResetPolicy(1800.0, 5, "Europe/Berlin"),
        {"telegram": ResetPolicy()},
        {ChatType.GROUP: ResetPolicy(86_400.0)},
    )


@pytest.mark.parametrize("written_as", [WHOLE.replace("\n", "\r\n"), "\ufeff" + WHOLE])
def test_a_file_from_another_editor_is_the_same(written_as: str, tmp_path: Path) -> None:
    assert loaded(tmp_path / "a", written_as).limits == loaded(tmp_path / "b", WHOLE).limits


# --- Complaints ------------------------------------------------------------------------------------------------------

WRONG = [
    # Keys
    ('\nmodle = "x"', 2, "Unknown setting 'modle'. Did you mean model?"),
    ("[limits]\n\n\nturns = 1", 4, "Unknown setting 'limits.turns'. Did you mean limits.turn_s?"),
    ("# model\nlimits.turns = 1", 2, "Unknown setting 'limits.turns'. Did you mean limits.turn_s?"),
    ("limits = { turn_s = 5,\tturns = 1 }", 1, "Unknown setting 'limits.turns'. Did you mean limits.turn_s?"),
    ('x = "y"\n[zzz]', 1, "Unknown setting 'x'. Use one of: owner, profile, model"),
    ("MODEL = 'ollama/x'", 1, "Unknown setting 'MODEL'. Did you mean model?"),
    (
        "[providers.openai]\nurl = 'http://x'",
        2,
        "Unknown setting 'providers.openai.url'. Did you mean providers.openai.base_url?",
    ),
    ("[mcpserver.x]", 1, "Unknown setting 'mcpserver'. Did you mean mcpServers?"),
    ("[reset]\nminutes = 3", 2, "Unknown setting 'reset.minutes'. Did you mean reset.idle_minutes?"),
    ("[reset.platforms.telegram]\nmodes = 'idle'", 2, "Did you mean reset.platforms.telegram.mode?"),
    ("[[limits]]\n[[limits]]", 1, "limits: expected a table, found an array"),
    # Types
    ("\n\nmodel = 5", 3, "model: expected a string, found a whole number"),
    ("owner = 2020-01-01", 1, "owner: expected a string, found a date or time"),
    ("limits = 5", 1, "limits: expected a table, found a whole number"),
    ('[limits]\nturn_s = "60"', 2, "limits.turn_s: expected a number, found a string"),
    ("[limits]\niterations = true", 2, "limits.iterations: expected a whole number, found true or false"),
    ("[limits]\nturn_s = true", 2, "limits.turn_s: expected a number, found true or false"),
    ("[limits]\niterations = 1.5", 2, "limits.iterations: expected a whole number, found a number with a fraction"),
    ("[tools]\nallow = 'shell'", 2, "tools.allow: expected an array of strings, found a string"),
    ("[tools]\nallow = [\n'a', # ]\n[1],\n]", 4, "tools.allow[1]: expected a string, found an array"),
    ("[providers.openai]\ntools = 'no'", 2, "providers.openai.tools: expected true or false, found a string"),
    ("[providers.openai.headers]\nA = 'b'\nC = 1", 3, "providers.openai.headers.C: expected a string"),
    # Ranges
    ("[limits]\niterations = 0", 2, "limits.iterations: out of range; give a whole number from 1 to 10000"),
    ("[limits]\nturn_s = nan", 2, "limits.turn_s: out of range; give a number from 1 to 86400"),
    ("[limits]\nturn_s = inf", 2, "limits.turn_s: out of range"),
    ("[limits]\nspend_per_day = -0.01", 2, "limits.spend_per_day: out of range; give a number from 0 to 1000000"),
    (f"[limits]\niterations = 0x{'f' * 9000}", 2, "limits.iterations: out of range"),
    ("[memory]\nrecall_s = 0", 2, "memory.recall_s: out of range; give a number from 0.01 to 60"),
    # Who is who
    ("[gateway.links]\nann = ['a:1']\nbea = ['b:2', 'a:1']", 3, "gateway.links.bea: a:1 belongs to ann"),
    ("[gateway.links]\n'group:a' = ['a:1']", 2, "a name that begins with group: is a group's"),
    ("[gateway.links]\nann = ['telegram']", 2, "must be PLATFORM:USER, such as telegram:12345"),
    ("[platforms.group]\nallow_all = true", 1, "a reserved name; choose another"),
    ("[platforms.telegram]\nallow_all = true\nallow = ['1']", 2, "admits everybody, so `allow` has no effect"),
    # Names and models
    ("owner = ''", 1, "owner: must have 1 to 256 characters"),
    ("owner = 'a\tb'", 1, "owner: has characters that can't be seen"),
    ("profile = '../x'", 1, "profile: a name must be 1 to 64 letters"),
    ("model = 'gpt'", 1, "model: not a model; write PROVIDER/MODEL"),
    ("model = 'openai/'", 1, "model: not a model"),
    (f"model = 'openai/{'x' * 300}'", 1, "model: not a model"),
    ("model = 'opnai/gpt'", 1, "model: unknown provider 'opnai'. Did you mean openai?"),
    ("fallback_models = [\n  'ollama/a',\n  'olama/b',\n]", 3, "fallback_models[1]: unknown provider 'olama'"),
    # Providers
    ("[providers.x]\ntools = true", 1, 'providers.x: has no URL; add base_url = "https://..."'),
    ("[providers.openai]\nkind = 'openai'", 2, "must be openai_compat, anthropic or local"),
    ("[providers.x]\nbase_url = 'ftp://x'", 2, "providers.x.base_url: not an http URL"),
    ("[providers.x]\nbase_url = 'http://x:port'", 2, "providers.x.base_url: not a URL"),
    ("[providers.x]\nbase_url = 'http://[x'", 2, "providers.x.base_url: not a URL"),
    ("[providers.x]\nbase_url = 'http:///v1'", 2, "providers.x.base_url: not an http URL"),
    ("[providers.'a/b']\nbase_url = 'http://x'", 1, 'providers."a/b": a name must be'),
    ("[providers.openai]\napi_key_env = 'MY KEY'", 2, "api_key_env: not the name of a variable"),
    ("[providers.openai.headers]\n'a b' = 'x'", 2, 'providers.openai.headers."a b": not the name of a header'),
    ('[providers.openai.headers]\na = "x\\r\\nb: y"', 2, "has a line break or a NUL character"),
    ("[providers.openai.headers]\na = '${'", 2, "has a ${ without a name"),
    ("[providers.openai]\ncontext_tokens = 1", 2, "providers.openai.context_tokens: out of range"),
    # Prices
    ("[prices.'openai/x']\ninput = 1", 1, "prices.\"openai/x\": 'output' is missing"),
    ("[prices.'open/x']\ninput = 1\noutput = 1", 1, "unknown provider 'open'. Did you mean openai?"),
    ("[prices]\n'openai/x' = { input = 1, output = '2' }", 2, 'prices."openai/x".output: expected a number'),
    # Servers of tools
    ("[mcpServers.x]\nargs = []", 1, "mcpServers.x: has neither a command nor a url"),
    ("[mcpServers.x]\ncommand = 'a'\nurl = 'http://x'", 1, "mcpServers.x: has both a command and a url"),
    ("[mcpServers.x]\nurl = 'http://x'\nenv = { A = 'b' }", 3, "mcpServers.x.env: has no effect beside a url"),
    ("[mcpServers.x]\ncommand = 'a'\nheaders = { A = 'b' }", 3, "headers: has no effect beside a command"),
    ("[mcpServers.x]\ncommand = 'a'\ntype = 'http'", 3, "mcpServers.x.type: must be stdio beside a command"),
    ("[mcpServers.x]\ncommand = 'a'\nargs = [\"\\u0000\"]", 3, "mcpServers.x.args[0]: has a NUL character"),
    ("[mcpServers.x]\ncommand = 'a'\nenv.A-B = ''", 3, "mcpServers.x.env.A-B: not the name of a variable"),
    ("[mcpServers.x]\ncommand = 'a'\ncwd = '~nobody-of-that-name/x'", 3, "mcpServers.x.cwd: begins with ~"),
    ("[mcpServers.x]\ncommand = 'a'\ntimeout_s = 0", 3, "mcpServers.x.timeout_s: out of range"),
    # Resets
    ("[reset]\nmode = 'weekly'", 2, "reset.mode: must be none, idle, daily or both"),
    ("[reset]\nhour = 4", 2, 'reset.hour: has no effect with mode = "none"; set mode to "daily" or "both"'),
    ("[reset]\nmode = 'daily'\nidle_minutes = 9", 3, 'reset.idle_minutes: has no effect with mode = "daily"'),
    ("[reset]\nmode = 'daily'\nhour = 24", 3, "reset.hour: out of range; give a whole number from 0 to 23"),
    ("[reset]\nmode = 'daily'\nzone = 'Mars/Base'", 3, "reset.zone: unknown time zone"),
    ("[reset.chat_types.grop]\nmode = 'idle'", 1, "reset.chat_types.grop: not a chat type; use "),
    # Not TOML
    ("model = 'a'\nmodel = 'b'", 2, "Cannot overwrite a value"),
    ("\n\nmodel", 3, "Expected '=' after a key"),
    ("a = [\n1,\n", 2, "Invalid value, at the end of the file"),
    ('a = "x', 1, "Illegal character|Unterminated string|Expected '\"'"),
]


@pytest.mark.parametrize(("text", "line", "what"), WRONG)
def test_a_mistake_is_told_with_its_line(text: str, line: int, what: str, tmp_path: Path) -> None:
    told = complaint(tmp_path, text)
    place = f"{tmp_path / 'config.toml'}:{line}: "
    assert told.startswith(place), told
    rest = told.removeprefix(place)
    assert any(part in rest for part in what.split("|")), told


def test_a_thousand_entries_are_the_limit_where_each_is_something_to_start_or_to_call(tmp_path: Path) -> None:
    def many(table: str, entry: str, count: int) -> str:
        return f"[{table}]\n" + "".join(f"n{n} = {entry}\n" for n in range(count))

    for table, entry in (("providers", "{base_url = 'http://x'}"), ("mcpServers", "{command = 'x'}")):
        assert f"{table}.n1000: more than 1000 entries" in complaint(tmp_path, many(table, entry, 1001))
    unlimited = {"gateway.links": "[]", "platforms": "{}", "gateway.webhooks": "{secret_env = 'S'}"}
    text = "".join(many(table, entry, 1001) for table, entry in unlimited.items())
    settings = loaded(tmp_path, text)
    assert len(settings.gateway.links) == len(settings.platforms) == len(settings.gateway.webhooks) == 1001


@pytest.mark.parametrize("name", ["", "openai/" + "x" * 200])
def test_the_name_of_a_transcription_model_may_be_long_or_empty(name: str, tmp_path: Path) -> None:
    assert loaded(tmp_path, f"[gateway]\ntranscription_model = '{name}'").gateway.transcription_model == name
    assert "not a model" in complaint(tmp_path, f"[gateway]\ntranscription_model = 'openai/{'x' * 201}'")


def test_a_mistake_far_down_has_its_own_line(tmp_path: Path) -> None:
    noise = 'allow = [ "a", # [limits]\n "b" ] # turns = 1\n'
    text = f'owner = """\nx""" # """\n[tools]\n{noise}[mcpServers.\'a.b\']\ncommand = \'#\'\n[limits]\nturns = 1'
    assert ":9: Unknown setting 'limits.turns'" in complaint(tmp_path, text)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"x" * 10_000_000, "has more than 1000000 bytes"),
        (b"a = 1\nb\0", ":2: not a text file"),
        (b"# caf\xe9\n", ":1: not UTF-8"),
        (b"a = 1\n\xff\xfe", ":2: not UTF-8"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"1" * 10_000, "config.toml: "),
    ],
)
@pytest.mark.parametrize("name", ["config.toml", "mcp.json", ".env"])
def test_a_file_that_is_no_configuration_is_one_line(name: str, content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content if name == "config.toml" else content.replace(b"a = ", b""))
    told = complaint(tmp_path)
    assert told.startswith(str(tmp_path / name))
    assert name != "config.toml" or what in told


def test_a_folder_or_a_pipe_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    assert "config.toml: not a regular file" in complaint(tmp_path)
    (tmp_path / "config.toml").rmdir()
    os.mkfifo(tmp_path / "config.toml")
    assert "config.toml: not a regular file" in complaint(tmp_path)


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    home = written(tmp_path, "", mode=0)
    if os.access(home / "config.toml", os.R_OK):
        pytest.skip("whoever runs this may read everything")
    assert "config.toml: Permission denied; make it readable" in complaint(tmp_path)


def test_a_link_to_nowhere_is_as_no_file(tmp_path: Path) -> None:
    for name in ("config.toml", ".env", "mcp.json"):
        (tmp_path / name).symlink_to("nowhere")
    assert loaded(tmp_path) == Settings(tmp_path)


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
    *(GatewaySettings, HttpSettings, WebhookSettings, PlatformAccount),
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
def test_no_values_do_worse_than_be_refused(values: dict[str, Any]) -> None:
    top = Table(Source(Path("x"), "", lambda text, keys: 7), (), values)
    told = ""
    try:
        read_config(top, Path("/home"), Path(".env"))
    except BadConfig as error:
        told = str(error)
    assert told == "" or re.match("x:7: .+", told)


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
            if each.choices and each.default is not None:
                assert each.default in each.choices, each


# --- Secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "where"),
    [
        ("\n[providers.openai]\napi_key = 'KEY'", 3, "put OPENAI_API_KEY=... into {env} and remove it here"),
        ("\n[openai]\napiKey = 'KEY'", 3, "put OPENAI_API_KEY=... into {env}"),
        ("[providers.mine]\napi_key = 'KEY'", 2, 'MINE_API_KEY=... into {env} and write api_key_env = "MINE_API_KEY"'),
        ("api_key = 'KEY'", 1, "put API_KEY=... into {env}"),
        ("model = 'KEY'", 1, "put MODEL=... into {env}"),
        ("[providers.openai]\napi_key_env = 'KEY'", 2, "put OPENAI_API_KEY=... into {env}"),
        ("[providers.x.headers]\nAuthorization = 'Bearer KEY'", 2, 'write "${{X_API_KEY}}" here'),
        ("[mcpServers.x.env]\nGITHUB_TOKEN = 'KEY'", 2, 'GITHUB_TOKEN=... into {env} and write "${{GITHUB_TOKEN}}"'),
        ("[mcpServers.x]\nargs = [\n'--key',\n'KEY']", 4, "into {env}"),
        ("[tools]\nallow = ['KEY']", 2, "into {env}"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_printed(text: str, line: int, where: str, tmp_path: Path) -> None:
    told = complaint(tmp_path, text.replace("KEY", SECRET))
    assert told.startswith(f"{tmp_path / 'config.toml'}:{line}: ")
    assert "looks like a secret" in told
    assert where.format(env=tmp_path / ".env") in told
    assert SECRET not in told


@pytest.mark.parametrize("name", ["password", "X-Api-Key", "GITHUB_TOKEN", "clientSecret", "authorization", "key"])
def test_what_is_named_like_a_secret_is_one_whatever_it_looks_like(name: str, tmp_path: Path) -> None:
    assert "looks like a secret" in complaint(tmp_path, f"[mcpServers.x.env]\n{name} = 'hunter2'")
    assert "hunter2" not in complaint(tmp_path, f"[mcpServers.x.env]\n{name} = 'hunter2'")


def test_a_secret_in_an_address_is_refused_and_not_printed(tmp_path: Path) -> None:
    for url in ("https://ada:hunter2@x/v1", "https://x/?api_key=hunter2", "https://x/?a=b&token=hunter2"):
        for text in (f"[mcpServers.x]\nurl = '{url}'", f"[providers.x]\nbase_url = '{url}'"):
            told = complaint(tmp_path, text)
            assert ":2: " in told
            assert "contains a secret" in told
            assert "hunter2" not in told
    told = complaint(tmp_path, "", environ={"OPENAI_BASE_URL": "https://ada:hunter2@x/v1"})
    assert told.startswith("OPENAI_BASE_URL: contains a secret")
    assert "hunter2" not in told


def test_secrets_are_the_environments_then_those_of_the_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path, env="A=file\nB=file\nC=", environ={"A": "environment", "B": ""})
    assert [settings.secret(name) for name in "ABCD"] == ["environment", "file", None, None]


def test_nothing_shows_a_secret(tmp_path: Path) -> None:
    config = "[mcpServers.x]\ncommand = 'a'\nargs = ['hunter2']\nenv = { PIN = 'hunter2' }"
    settings = loaded(tmp_path, config, env=f"A={SECRET}", environ={"B": SECRET})
    assert settings.secret("A") == settings.secret("B") == SECRET
    for shown in (repr(settings), str(settings), repr(settings.variables), f"{settings.mcp_servers}"):
        assert SECRET not in shown
        assert "hunter2" not in shown


def test_references_are_filled_in_when_they_are_needed(tmp_path: Path) -> None:
    settings = loaded(tmp_path, env="A=one\nB=${A}")
    assert settings.expand_references({"x": "Bearer ${A}-${B}", "y": "$A {A}"}) == {
        "x": "Bearer one-${A}",
        "y": "$A {A}",
    }
    with pytest.raises(BadConfig, match=re.escape(f"C is not set; put C=... into {tmp_path / '.env'}")):
        settings.expand_references({"x": "${C}"})


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_an_env_file_that_others_can_read_is_warned_of(mode: int, warned: bool, tmp_path: Path) -> None:
    settings = loaded(tmp_path, env="A=b", mode=mode)
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == mode
    assert bool(settings.warnings) is warned
    assert all(f"chmod 600 {tmp_path / '.env'}" in warning for warning in settings.warnings)


# --- The file .env ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=b", "b"),
        ("  export\tA = b  ", "b"),
        ("A=b # remark", "b"),
        ("A=b#c", "b#c"),
        ("A=#c", None),
        ("A='b # c' # remark", "b # c"),
        ("A='b\\n'", "b\\n"),
        (r'A="b\n\"c\" \\ \$d"', 'b\n"c" \\ $d'),
        ('A="b=c"#remark', "b=c"),
        ("\ufeffA=b\r\nC=d\r\n", "b"),
        ("# A=c\n\nA=b", "b"),
        ("A=c\nA=b", "b"),
        ("A=", None),
        ('A=""', None),
        ("A=b=c==", "b=c=="),
        ("A=日本", "日本"),
    ],
)
def test_an_env_file_is_read_as_people_write_it(text: str, value: str | None, tmp_path: Path) -> None:
    assert loaded(tmp_path, env=text).secret("A") == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"A=b\n{SECRET}", 2),
        (f"\n\n=\t{SECRET}", 3),
        (f"1A={SECRET}", 1),
        (f"A B={SECRET}", 1),
        (f"# x\r\nA='{SECRET}", 2),
        (f'A="{SECRET}" more', 1),
        (f'A="{SECRET}\\"', 1),
        ("export A", 1),
    ],
)
def test_a_broken_line_of_an_env_file_is_named_and_not_printed(text: str, line: int, tmp_path: Path) -> None:
    told = complaint(tmp_path, env=text)
    assert told.startswith(f"{tmp_path / '.env'}:{line}: ")
    assert SECRET not in told


@given(st.text(max_size=200))
def test_no_env_file_does_worse_than_be_refused(text: str) -> None:
    told = ""
    try:
        dotenv.parse(Path("x"), text)
    except BadConfig as error:
        told = str(error)
    assert told == "" or re.match(r"x:\d+: ", told)


# --- What goes before what -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, {"EVERTHREAD_OWNER": "group:telegram:-100"}])
def test_whoever_uses_it_is_no_group(environ: dict[str, str], tmp_path: Path) -> None:
    home = str(written(tmp_path, f"owner = '{'ann' if environ else 'group:telegram:-100'}'"))
    with pytest.raises(BadConfig, match="begins with group: is a group's"):
        load(home, environ)


@pytest.mark.parametrize("name", ["owner", "profile", "model", "auxiliary_model"])
def test_a_flag_goes_before_the_environment_and_that_before_the_files(name: str, tmp_path: Path) -> None:
    def value(place: str) -> str:
        return f"ollama/{place}" if "model" in name else place

    variable = f"EVERTHREAD_{name.upper()}"
    home = str(written(tmp_path, f"{name} = '{value('file')}'"))
    environ = {variable: value("environment")}

    def of(environ: dict[str, str], **flags: str) -> str:
        return getattr(load(home, environ, **flags), name)

    assert of({}) == value("file")
    assert of({variable: ""}) == value("file")
    written(tmp_path, env=f"{variable}={value('dotenv')}")
    assert of({}) == value("dotenv")
    assert of(environ) == value("environment")
    assert of(environ, **{name: ""}) == value("environment")
    assert of(environ, **{name: value("flag")}) == value("flag")


def test_a_mistake_in_the_environment_or_a_flag_is_named(tmp_path: Path) -> None:
    told = complaint(tmp_path, environ={"EVERTHREAD_MODEL": "opnai/x"})
    assert told == "EVERTHREAD_MODEL: unknown provider 'opnai'. Did you mean openai?"
    with pytest.raises(BadConfig, match=r"^--auxiliary-model: not a model"):
        load(str(tmp_path), {}, auxiliary_model="x")
    assert complaint(tmp_path, environ={"OLLAMA_HOST": "http://["}).startswith("OLLAMA_HOST: not a URL")


def test_a_model_may_be_of_a_provider_of_the_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "[providers.x]\nbase_url = 'http://x'", environ={"EVERTHREAD_MODEL": "x/y"})
    assert settings.model == "x/y"


@pytest.mark.parametrize(
    ("variable", "value", "provider", "url"),
    [
        ("OPENAI_BASE_URL", "http://proxy/v1/", "openai", "http://proxy/v1"),
        ("ANTHROPIC_BASE_URL", "http://proxy", "anthropic", "http://proxy"),
        ("OLLAMA_HOST", "box", "ollama", "http://box:11434/v1"),
        ("OLLAMA_HOST", "box:80", "ollama", "http://box:80/v1"),
        ("OLLAMA_HOST", ":8000", "ollama", "http://127.0.0.1:8000/v1"),
        ("OLLAMA_HOST", "0.0.0.0", "ollama", "http://127.0.0.1:11434/v1"),
        ("OLLAMA_HOST", "https://box/ollama/", "ollama", "https://box/ollama/v1"),
        ("OLLAMA_HOST", "http://box:1/v1", "ollama", "http://box:1/v1"),
    ],
)
def test_an_address_may_come_from_the_environment(
    variable: str, value: str, provider: str, url: str, tmp_path: Path
) -> None:
    config = f"[providers.{provider}]\nbase_url = 'http://file'"
    settings = loaded(tmp_path, config, environ={variable: value})
    assert settings.providers[provider].base_url == url
    assert loaded(tmp_path, config).providers[provider].base_url == "http://file"


def test_the_default_model_is_local_unless_there_is_a_key(tmp_path: Path) -> None:
    assert default_model(Settings(tmp_path)) == "local/smollm2"
    assert default_model(loaded(tmp_path, "model = 'openai/x'", environ={"ANTHROPIC_API_KEY": "x"})) == "openai/x"
    keys = ["GEMINI_API_KEY", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"]
    written(tmp_path, "")
    for count, name in enumerate(keys, start=1):
        settings = loaded(tmp_path, environ=dict.fromkeys(keys[:count], SECRET))
        with pytest.raises(BadConfig) as refusal:
            default_model(settings)
        provider = name.split("_")[0].lower()
        assert str(refusal.value) == (
            f"{name} is set, but no model is chosen; put this line at the top of {tmp_path / 'config.toml'}: "
            f'model = "{provider}/MODEL"'
        )


# --- Where the files are ---------------------------------------------------------------------------------------------


def test_xdg_is_looked_at_first_file_by_file(tmp_path: Path) -> None:
    home, xdg = tmp_path / "data" / "everthread", tmp_path / "config" / "everthread"
    environ = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    written(home, "owner = 'home'", env="A=home")
    assert load(None, environ).owner == "home"
    written(xdg, "owner = 'xdg'")
    settings = load(None, environ)
    assert (settings.owner, settings.secret("A")) == ("xdg", "home")
    assert (settings.home, settings.config_path, settings.env_path) == (home, xdg / "config.toml", home / ".env")
    assert settings.mcp_path == xdg / "mcp.json", "where it would be made"
    assert settings.db_path == home / "everthread.db"


def test_a_home_that_was_named_holds_everything(tmp_path: Path) -> None:
    written(tmp_path / "config" / "everthread", "owner = 'xdg'", env="A=xdg")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    for settings in (
        load(str(tmp_path / "home"), environ),
        load(None, environ | {"EVERTHREAD_HOME": str(tmp_path / "home")}),
    ):
        assert settings == Settings(tmp_path / "home")
        assert settings.secret("A") is None


def test_a_relative_xdg_folder_is_ignored(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": "config"}
    assert home_paths(None, environ).config == tmp_path / "everthread" / "config.toml"


# --- The file mcp.json -----------------------------------------------------------------------------------------------


def test_servers_may_be_in_a_file_of_the_usual_shape(tmp_path: Path) -> None:
    mcp = {"mcpServers": {"files": {"type": "stdio", "command": "npx", "args": ["-y"], "env": {"T": "${T}"}}}}
    settings = loaded(tmp_path, "[mcpServers.web]\nurl = 'http://x'", mcp=json.dumps(mcp))
    assert settings.mcp_servers == {
        "web": McpServer(url="http://x"),
        "files": McpServer("npx", ("-y",), {"T": "${T}"}),
    }
    assert loaded(tmp_path / "alone", mcp=json.dumps(mcp)).mcp_servers.keys() == {"files"}
    assert loaded(tmp_path / "empty", mcp="{}").mcp_servers == {}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('{\n"mcpServers": {\n"x": {"command": 5}\n}}', 3, "mcpServers.x.command: expected a string"),
        ('{\n"mcpServers": {\n"x": {"command": "a",\n"arg": []}}}', 4, "Did you mean mcpServers.x.args?"),
        ('{"mcpServers":\n{"x":\n{"command": "a", "env":\n{"A": "b",\n"A_TOKEN": "c"}}}}', 5, "looks like a secret"),
        ('{\n\n"servers": {}}', 3, "Unknown setting 'servers'. Did you mean mcpServers?"),
        ('{\n"mcpServers": {\n}', 3, "Expecting"),
        ("[]", 1, "expected an object with the key 'mcpServers', found an array"),
        ('{\n"mcpServers": {"web": {"url": "http://x"}}}', 2, "mcpServers.web: is in "),
    ],
)
def test_a_mistake_in_it_is_told_with_its_line(text: str, line: int, what: str, tmp_path: Path) -> None:
    told = complaint(tmp_path, "[mcpServers.web]\nurl = 'http://x'", mcp=text)
    assert told.startswith(f"{tmp_path / 'mcp.json'}:{line}: ")
    assert what in told


# --- Finding lines ---------------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.from_regex(r"[a-zA-Z0-9_-]{1,3}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=4),
)
NOISE = [
    '"""\n[x]\n# \\""" a = 1\n""""',
    "'''\n]}'' \"\n'''",
    '"\\"]} #"',
    "'\\'",
    "1979-05-27 07:32:00",
    "[ ] # [",
    "[\n  '[', # ]\n  { a = '}' },\n\n]",
    "{ }",
    "true # {",
    "-1.5e3",
]


def key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


class Writer:
    """Writes TOML in which every whole number is the number of the line that its key is on."""

    def __init__(self, draw: Any) -> None:
        self.text = ""
        self.draw = draw

    def line(self) -> int:
        return self.text.count("\n") + 1

    def value(self, depth: int) -> None:
        match self.draw(st.sampled_from(["number", "noise", "array", "table"] if depth else ["number", "noise"])):
            case "number":
                self.text += str(self.line())
            case "noise":
                self.text += self.draw(st.sampled_from([n for n in NOISE if "#" not in n or "\n" in n]))
            case "array":
                self.text += "["
                for _ in range(self.draw(st.integers(0, 3))):
                    self.text += self.draw(st.sampled_from(["", "\n", " # [\n"]))
                    self.value(depth - 1)
                    self.text += self.draw(st.sampled_from([",", " , # ]\n", "\n,"]))
                self.text += "]"
            case _:
                self.text += "{"
                for place, name in enumerate(self.draw(st.lists(NAMES, max_size=3, unique=True))):
                    self.text += ", " * bool(place) + f"{key(name)} = "
                    self.value(depth - 1)
                self.text += "}"

    def pairs(self) -> None:
        for name in self.draw(st.lists(NAMES, max_size=4, unique=True)):
            more = "".join(f" . {key(part)}" for part in self.draw(st.lists(NAMES, max_size=2)))
            self.text += self.draw(st.sampled_from(["", "\n", "  ", "# x = [\n", "\r\n"])) + f"{key(name)}{more} = "
            self.value(2)
            self.text += self.draw(st.sampled_from(["\n", " # ]\n", "\r\n"]))

    def document(self) -> str:
        self.pairs()
        for place in range(self.draw(st.integers(0, 3))):
            # Names with a blank and a number in them, so that no table is declared twice.
            more = "".join(f".{key(part)}" for part in self.draw(st.lists(NAMES, max_size=2)))
            if self.draw(st.booleans()):
                self.text += f'[ "table {place}" {more} ] # [x]\n'
                self.pairs()
            else:
                for _ in range(self.draw(st.integers(1, 3))):
                    self.text += f'[["table {place}"{more}]]\n'
                    self.pairs()
                    self.text += f'["table {place}"{more}."in it"]\n'
                    self.pairs()
        return self.text


@st.composite
def documents(draw: Any) -> str:
    return Writer(draw).document()


def numbers(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], int]]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from numbers(inner, (*keys, name))
        case list():
            for place, inner in enumerate(value):
                yield from numbers(inner, (*keys, place))
        case bool() | float():
            pass
        case int():
            yield keys, value


@hypothesis.settings(max_examples=40)
@given(documents())
def test_every_key_of_a_toml_text_is_found_on_its_line(text: str) -> None:
    for keys, line in numbers(tomllib.loads(text)):
        assert line_in_toml(text, keys) == line, keys


@given(st.text(max_size=300), st.lists(st.one_of(st.text(max_size=3), st.integers(0, 3)), max_size=3))
def test_no_text_is_too_strange_to_be_looked_at(text: str, keys: list[str | int]) -> None:
    for line_of in (line_in_toml, line_in_json):
        assert 1 <= line_of(text, tuple(keys)) <= text.count("\n") + 1


@given(st.text("[]{}=:\"'\\#,. \n\tab1", max_size=60))
def test_no_heap_of_signs_is_too_strange_either(text: str) -> None:
    for line_of in (line_in_toml, line_in_json):
        assert 1 <= line_of(text, ("a", 1, "b")) <= text.count("\n") + 1


@given(st.recursive(st.integers(), lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=4), max_leaves=9))
def test_every_key_of_a_json_text_is_found_on_its_line(value: Any) -> None:
    text = json.dumps(value, indent=1)

    def check(value: Any, keys: tuple[str, ...]) -> None:
        for name, inner in value.items() if isinstance(value, dict) else ():
            line = text.splitlines()[line_in_json(text, (*keys, name)) - 1]
            assert line.strip().startswith(json.dumps(name) + ":")
            check(inner, (*keys, name))

    check(value, ())


def test_very_deep_nesting_and_very_many_keys_are_looked_through() -> None:
    assert line_in_toml("a = " + "[" * 100_000, ("a", 0, 0)) == 1
    assert line_in_json("[" * 100_000, (0,)) == 1
    many = "\n".join(f"k{number} = {number}" for number in range(20_000))
    assert line_in_toml(many, ("k19999",)) == 20_000


def test_a_key_that_is_not_there_is_looked_for_where_it_would_be() -> None:
    text = "[a.b]\nc = 1\n[a]\nd = 2"
    assert line_in_toml(text, ("a", "b", "x")) == 1
    assert line_in_toml(text, ("a", "x")) == 3
    assert line_in_toml(text, ("x",)) == 1
