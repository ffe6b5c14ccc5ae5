"""Memory providers made from a configuration, and their settings."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, cast

import pytest

from everthread.bootstrap import memory_providers
from everthread.bootstrap.memory_providers import Adapter, make_providers
from everthread.bootstrap.runtime import Runtime
from everthread.config import settings as config
from everthread.config.provider_settings import BUNDLED_PROVIDERS, GROUP, Field, ProviderInfo
from everthread.config.schema import Settings
from everthread.domain.errors import BadConfig
from everthread.ports.memory import MemoryProvider

FIELDS = (
    Field("url", "Address of the loft", "address", required=True),
    Field("api_key", "Its key", "secret", default="LOFT_KEY", required=True),
    Field("timeout_s", "Seconds to wait", "number", default=5.0, low=0.1, high=60),
    Field("birds", "How many", "whole", low=1, high=9),
    Field("mode", "How it flies", default="high", choices=("high", "low")),
    Field("tame", "Is it tame", "flag"),
)


class PlainProvider(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.name = "loft"
        self.told: dict[str, Any] = {}

    async def initialize(self, **settings: Any) -> None:
        self.told = settings


class ConfigurableProvider(PlainProvider):
    settings_fields = (Field("twigs", "How many", "whole", low=1),)

    def __init__(self) -> None:
        super().__init__()
        self.name = "nest"


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUNDLED_PROVIDERS, "loft", ProviderInfo("pigeons", FIELDS))
    monkeypatch.setitem(memory_providers._ADAPTERS, "loft", Adapter(__name__, "PlainProvider", "loft"))  # noqa: SLF001
    entries = [EntryPoint("nest", f"{__name__}:ConfigurableProvider", GROUP)]
    monkeypatch.setattr(memory_providers, "entry_points", lambda group: entries)


def settings(home: Path, text: str, **variables: str) -> Settings:
    (home / "config.toml").write_text(text)
    return config.load(str(home), variables)


WHOLE = """\
[memory]
providers = ["loft", "builtin"]

