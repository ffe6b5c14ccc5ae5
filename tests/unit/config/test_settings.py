"""Loading settings: precedence, paths, secrets and the default model."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from tests.config_files import SECRET, config_error, load_home, write_files

from everthread.config.schema import LimitSettings, MemorySettings, Settings, ToolSettings
from everthread.config.settings import default_model, home_paths, load
from everthread.domain.errors import BadConfig
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy


def test_a_home_alone_gives_the_defaults(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    assert settings == load_home(tmp_path)
    assert settings == load_home(tmp_path, "")
    assert (settings.owner, settings.profile, settings.model, settings.fallback_models) == ("me", "main", "", ())
    assert (settings.limits, settings.memory, settings.tools) == (LimitSettings(), MemorySettings(), ToolSettings())
    assert settings.reset == ResetPolicies(ResetPolicy())
    assert settings.db_path == tmp_path / "everthread.db"
    assert settings.config_path == tmp_path / "config.toml"
    assert settings.env_path == tmp_path / ".env"
    assert settings.secret("ANYTHING") is None
    assert settings.warnings == ()


def test_loading_creates_no_files(tmp_path: Path) -> None:
    load(str(tmp_path / "not" / "there"), {})
    assert list(tmp_path.iterdir()) == []


def test_the_environment_overrides_the_env_file(tmp_path: Path) -> None:
    settings = load_home(tmp_path, env="A=file\nB=file\nC=", environ={"A": "environment", "B": ""})
    assert [settings.secret(name) for name in "ABCD"] == ["environment", "file", None, None]


def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    config = "[mcpServers.x]\ncommand = 'a'\nargs = ['hunter2']\nenv = { PIN = 'hunter2' }"
    settings = load_home(tmp_path, config, env=f"A={SECRET}", environ={"B": SECRET})
    assert settings.secret("A") == settings.secret("B") == SECRET
    for shown in (repr(settings), str(settings), repr(settings.variables), f"{settings.mcp_servers}"):
        assert SECRET not in shown
        assert "hunter2" not in shown


def test_references_are_expanded_on_use(tmp_path: Path) -> None:
    settings = load_home(tmp_path, env="A=one\nB=${A}")
    assert settings.expand_references({"x": "Bearer ${A}-${B}", "y": "$A {A}"}) == {
        "x": "Bearer one-${A}",
        "y": "$A {A}",
    }
    with pytest.raises(BadConfig, match=re.escape(f"C is not set; put C=... into {tmp_path / '.env'}")):
        settings.expand_references({"x": "${C}"})


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_an_env_file_readable_by_others_gives_a_warning(mode: int, warned: bool, tmp_path: Path) -> None:
    settings = load_home(tmp_path, env="A=b", mode=mode)
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == mode
    assert bool(settings.warnings) is warned
    assert all(f"chmod 600 {tmp_path / '.env'}" in warning for warning in settings.warnings)


@pytest.mark.parametrize("environ", [{}, {"EVERTHREAD_OWNER": "group:telegram:-100"}])
def test_the_owner_is_not_a_group(environ: dict[str, str], tmp_path: Path) -> None:
    home = str(write_files(tmp_path, f"owner = '{'ann' if environ else 'group:telegram:-100'}'"))
    with pytest.raises(BadConfig, match="begin with group: are reserved for groups"):
        load(home, environ)


@pytest.mark.parametrize("name", ["owner", "profile", "model", "auxiliary_model"])
def test_an_option_overrides_the_environment_which_overrides_the_files(name: str, tmp_path: Path) -> None:
    def value(place: str) -> str:
        return f"ollama/{place}" if "model" in name else place

    variable = f"EVERTHREAD_{name.upper()}"
    home = str(write_files(tmp_path, f"{name} = '{value('file')}'"))
    environ = {variable: value("environment")}

    def of(environ: dict[str, str], **flags: str) -> str:
        return getattr(load(home, environ, **flags), name)

    assert of({}) == value("file")
    assert of({variable: ""}) == value("file")
    write_files(tmp_path, env=f"{variable}={value('dotenv')}")
    assert of({}) == value("dotenv")
    assert of(environ) == value("environment")
    assert of(environ, **{name: ""}) == value("environment")
    assert of(environ, **{name: value("flag")}) == value("flag")


def test_an_error_names_the_variable_or_the_option(tmp_path: Path) -> None:
    told = config_error(tmp_path, environ={"EVERTHREAD_MODEL": "opnai/x"})
    assert told == "EVERTHREAD_MODEL: unknown provider 'opnai'. Did you mean openai?"
    with pytest.raises(BadConfig, match=r"^--auxiliary-model: not a model"):
        load(str(tmp_path), {}, auxiliary_model="x")
    assert config_error(tmp_path, environ={"OLLAMA_HOST": "http://["}).startswith("OLLAMA_HOST: not a URL")


def test_a_model_may_belong_to_a_configured_provider(tmp_path: Path) -> None:
    settings = load_home(tmp_path, "[providers.x]\nbase_url = 'http://x'", environ={"EVERTHREAD_MODEL": "x/y"})
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
def test_a_base_url_may_come_from_the_environment(
    variable: str, value: str, provider: str, url: str, tmp_path: Path
) -> None:
    config = f"[providers.{provider}]\nbase_url = 'http://file'"
    settings = load_home(tmp_path, config, environ={variable: value})
    assert settings.providers[provider].base_url == url
    assert load_home(tmp_path, config).providers[provider].base_url == "http://file"


def test_the_default_model_is_local_unless_an_api_key_is_set(tmp_path: Path) -> None:
    assert default_model(Settings(tmp_path)) == "local/smollm2"
    assert default_model(load_home(tmp_path, "model = 'openai/x'", environ={"ANTHROPIC_API_KEY": "x"})) == "openai/x"
    keys = ["GEMINI_API_KEY", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"]
    write_files(tmp_path, "")
    for count, name in enumerate(keys, start=1):
        settings = load_home(tmp_path, environ=dict.fromkeys(keys[:count], SECRET))
        with pytest.raises(BadConfig) as refusal:
            default_model(settings)
        provider = name.split("_")[0].lower()
        assert str(refusal.value) == (
            f"{name} is set, but no model is chosen; put this line at the top of {tmp_path / 'config.toml'}: "
            f'model = "{provider}/MODEL"'
        )


def test_xdg_folders_are_searched_first_for_each_file(tmp_path: Path) -> None:
    home, xdg = tmp_path / "data" / "everthread", tmp_path / "config" / "everthread"
    environ = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    write_files(home, "owner = 'home'", env="A=home")
    assert load(None, environ).owner == "home"
    write_files(xdg, "owner = 'xdg'")
    settings = load(None, environ)
    assert (settings.owner, settings.secret("A")) == ("xdg", "home")
    assert (settings.home, settings.config_path, settings.env_path) == (home, xdg / "config.toml", home / ".env")
    assert settings.mcp_path == xdg / "mcp.json", "the location of a new file"
    assert settings.db_path == home / "everthread.db"


def test_an_explicit_home_contains_every_file(tmp_path: Path) -> None:
    write_files(tmp_path / "config" / "everthread", "owner = 'xdg'", env="A=xdg")
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
