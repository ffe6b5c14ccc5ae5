"""Reading `config.toml` and `mcp.json`, and the errors about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.config_files import config_error, load_home

from everthread.config.schema import LimitSettings, McpServer, MemorySettings, ProviderSettings, ToolSettings
from everthread.domain.model import ChatType
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.domain.spend import Price

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


def test_every_table_of_a_file_is_read(tmp_path: Path) -> None:
    settings = load_home(tmp_path, WHOLE)
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
def test_line_ends_and_a_byte_order_mark_make_no_difference(written_as: str, tmp_path: Path) -> None:
    assert load_home(tmp_path / "a", written_as).limits == load_home(tmp_path / "b", WHOLE).limits


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
    # Owners and accounts
    ("[gateway.links]\nann = ['a:1']\nbea = ['b:2', 'a:1']", 3, "gateway.links.bea: a:1 belongs to ann"),
    # Webhooks
    ("[gateway.webhooks.ci]\nsecret_env = 'A'\nscheme = 'gitlab'", 3, "scheme: must be everthread or github"),
    ("[gateway.links]\n'group:a' = ['a:1']", 2, "names that begin with group: are reserved for groups"),
    ("[gateway.links]\nann = ['telegram']", 2, "must be PLATFORM:USER, such as telegram:12345"),
    ("[platforms.group]\nallow_all = true", 1, "a reserved name; choose another"),
    ("[platforms.telegram]\nallow_all = true\nallow = ['1']", 2, "admits everybody, so `allow` has no effect"),
    # Names and models
    ("owner = ''", 1, "owner: must have 1 to 256 characters"),
    ("owner = 'a\tb'", 1, "owner: has invisible characters"),
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
    # The HTTP interface
    ("[gateway.http]\nauth = 'none'", 2, 'gateway.http.auth: admits everybody who can connect; "none" needs socket'),
    ("[gateway.http]\nauth = 'no'", 2, "gateway.http.auth: must be token or none"),
    ("[gateway.http]\nsocket = 'a'\nport = 1", 3, "gateway.http.port: has no effect beside a socket; remove it"),
    ("[gateway.http]\nsocket = 'a'\nhost = '::'", 3, "gateway.http.host: has no effect beside a socket"),
    (f"[gateway.http]\nsocket = '/{'a' * 107}'", 2, "gateway.http.socket: is longer than 107 bytes"),
    ("[gateway.http]\ntrusted_proxies = ['proxy']", 2, "trusted_proxies[0]: not an address or a network"),
    ("[gateway.http]\ntrusted_proxies = ['10.0.0.1/8']", 2, "trusted_proxies[0]: not an address or a network"),
    # Tool servers
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
    # Invalid TOML
    ("model = 'a'\nmodel = 'b'", 2, "Cannot overwrite a value"),
    ("\n\nmodel", 3, "Expected '=' after a key"),
    ("a = [\n1,\n", 2, "Invalid value, at the end of the file"),
    ('a = "x', 1, "Illegal character|Unterminated string|Expected '\"'"),
]


@pytest.mark.parametrize(("text", "line", "what"), WRONG)
def test_an_error_names_the_line(text: str, line: int, what: str, tmp_path: Path) -> None:
    told = config_error(tmp_path, text)
    place = f"{tmp_path / 'config.toml'}:{line}: "
    assert told.startswith(place), told
    rest = told.removeprefix(place)
    assert any(part in rest for part in what.split("|")), told


def test_providers_and_mcp_servers_are_limited_to_a_thousand(tmp_path: Path) -> None:
    def many(table: str, entry: str, count: int) -> str:
        return f"[{table}]\n" + "".join(f"n{n} = {entry.replace('@', str(n))}\n" for n in range(count))

    for table, entry in (("providers", "{base_url = 'http://x'}"), ("mcpServers", "{command = 'x'}")):
        assert f"{table}.n1000: more than 1000 entries" in config_error(tmp_path, many(table, entry, 1001))
    unlimited = {"gateway.links": "[]", "platforms": "{}", "gateway.webhooks": "{secret_env = 'S@', scheme = 'github'}"}
    text = "".join(many(table, entry, 1001) for table, entry in unlimited.items())
    settings = load_home(tmp_path, text)
    assert len(settings.gateway.links) == len(settings.platforms) == len(settings.gateway.webhooks) == 1001


@pytest.mark.parametrize("name", ["", "openai/" + "x" * 200])
def test_the_name_of_a_transcription_model_may_be_long_or_empty(name: str, tmp_path: Path) -> None:
    assert load_home(tmp_path, f"[gateway]\ntranscription_model = '{name}'").gateway.transcription_model == name
    assert "not a model" in config_error(tmp_path, f"[gateway]\ntranscription_model = 'openai/{'x' * 201}'")


def test_an_error_far_down_names_its_own_line(tmp_path: Path) -> None:
    noise = 'allow = [ "a", # [limits]\n "b" ] # turns = 1\n'
    text = f'owner = """\nx""" # """\n[tools]\n{noise}[mcpServers.\'a.b\']\ncommand = \'#\'\n[limits]\nturns = 1'
    assert ":9: Unknown setting 'limits.turns'" in config_error(tmp_path, text)


def test_mcp_servers_are_read_from_mcp_json(tmp_path: Path) -> None:
    mcp = {"mcpServers": {"files": {"type": "stdio", "command": "npx", "args": ["-y"], "env": {"T": "${T}"}}}}
    settings = load_home(tmp_path, "[mcpServers.web]\nurl = 'http://x'", mcp=json.dumps(mcp))
    assert settings.mcp_servers == {
        "web": McpServer(url="http://x"),
        "files": McpServer("npx", ("-y",), {"T": "${T}"}),
    }
    assert load_home(tmp_path / "alone", mcp=json.dumps(mcp)).mcp_servers.keys() == {"files"}
    assert load_home(tmp_path / "empty", mcp="{}").mcp_servers == {}


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
def test_an_error_in_mcp_json_names_the_line(text: str, line: int, what: str, tmp_path: Path) -> None:
    told = config_error(tmp_path, "[mcpServers.web]\nurl = 'http://x'", mcp=text)
    assert told.startswith(f"{tmp_path / 'mcp.json'}:{line}: ")
    assert what in told


def test_a_socket_is_relative_to_the_home(tmp_path: Path) -> None:
    text = '[gateway.http]\nsocket = "http.sock"\nauth = "none"\ntrusted_proxies = ["unix", "::1"]'
    http = load_home(tmp_path, text).gateway.http
    assert (http.socket, http.auth, http.trusted_proxies) == (tmp_path / "http.sock", "none", ("unix", "::1"))
    assert http.is_loopback
