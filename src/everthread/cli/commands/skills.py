"""`everthread skills`: list, show, create and check skills."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, render, table
from everthread.domain.text_format import one_line, pluralize, shorten
from everthread.trust.decisions import Trust, trust_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everthread.agent.skills.folders import FoundSkill, SkillFolders
    from everthread.trust.project_skills import ProjectSkills

_DESCRIPTION_CHARS = 100
_TO_APPROVE = "Read them with everthread skills show NAME; to approve them, run: everthread skills trust"
_BODY = """\
# {title}

Describe the steps: what to look at first, which tools to use, what to leave alone, and how to tell that the work is
done. Put longer texts into references/ and programs into scripts/.
"""


@click.group()
def skills() -> None:
    """List, create and check skills, and approve those of a project.

    A skill is a set of instructions that the agent reads when a task calls for it. It is a folder with a SKILL.md, in
    `skills` in the home, or in .everthread/skills of the working folder.

    \b
    Examples:
      everthread skills list
      everthread skills new release-notes -d "How to write our release notes."
      everthread skills validate
      everthread skills trust
    """


@skills.command("list")
@common_options
def list_skills(cli: CliContext, as_json: bool) -> None:
    """List skills, and the problems of unusable ones.

    \b
    Examples:
      everthread skills list
      everthread skills list --json | jq -r '.skills[].name'
    """
    skill_set = _folders(cli).read_all()
    project = _project_state(cli)

    def text() -> Iterator[str]:
        if skill_set.found:
            yield table(("NAME", "FROM", "DESCRIPTION"), [_row(found) for found in skill_set.found])
            if project is not None and project is not Trust.APPROVED:
                click.echo(f"The project's skills are not used: {project.value}. {_TO_APPROVE}", err=True)
        elif not skill_set.problems:
            yield "No skills yet. Create one with everthread skills new NAME."
        for problem in skill_set.problems:
            click.echo(f"unusable: {one_line(problem)}", err=True)

    data = {
        "skills": [_as_json(found) for found in skill_set.found],
        "problems": list(skill_set.problems),
        "project": project.name.lower() if project is not None else None,
    }
    render(Result(data, text), as_json)


@skills.command("show")
@click.argument("name")
@click.argument("file", required=False)
@common_options
def show_skill(cli: CliContext, name: str, file: str | None, as_json: bool) -> None:
    """Show skill NAME as the agent reads it, or another FILE of it.

    \b
    Examples:
      everthread skills show release-notes
      everthread skills show release-notes references/examples.md
      everthread skills show release-notes --json
    """
    from everthread.agent.skills.format import FILE

    folders = _folders(cli)
    found = folders.get(name)
    content = folders.text(found, file or FILE)

    def text() -> Iterator[str]:
        lines = ("".join(c if c.isprintable() or c == "\t" else " " for c in line) for line in content.splitlines())
        yield "\n".join(lines)
        if file is None and (others := folders.files(found)):
            yield f"\nOther files: {', '.join(map(one_line, others))}"

    def data() -> dict[str, Any]:
        return _as_json(found) | {"file": file or FILE, "text": content, "files": list(folders.files(found))}

    render(Result(data, text), as_json)


@skills.command()
@click.argument("name")
@click.option("-d", "--description", metavar="TEXT", default="", help="Purpose of the skill, and when to use it.")
@common_options
def new(cli: CliContext, name: str, description: str, as_json: bool) -> None:
    """Create skill NAME: a folder with a SKILL.md template. Existing files are not overwritten.

    \b
    Examples:
      everthread skills new release-notes -d "How to write our release notes."
      everthread skills new travel --json
    """
    from everthread.agent.skills.format import FILE, SkillText

    folders = _folders(cli)
    summary = description or f"How to do {name.replace('-', ' ')}. Describe here when to use it."
    folders.write(SkillText(name, summary, _BODY.format(title=name.replace("-", " ").capitalize())), new=True)
    file = folders.own / name / FILE
    text = f"Created {file}\nEdit it, then run: everthread skills validate {name}"
    render(Result({"name": name, "file": str(file)}, text), as_json)


@skills.command()
@click.argument("what", metavar="[NAME|FOLDER]", required=False)
@common_options
def validate(cli: CliContext, what: str | None, as_json: bool) -> None:
    """Check all skills, or one by NAME or FOLDER. The exit code is 1 if there is a problem.

    \b
    Examples:
      everthread skills validate
      everthread skills validate release-notes
      everthread skills validate ./drafts/release-notes --json
    """
    checked, problems = _check(_folders(cli), what)

    def text() -> Iterator[str]:
        for problem in problems:
            click.echo(one_line(problem), err=True)
        if not problems:
            yield f"{pluralize(checked, 'skill')} checked, no problems." if checked else "No skills yet."

    render(Result({"ok": not problems, "checked": checked, "problems": problems}, text), as_json, ok=not problems)


@skills.command()
@click.option("--revoke", is_flag=True, help="Forget the decision instead.")
@common_options
def trust(cli: CliContext, revoke: bool, as_json: bool) -> None:
    """Approve the skills of the project in the working folder, as they are now.

    The agent follows a project's skills, so they are used only after you have approved them. A file that is added or
    changed later is not used until you approve again. Read the skills first: everthread skills list, show.

    \b
    Examples:
      everthread skills trust
      everthread skills trust --revoke
      everthread skills trust --json
    """
    from everthread.domain.errors import NotFound

    skills_of = _project_skills(cli)
    if skills_of is None or not (revoke or skills_of.exist()):
        raise NotFound("there are no skills in .everthread/skills of this folder; change to the folder of the project")
    skills_of.decide(None if revoke else True)
    names = [each.skill.name for each in _folders(cli).read_all().found if each.skill.project]
    if revoke:
        text = f"Forgot the decision about the skills in {skills_of.folder}. They are not used."
    else:
        text = f"Approved {pluralize(len(names), 'skill')} in {skills_of.folder}: {', '.join(names) or 'none usable'}"
    data = {"project": str(skills_of.project), "approved": not revoke, "skills": names}
    render(Result(data, text), as_json)


def _project_skills(cli: CliContext) -> ProjectSkills | None:
    from everthread.config.environment import working_folder
    from everthread.trust.project_skills import ProjectSkills

    project = working_folder()
    return ProjectSkills(project, trust_file(cli.settings)) if project is not None else None


def _project_state(cli: CliContext) -> Trust | None:
    """Return the state of the project's skills; None if there are none."""
    skills_of = _project_skills(cli)
    if skills_of is None or not skills_of.exist() or skills_of.folder.resolve() == cli.settings.skills_path.resolve():
        return None
    return skills_of.state()


