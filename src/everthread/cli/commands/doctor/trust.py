"""Checks of what needs an approval: plugins of installed packages, and the skills of the working folder."""

from __future__ import annotations

from everthread.cli.commands.doctor.check import Case, Finding, bad, well
from everthread.trust.decisions import Trust, trust_file


async def plugins(case: Case) -> Finding:
    from everthread.plugins import find_installed
    from everthread.trust.installed_plugins import PluginTrust, why_not_loaded

    assert case.settings is not None
    trust = trust_file(case.settings)
    if problem := trust.problem():
        says, _, fix = problem.rpartition(". ")
        return bad(says, fix)
    deciding = PluginTrust(case.settings.plugins.allow, trust)
    states = [(plugin, deciding.state(plugin)) for plugin, _ in find_installed()]
    undecided = [why_not_loaded(plugin, state) for plugin, state in states if state in (Trust.NEW, Trust.CHANGED)]
    if undecided:
        return bad("; ".join(says for says, _ in undecided), "; ".join(fix for _, fix in undecided))
    refused = [plugin.name for plugin, state in states if state is Trust.REFUSED]
    if refused:
        return well(f"refused by you: {', '.join(refused)}")
    return well(f"{len(states)} approved" if states else "no installed package has one")


async def project_skills(case: Case) -> Finding:
    from everthread.config.environment import working_folder
    from everthread.trust.project_skills import ProjectSkills

    assert case.settings is not None
    project = working_folder()
    skills = ProjectSkills(project, trust_file(case.settings)) if project is not None else None
    if skills is None or not skills.exist() or skills.folder.resolve() == case.settings.skills_path.resolve():
        return well("the working folder has no skills of its own")
    state = skills.state()
    if state in (Trust.NEW, Trust.CHANGED):
        return bad(
            f"the skills in {skills.folder} are not used: {state.value}",
            "read them with everthread skills list and show, then run everthread skills trust in that folder",
        )
    return well(f"{skills.folder}: {state.value}")