[memory.loft]
url = "http://127.0.0.1:9/"
"""


def test_the_built_in_provider_is_the_default(tmp_path: Path) -> None:
    assert settings(tmp_path, "").memory.providers == ("builtin",)
    assert Runtime(settings(tmp_path, "")).provider_names == ("builtin",)


def test_a_provider_gets_its_settings_its_secret_and_the_defaults(tmp_path: Path) -> None:
    told = make_providers(settings(tmp_path, WHOLE, LOFT_KEY="coo"))["loft"].settings
    assert told == {
        "url": "http://127.0.0.1:9",
        "api_key": "coo",
        "timeout_s": 5.0,
        "mode": "high",
        "folder": tmp_path / "providers" / "loft",
        "profile": "main",
    }


async def test_all_configured_providers_are_used_in_order(tmp_path: Path) -> None:
    async with Runtime(settings(tmp_path, WHOLE, LOFT_KEY="coo")) as runtime:
        assert [provider.name for provider in runtime.providers] == ["loft", "builtin"]
        assert runtime.memory.names == runtime.provider_names == ("loft", "builtin")
        await runtime.memory.health()
        await runtime.memory._callers["loft"].ready()  # noqa: SLF001 - nobody else initialises one that has no hooks
        assert runtime.providers[0].told["api_key"] == "coo"  # type: ignore[attr-defined]


def test_a_secret_may_come_from_another_variable(tmp_path: Path) -> None:
    text = WHOLE + 'api_key_env = "OTHER"\n'
    assert make_providers(settings(tmp_path, text, OTHER="x"))["loft"].settings["api_key"] == "x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[memory.loft]\nurl = "http://h"\nulr = 1\n', r"config.toml:3: Unknown setting 'memory.loft.ulr'. Did you"),
        ("[memory.loft]\nbirds = 12\n", r":2: memory.loft.birds: out of range; give a whole number from 1 to 9"),
        ('[memory.loft]\nmode = "sideways"\n', r":2: memory.loft.mode: must be one of high, low"),
        ('[memory.loft]\nurl = "ftp://x"\n', r":2: memory.loft.url: not an http URL"),
        ('[memory.loft]\ntame = "yes"\n', r":2: .*true or false"),
        ('[memory.loft]\napi_key_env = "a b"\n', r":2: memory.loft.api_key_env: not the name of a variable"),
        ('[memory.loft]\napi_key = "coo"\n', r"looks like a secret.*put LOFT_API_KEY=\.\.\. into"),
        ("[memory.lotf]\nbirds = 1\n", r":1: Unknown setting 'memory.lotf'. Did you mean memory.loft"),
        ('[memory]\nproviders = "loft"\n', r":2: .*an array of strings"),
        ('[memory]\nproviders = ["loft", "loft"]\n', r":2: .*names loft twice"),
        ('[memory]\nproviders = ["../loft"]\n', r":2: .*not the name of a memory provider"),
        ('[memory]\nproviders = ["nest"]\n[memory.nest]\ntwigs = [1]\n', r":4: .*must be a string, a number"),
    ],
)
def test_an_error_in_the_file_names_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        settings(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WHOLE, r"memory.loft: LOFT_KEY is not set; put LOFT_KEY=\.\.\. into .*\.env"),
        ('[memory]\nproviders = ["loft"]\n', r"memory.loft: 'url' is missing; add it under \[memory.loft\]"),
        ('[memory]\nproviders = ["lofd"]\n', r"unknown memory provider 'lofd'. Did you mean loft\?"),
        ('[memory]\nproviders = ["nest"]\n[memory.nest]\ntwig = 1\n', r":4: Unknown setting 'memory.nest.twig'"),
    ],
)
def test_missing_settings_of_a_provider_are_reported_before_anything_is_opened(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(BadConfig, match=problem):
        make_providers(settings(tmp_path, text))
    assert not (tmp_path / "everthread.db").exists()


def test_a_provider_of_another_package_declares_its_own_settings(tmp_path: Path) -> None:
    text = '[memory]\nproviders = ["nest"]\n[memory.nest]\ntwigs = 3\n'
    told = make_providers(settings(tmp_path, text))["nest"]
    assert (told.provider.name, told.settings["twigs"]) == ("nest", 3)


class FailingProvider(PlainProvider):
    def __init__(self) -> None:
        raise RuntimeError("out of the tree")


class Vague(ConfigurableProvider):
    settings_fields = "twigs"


class InvalidCapabilities(ConfigurableProvider):
    def __init__(self) -> None:
        super().__init__()
        self.capabilities = cast(Any, 5)


@pytest.mark.parametrize(
    ("leads_to", "problem"),
    [
        ("FailingProvider", r"nest can't be created: RuntimeError\('out of the tree'\); reinstall it, or remove it"),
        ("Vague", "nest: its settings_fields are invalid; reinstall it, or remove it"),
        ("InvalidCapabilities", "nest: its capabilities are invalid; reinstall it, or remove it"),
        ("Missing", "can't be loaded: AttributeError.*; reinstall it, or remove it"),
    ],
)
def test_an_invalid_third_party_provider_is_reported_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads_to: str, problem: str
) -> None:
    entries = [EntryPoint("nest", f"{__name__}:{leads_to}", GROUP)]
    monkeypatch.setattr(memory_providers, "entry_points", lambda group: entries)
    with pytest.raises(BadConfig, match=problem):
        make_providers(settings(tmp_path, '[memory]\nproviders = ["nest"]\n'))


def test_a_module_that_exits_on_import_is_reported_as_not_loadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quitter.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        memory_providers, "entry_points", lambda group: [EntryPoint("nest", "quitter:ConfigurableProvider", GROUP)]
    )
    with pytest.raises(BadConfig, match=r"can't be loaded: SystemExit\(3\)"):
        make_providers(settings(tmp_path, '[memory]\nproviders = ["nest"]\n'))


def test_a_missing_extra_is_reported_with_its_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Adapter(__name__, "PlainProvider", "loft", ("no_such_module_of_pigeons",))
    monkeypatch.setitem(memory_providers._ADAPTERS, "loft", adapter)  # noqa: SLF001
    with pytest.raises(BadConfig, match=r"no_such_module_of_pigeons.*run: pip install 'everthread\[loft\]'"):
        make_providers(settings(tmp_path, WHOLE, LOFT_KEY="coo"))


def test_the_repr_of_a_provider_shows_no_secret(tmp_path: Path) -> None:
    assert "coo" not in repr(make_providers(settings(tmp_path, WHOLE, LOFT_KEY="coo")))
    assert "coo" not in repr(settings(tmp_path, WHOLE, LOFT_KEY="coo"))


def test_every_bundled_provider_can_be_made_and_described() -> None:
    assert set(memory_providers._ADAPTERS) == set(BUNDLED_PROVIDERS)  # noqa: SLF001
    for name, entry in BUNDLED_PROVIDERS.items():
        assert entry.description
        assert not {field.name for field in entry.fields} & {"folder", "profile"}, name
