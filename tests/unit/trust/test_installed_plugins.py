"""Plugins of installed packages: described without importing them, and approved as they are."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from everthread.plugins import GROUP
from everthread.trust.decisions import Trust, TrustFile
from everthread.trust.installed_plugins import InstalledPlugin, PluginTrust, describe, module_file, why_not_loaded


def install(site: Path, package: str = "diary", version: str = "1.0", name: str = "diary", code: str = "") -> None:
    """Install a package with the module PACKAGE.hooks, which must not be imported before it is approved."""
    info = site / f"{package}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {package}.hooks\n")
    (info / "RECORD").write_text(f"{package}/hooks.py,sha256=x,1\n")
    (site / package).mkdir(exist_ok=True)
    (site / package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (site / package / "hooks.py").write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


@pytest.fixture
def trust(tmp_path: Path) -> PluginTrust:
    return PluginTrust((), TrustFile(tmp_path / "home" / "trust.json"))


def found() -> list[InstalledPlugin]:
    return [plugin for plugin, _ in describe(entry_points(group=GROUP))]


def test_a_plugin_is_described_without_running_its_package(site: Path) -> None:
    install(site)
    [plugin] = found()
    assert (plugin.name, plugin.target, plugin.package) == ("diary", "diary.hooks", "diary 1.0")
    assert plugin.file == str(site / "diary" / "hooks.py")
    assert "diary" not in sys.modules
    assert module_file("nowhere.at.all") == ""


def test_a_decision_is_remembered(site: Path, trust: PluginTrust) -> None:
    install(site)
    [plugin] = found()
    assert trust.state(plugin) is Trust.NEW
    for approved, state in ((True, Trust.APPROVED), (False, Trust.REFUSED), (None, Trust.NEW)):
        trust.decide(plugin, approved)
        assert trust.state(plugin) is state


@pytest.mark.parametrize("change", ["version", "code", "files", "target"])
def test_an_approved_plugin_cannot_be_replaced_by_another(site: Path, trust: PluginTrust, change: str) -> None:
    install(site)
    trust.decide(found()[0], True)
    info = site / "diary-1.0.dist-info"
    match change:
        case "version":
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: diary\nVersion: 1.1\n")
        case "code":
            (site / "diary" / "hooks.py").write_text("import os\n")
        case "files":
            (info / "RECORD").write_text("diary/hooks.py,sha256=y,1\n")
        case _:
            (info / "entry_points.txt").write_text(f"[{GROUP}]\ndiary = diary.others\n")
    [plugin] = found()
    assert trust.state(plugin) is Trust.CHANGED
    assert "changed since" in why_not_loaded(plugin, Trust.CHANGED)[0]


def test_the_settings_allow_a_plugin_by_name(site: Path, trust: PluginTrust) -> None:
    install(site)
    install(site, "other", name="other")
    allowing = PluginTrust(("diary",), trust.trust)
    assert [allowing.state(plugin) for plugin in found()] == [Trust.APPROVED, Trust.NEW]


def test_a_package_cannot_take_the_name_of_an_allowed_plugin(site: Path, trust: PluginTrust) -> None:
    install(site)
    trust.decide(found()[0], True)
    install(site, "impostor")
    [plugin] = found()
    for each in (trust, PluginTrust(("diary",), trust.trust)):
        assert each.state(plugin) is Trust.NEW
    says, fix = why_not_loaded(plugin, Trust.NEW)
    assert "both have a plugin diary" in says
    assert fix == "uninstall all but one of these packages"


def test_the_remedy_is_a_command_and_a_line_of_the_settings(site: Path) -> None:
    install(site)
    says, fix = why_not_loaded(found()[0], Trust.NEW)
    assert says == "plugin diary of diary 1.0 is not loaded: not approved yet"
    assert fix == 'everthread plugins allow diary, or in config.toml: [plugins] allow = ["diary"]'
