"""The plugins of installed packages, found without importing them, and their approval.

A plugin runs with the rights of the program. An installed package may have one that nobody asked for, so it is loaded
only if the settings name it or the user has approved it as it is now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from everthread.trust.decisions import PluginDecision, Trust, TrustFile, state_of

if TYPE_CHECKING:
    # Slow to import, and not needed where no plugin is installed.
    from importlib.metadata import EntryPoint

FILE_BYTES_MAX = 5_000_000


class InstalledPlugin(Struct, frozen=True):
    """A plugin that an installed package declares."""

    name: str
    target: str
    """Its module, or MODULE:OBJECT."""
    package: str
    """The package with its version."""
    file: str
    """The file of its module; empty if it was not found."""
    digest: str
    """Of the package's version and list of files, and of the module's file."""
    rivals: tuple[str, ...] = ()
    """Other packages with a plugin of this name."""


class PluginTrust(Struct, frozen=True):
    """Decide which plugins are loaded: those that the settings allow by name, and those that the user approved."""

    allowed: Collection[str]
    trust: TrustFile

    def state(self, plugin: InstalledPlugin) -> Trust:
        # A name says nothing if two packages claim it.
        if plugin.rivals:
            return Trust.NEW
        if plugin.name in self.allowed:
            return Trust.APPROVED
        decision = self.trust.read().plugins.get(plugin.name)
        is_same = decision is not None and decision.digest == plugin.digest
        return state_of(decision.approved if decision else None, lambda: is_same)

    def decide(self, plugin: InstalledPlugin, approved: bool | None) -> None:
        """Approve or refuse a plugin as it is now; None forgets the decision."""
        decision = PluginDecision(approved, plugin.digest) if approved is not None else None
        self.trust.decide_plugin(plugin.name, decision)


def why_not_loaded(plugin: InstalledPlugin, state: Trust) -> tuple[str, str]:
    """Say why a plugin is not loaded, and what to do about it."""
    if plugin.rivals:
        packages = " and ".join((plugin.package, *plugin.rivals))
        return f"{packages} both have a plugin {plugin.name}", "uninstall all but one of these packages"
    says = f"plugin {plugin.name} of {plugin.package} is not loaded: {state.value}"
    line = f'[plugins] allow = ["{plugin.name}"]'
    return says, f"everthread plugins allow {plugin.name}, or in config.toml: {line}"


def describe(entries: Iterable[EntryPoint]) -> list[tuple[InstalledPlugin, EntryPoint]]:
    """Describe plugins by their entry points, sorted by name, each name once. Imports none of their packages."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    return [(_describe(same), same[0]) for _, same in sorted(by_name.items())]


def _describe(same: list[EntryPoint]) -> InstalledPlugin:
    entry = same[0]
    module, _, _ = entry.value.partition(":")
    file = module_file(module.strip())
    dist = entry.dist
    package = _package(entry)
    listed = (dist.read_text("RECORD") if dist is not None else None) or ""
    content = _content(file) if file else b""
    parts = (entry.name.encode(), entry.value.encode(), package.encode(), listed.encode(), content)
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    rivals = tuple(_package(each) for each in same[1:])
    return InstalledPlugin(entry.name, entry.value, package, file, digest, rivals)


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


def module_file(module: str) -> str:
    """Find the file of a module on `sys.path`; empty if there is none. No parent package is imported for that."""
    folders: list[str] | None = None
    name = file = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return ""
        folders = list(spec.submodule_search_locations or ())
        file = spec.origin or ""
    return file


def _content(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(FILE_BYTES_MAX)
    except OSError:
        return b""
