"""Folders of each user's plugin."""

from __future__ import annotations

from pathlib import Path

from everthread.adapters.memory.hermes_bridge.plugin_home import PluginHomes


def hermes_home(folder: Path) -> Path:
    (folder / "plugins").mkdir(parents=True)
    (folder / "config.yaml").write_text("memory: diary\n")
    return folder


def test_the_owners_home_links_the_settings_of_an_installed_hermes(tmp_path: Path) -> None:
    template = hermes_home(tmp_path / "hermes")
    homes = PluginHomes(tmp_path / "bridge", "", "ann", for_each=False, template=str(template))
    prepared = homes.prepare("ann")
    assert prepared.home == tmp_path / "bridge" / "home"
    assert prepared.settings == template
    assert (prepared.home / "config.yaml").resolve() == template / "config.yaml"
    assert not (prepared.home / ".env").exists()
    assert prepared.home.stat().st_mode & 0o777 == 0o700


def test_other_users_link_the_settings_of_the_owner(tmp_path: Path) -> None:
    own = hermes_home(tmp_path / "own")
    homes = PluginHomes(tmp_path / "bridge", str(own), "ann", for_each=True)
    bob = homes.prepare("bob")
    assert (homes.serves("bob"), bob.home != own, bob.settings) == (True, True, own)
    assert (bob.home / "plugins").resolve() == own / "plugins"
    assert homes.prepare("ann").home == own


def test_only_the_owner_is_served_unless_each_user_has_a_home(tmp_path: Path) -> None:
    homes = PluginHomes(tmp_path, "", "ann", for_each=False)
    assert (homes.serves("ann"), homes.serves("bob")) == (True, False)


def test_a_broken_link_is_replaced_and_a_file_of_the_user_stays(tmp_path: Path) -> None:
    template = hermes_home(tmp_path / "hermes")
    homes = PluginHomes(tmp_path / "bridge", "", "ann", for_each=False, template=str(template))
    home = tmp_path / "bridge" / "home"
    home.mkdir(parents=True)
    (home / "config.yaml").write_text("mine\n")
    (home / "plugins").symlink_to(tmp_path / "gone")
    prepared = homes.prepare("ann")
    assert (home / "plugins").resolve() == template / "plugins"
    assert (home / "config.yaml").read_text() == "mine\n"
    assert prepared.settings == home
