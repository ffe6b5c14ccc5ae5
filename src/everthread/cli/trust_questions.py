"""Ask in the terminal about plugins and project skills that nobody has decided about. Called before a chat opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.config.environment import working_folder
from everthread.domain.errors import EverthreadError
from everthread.domain.text_format import one_line, pluralize, shorten
from everthread.plugins import find_installed
from everthread.trust.decisions import Trust, trust_file
from everthread.trust.installed_plugins import PluginTrust
from everthread.trust.project_skills import ProjectSkills, digests, text_of

if TYPE_CHECKING:
    from everthread.config.schema import Settings
    from everthread.trust.decisions import TrustFile
    from everthread.trust.installed_plugins import InstalledPlugin

_SHOWN_MAX = 20
_UNDECIDED = (Trust.NEW, Trust.CHANGED)


def ask_for_trust(settings: Settings) -> None:
    """Ask once about each plugin, and about the skills of the working folder, as they are now. Remember the answers."""
    trust = trust_file(settings)
    try:
        _ask_about_plugins(PluginTrust(settings.plugins.allow, trust))
        _ask_about_skills(settings, trust)
    except EverthreadError as error:
        # The chat works without them, and says what is not used.
        click.echo(f"everthread: {one_line(str(error))}", err=True)


def _ask_about_plugins(trust: PluginTrust) -> None:
    for plugin, _ in find_installed():
        state = trust.state(plugin)
        if state in _UNDECIDED and not plugin.rivals:
            trust.decide(plugin, _may_load(plugin, state))


def _may_load(plugin: InstalledPlugin, state: Trust) -> bool:
    click.echo(f"The installed package {one_line(plugin.package)} has a plugin for Everthread, {state.value}:")
    click.echo(f"  name  {one_line(plugin.name)}\n  runs  {one_line(plugin.target)}")
    click.echo(f"  file  {one_line(plugin.file) or 'not found'}")
    return click.confirm("It would run with your rights, and see your conversations. Load it?", default=False)


def _ask_about_skills(settings: Settings, trust: TrustFile) -> None:
    project = working_folder()
    if project is None:
        return
    skills = ProjectSkills(project, trust)
    if not skills.exist() or skills.folder.resolve() == settings.skills_path.resolve():
        return
    # Read before anything is shown: the answer holds for these files, whatever is changed meanwhile.
    files = digests(skills.folder)
    state = skills.state()
    if state not in _UNDECIDED:
        return
    from everthread.agent.skills.folders import SkillFolders
    from everthread.agent.skills.format import FILE

    found = [
        each
        for each in SkillFolders(settings.skills_path, project, trust, inspects=True).read_all().found
        if each.skill.project
    ]
    click.echo(f"This folder has skills, {state.value}: {one_line(str(skills.folder))}")
    for each in found[:_SHOWN_MAX]:
        click.echo(f"  {one_line(each.skill.name)}: {shorten(each.skill.description, 100)}")
    if len(found) > _SHOWN_MAX:
        click.echo(f"  and {len(found) - _SHOWN_MAX} more")
    if others := len(files.keys() - {text_of(each.folder.relative_to(skills.folder) / FILE) for each in found}):
        click.echo(f"  and {pluralize(others, 'other file')}, which the agent may read too")
    skills.decide(click.confirm("The agent would follow these instructions. Use them?", default=False), files)