def _check(folders: SkillFolders, what: str | None) -> tuple[int, list[str]]:
    """Check skills; return their number and the problems."""
    from everthread.agent.skills.folders import check
    from everthread.agent.skills.format import name_problem

    if what is None:
        skill_set = folders.read_all()
        return len(skill_set.found) + len(skill_set.problems), list(skill_set.problems)
    own = folders.own / what
    folder = own if not name_problem(what) and own.exists() else Path(what)
    if not folder.exists() and not name_problem(what):
        # A skill of the project; `get` raises if there is none of that name.
        folder = folders.get(what).folder
    problem = check(folder)
    return 1, [problem] if problem else []


def _folders(cli: CliContext) -> SkillFolders:
    from everthread.agent.skills.folders import SkillFolders
    from everthread.config.environment import working_folder

    # To be shown to the user, who decides about them; the agent gets approved ones only.
    return SkillFolders(cli.settings.skills_path, working_folder(), trust_file(cli.settings), inspects=True)


def _row(found: FoundSkill) -> tuple[str, ...]:
    skill = found.skill
    return skill.name, "project" if skill.project else "you", shorten(skill.description, _DESCRIPTION_CHARS)


def _as_json(found: FoundSkill) -> dict[str, Any]:
    skill = found.skill
    return {
        "name": skill.name,
        "description": skill.description,
        "from": "project" if skill.project else "home",
        "folder": str(found.folder),
    }
