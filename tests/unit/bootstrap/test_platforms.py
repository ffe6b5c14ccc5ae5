"""Platforms made from a configuration."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tests.fake_platform import FakePlatform

from everthread.bootstrap import platforms
from everthread.bootstrap.clock import SystemClock
from everthread.config.schema import GatewaySettings, PlatformAccount, Settings, Variables
from everthread.domain.errors import BadConfig


def make(name: str, account: PlatformAccount, token: str, clock: object) -> FakePlatform:
    platform = FakePlatform(name)
    platform.taken.append(token)
    return platform


def installed(monkeypatch: pytest.MonkeyPatch, **kinds: str) -> None:
    entries = [EntryPoint(kind, value, platforms.GROUP) for kind, value in kinds.items()]
    monkeypatch.setattr(platforms, "entry_points", lambda group: entries)


def configured(*, besides: tuple[str, ...] = (), token: str = "", **accounts: PlatformAccount) -> Any:
    variables = Variables({"TOKEN": token})
    settings = Settings(Path("/nowhere"), platforms=accounts, variables=variables)
    return platforms.make_platforms(settings, SystemClock(), besides=besides)


def test_a_third_party_platform_is_made_with_its_name_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, pigeon=f"{__name__}:make")
    (platform,) = configured(loft=PlatformAccount("pigeon", token_env="TOKEN"), token="secret")
    assert (platform.name, platform.taken) == ("loft", ["secret"])


def test_disabled_and_already_present_platforms_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    assert configured(besides=("fake",), fake=PlatformAccount("x"), off=PlatformAccount("x", enabled=False)) == ()


def test_an_unknown_kind_is_refused_with_the_nearest_match(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, pigeon=f"{__name__}:make")
    with pytest.raises(BadConfig, match=r"platforms\.loft: unknown kind of platform 'pidgeon'. Did you mean pigeon"):
        configured(loft=PlatformAccount("pidgeon"))


def test_an_unset_token_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, pigeon=f"{__name__}:make")
    with pytest.raises(BadConfig, match=r"TOKEN is not set; put TOKEN=\.\.\. into"):
        configured(loft=PlatformAccount("pigeon", token_env="TOKEN"))


def test_a_platform_that_cannot_be_loaded_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, pigeon="no_such_package:make")
    with pytest.raises(BadConfig, match="no_such_package:make can't be loaded"):
        configured(loft=PlatformAccount("pigeon"))


def test_telegram_without_its_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    for name in [name for name in sys.modules if name.startswith("everthread.adapters.platforms.telegram")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "telegram", None)
    with pytest.raises(BadConfig, match=r"run: python -m pip install 'everthread\[telegram\]'"):
        configured(telegram=PlatformAccount("telegram", token_env="TOKEN"), token="42:secret")


def test_telegram_reads_its_default_token_variable_and_never_prints_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("telegram")
    installed(monkeypatch)
    with pytest.raises(BadConfig, match=r"TELEGRAM_BOT_TOKEN is not set; put TELEGRAM_BOT_TOKEN=\.\.\. into"):
        configured(telegram=PlatformAccount("telegram"))
    with pytest.raises(BadConfig, match="TOKEN is not a bot token") as failure:
        configured(telegram=PlatformAccount("telegram", token_env="TOKEN"), token="not a token")
    assert "not a token" not in str(failure.value)
    (fixture,) = configured(telegram=PlatformAccount("telegram", token_env="TOKEN"), token="42:secret")
    assert fixture.name == "telegram"


def test_a_transcription_model_needs_an_openai_compatible_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(model: str) -> Any:
        return platforms.make_transcriber(
            Settings(Path("/nowhere"), gateway=GatewaySettings(transcription_model=model))
        )

    assert of("") is None
    assert of("openai/whisper-1") is not None
    with pytest.raises(BadConfig, match="'anthropic' is not an OpenAI-compatible provider"):
        of("anthropic/x")
