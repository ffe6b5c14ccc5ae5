"""Where each person's plugin has its files: a home of Hermes Agent's, as the plugin knows it."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from everthread.adapters.memory.common.encoding import encode_id

# What everybody's plugin reads. What it writes is in a home of each person's own.
_SHARED = ("config.yaml", ".env", "plugins")


def located(path: str) -> Path:
    return Path(path).expanduser()


class Place(Struct, frozen=True):
    home: Path
    settings: Path
    """Where people put what the plugin needs to know."""
    log: Path


class Homes:
    """The owner's home is the given one, or one in our folder; those of others are in our folder.

    A home in our folder has settings and plugins from elsewhere: the owner's from `template`, which is where Hermes has
    them itself, and everybody else's from the owner's.
    """

    def __init__(self, folder: Path, given: str, owner: str, *, for_each: bool, template: str = "") -> None:
        self._folder = folder
        self._main = located(given) if given else folder / "home"
        self._template = located(template) if template and not given else None
        self._owner = owner
        self._for_each = for_each

    def has(self, owner: str) -> bool:
        return self._for_each or owner == self._owner

    def settings_of(self, owner: str) -> Path:
        """The folder whose config.yaml and .env a person's plugin reads: its own, if it has some itself."""
        own = self._home(owner)
        source = self._main if own != self._main else self._template
        has_own = any((own / name).exists() and not (own / name).is_symlink() for name in _SHARED)
        return source if source is not None and source.is_dir() and not has_own else own

    def of(self, owner: str) -> Place:
        """Made if it is not there."""
        home = self._home(owner)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        source = self._main if home != self._main else self._template
        if source is not None:
            for shared in _SHARED:
                _link(home / shared, source.absolute() / shared)
        return Place(home, self.settings_of(owner), self._folder / f"plugin-{encode_id(owner)}.log")

    def _home(self, owner: str) -> Path:
        return self._main if owner == self._owner else self._folder / "people" / encode_id(owner)


def _link(place: Path, there: Path) -> None:
    """What somebody has put there himself stays."""
    if place.is_symlink() and not place.exists():
        place.unlink()
    if there.exists() and not place.exists():
        place.symlink_to(there)
