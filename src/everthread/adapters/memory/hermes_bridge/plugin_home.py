"""Folders of each user's plugin: a home of Hermes Agent, in the layout that plugins expect."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from everthread.adapters.memory.common.encoding import encode_id

# Read by every user's plugin, and linked. Everything else in a home belongs to one user.
_SHARED = ("config.yaml", ".env", "plugins")


def expand_path(path: str) -> Path:
    return Path(path).expanduser()


class PluginHome(Struct, frozen=True):
    home: Path
    settings: Path
    """Folder of config.yaml and .env."""
    log: Path


class PluginHomes:
    """Homes of all users. The owner's may be configured; the others are in our folder.

    A home in our folder links settings and plugins: the owner's from `template`, the home of an installed Hermes, and
    the other users' from the owner's.
    """

    def __init__(self, folder: Path, configured: str, owner: str, *, for_each: bool, template: str = "") -> None:
        self._folder = folder
        self._main = expand_path(configured) if configured else folder / "home"
        self._template = expand_path(template) if template and not configured else None
        self._owner = owner
        self._for_each = for_each

    def serves(self, owner: str) -> bool:
        return self._for_each or owner == self._owner

    def settings_folder(self, owner: str) -> Path:
        """Return the folder whose config.yaml and .env a user's plugin reads: its home, if they are not links."""
        own = self._home(owner)
        source = self._main if own != self._main else self._template
        has_own = any((own / name).exists() and not (own / name).is_symlink() for name in _SHARED)
        return source if source is not None and source.is_dir() and not has_own else own

    def prepare(self, owner: str) -> PluginHome:
        """Create the home if necessary, and its links."""
        home = self._home(owner)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        source = self._main if home != self._main else self._template
        if source is not None:
            for shared in _SHARED:
                _link(home / shared, source.absolute() / shared)
        return PluginHome(home, self.settings_folder(owner), self._folder / f"plugin-{encode_id(owner)}.log")

    def _home(self, owner: str) -> Path:
        return self._main if owner == self._owner else self._folder / "people" / encode_id(owner)


def _link(link: Path, target: Path) -> None:
    """Replace a broken link. A file that is not a link stays."""
    if link.is_symlink() and not link.exists():
        link.unlink()
    if target.exists() and not link.exists():
        link.symlink_to(target)
