"""`everthread skills`: list, show, create and check skills."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, render, table
from everthread.domain.text_format import one_line, pluralize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everthread.agent.skills.folders import FoundSkill, SkillFolders

_DESCRIPTION_CHARS = 100
_BODY = """\
# {title}

Describe the steps: what to look at first, which tools to use, what to leave alone, and how to tell that the work is
done. Put longer texts into references/ and programs into scripts/.
"""


@click.group()
def skills() -> None:
    """List, create and check skills.

    A skill is a set of instructions that the agent reads when a task calls for it. It is a folder with a SKILL.md, in
    `skills` in the home, or in .everthread/skills of the working folder.

    \b
    Examples:
      everthread skills list
      everthread skills new release-notes -d "How to write our release notes."
      everthread skills validate
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

    def text() -> Iterator[str]:
        if skill_set.found:
            yield table(("NAME", "FROM", "DESCRIPTION"), [_row(found) for found in skill_set.found])
        elif not skill_set.problems:
            yield "No skills yet. Create one with everthread skills new NAME."
        for problem in skill_set.problems:
            click.echo(f"unusable: {one_line(problem)}", err=True)

    data = {"skills": [_as_json(found) for found in skill_set.found], "problems": list(skill_set.problems)}
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

    return SkillFolders(cli.settings.skills_path, working_folder())


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
