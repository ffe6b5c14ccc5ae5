"""`everthread skills`: the instructions that the agent reads when they fit what it is about to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation
from everthread.cli.exit_codes import REFUSED

if TYPE_CHECKING:
    from everthread.agent.skills.folders import Found, SkillFolders

_DESCRIPTION_CHARS = 100
_BODY = """\
# {title}

Say here, step by step, how this is done: what to look at first, what to use, what to leave alone, and how to tell
that it is done. Longer texts belong into references/, programs into scripts/.
"""


@click.group()
def skills() -> None:
    """Look at skills, begin new ones, check them.

    Skills are instructions that the agent reads when they fit what it is about to do. Each is a folder
    with a SKILL.md, in `skills` in the home, or in .everthread/skills where you start the program.

    \b
    Examples:
      everthread skills list
      everthread skills new release-notes -d "How to write our release notes."
      everthread skills validate
    """


@skills.command("list")
@json_option
@home_option
@pass_invocation
def list_skills(invocation: CliContext, as_json: bool) -> None:
    """List the skills there are, and what is wrong with those that can't be used.

    \b
    Examples:
      everthread skills list
      everthread skills list --json | jq -r '.skills[].name'
    """
    shelf = _folders(invocation).shelf()
    if as_json:
        show.print_json({"skills": [_as_json(found) for found in shelf.found], "problems": list(shelf.problems)})
        return
    rows = [
        (found.skill.name, _origin(found), show.shortened(found.skill.description, _DESCRIPTION_CHARS))
        for found in shelf.found
    ]
    if rows:
        click.echo(show.table(("NAME", "FROM", "WHAT FOR"), rows))
    elif not shelf.problems:
        click.echo("No skills yet; everthread skills new NAME begins one.")
    for problem in shelf.problems:
        click.echo(f"not usable: {show.one_line(problem)}", err=True)


@skills.command("show")
@click.argument("name")
@click.argument("file", required=False)
@json_option
@home_option
@pass_invocation
def show_skill(invocation: CliContext, name: str, file: str | None, as_json: bool) -> None:
    """Show the skill NAME as the agent reads it, or another FILE of it.

    \b
    Examples:
      everthread skills show release-notes
      everthread skills show release-notes references/examples.md
      everthread skills show release-notes --json
    """
    from everthread.agent.skills.format import FILE

    folders = _folders(invocation)
    found = folders.get(name)
    text = folders.text(found, file or FILE)
    if as_json:
        show.print_json(_as_json(found) | {"file": file or FILE, "text": text, "files": list(folders.files(found))})
        return
    click.echo(
        "\n".join("".join(c if c.isprintable() or c == "\t" else " " for c in line) for line in text.splitlines())
    )
    others = folders.files(found) if file is None else ()
    if others:
        click.echo(f"\nIts other files: {', '.join(map(show.one_line, others))}")


@skills.command()
@click.argument("name")
@click.option("-d", "--description", metavar="TEXT", default="", help="What it is for, and when to use it.")
@json_option
@home_option
@pass_invocation
def new(invocation: CliContext, name: str, description: str, as_json: bool) -> None:
    """Begin the skill NAME: a folder with a SKILL.md to be filled in. What is there already is left alone.

    \b
    Examples:
      everthread skills new release-notes -d "How to write our release notes."
      everthread skills new travel --json
    """
    from everthread.agent.skills.format import FILE, Written

    folders = _folders(invocation)
    said = description or f"How {name.replace('-', ' ')} is done; say here when to use it."
    folders.write(Written(name, said, _BODY.format(title=name.replace("-", " ").capitalize())), new=True)
    file = folders.own / name / FILE
    if as_json:
        show.print_json({"name": name, "file": str(file)})
    else:
        click.echo(f"Begun: {file}\nFill it in, then: everthread skills validate {name}")


@skills.command()
@click.argument("what", metavar="[NAME|FOLDER]", required=False)
@json_option
@home_option
@pass_invocation
def validate(invocation: CliContext, what: str | None, as_json: bool) -> None:
    """Check all skills, or the one of that NAME or in that FOLDER. Exits with 1 if something is wrong.

    \b
    Examples:
      everthread skills validate
      everthread skills validate release-notes
      everthread skills validate ./drafts/release-notes --json
    """
    checked, problems = _checked(_folders(invocation), what)
    if as_json:
        show.print_json({"ok": not problems, "checked": checked, "problems": problems})
    else:
        for problem in problems:
            click.echo(show.one_line(problem), err=True)
        if not problems:
            click.echo(f"{show.counted(checked, 'skill')}, nothing wrong." if checked else "There are no skills yet.")
    if problems:
        raise click.exceptions.Exit(REFUSED)


def _checked(folders: SkillFolders, what: str | None) -> tuple[int, list[str]]:
    """How many skills were looked at, and what is wrong with them."""
    from everthread.agent.skills.folders import check
    from everthread.agent.skills.format import name_problem

    if what is None:
        shelf = folders.shelf()
        return len(shelf.found) + len(shelf.problems), list(shelf.problems)
    own = folders.own / what
    folder = own if not name_problem(what) and own.exists() else Path(what)
    if not folder.exists() and not name_problem(what):
        # One of the project, or none at all, which it says.
        folder = folders.get(what).folder
    problem = check(folder)
    return 1, [problem] if problem else []


def _folders(invocation: CliContext) -> SkillFolders:
    from everthread.agent.skills.folders import SkillFolders
    from everthread.config.environment import working_folder

    return SkillFolders(invocation.settings.skills_path, working_folder())


def _origin(found: Found) -> str:
    return "project" if found.skill.project else "you"


def _as_json(found: Found) -> dict[str, Any]:
    skill = found.skill
    return {
        "name": skill.name,
        "description": skill.description,
        "from": "project" if skill.project else "home",
        "folder": str(found.folder),
    }
