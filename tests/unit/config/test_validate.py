"""Finding every error in a configuration."""

from __future__ import annotations

from pathlib import Path

from tests.config_files import write_files

from everthread.config.settings import home_paths
from everthread.config.validate import PROBLEMS_MAX, problems


def test_every_error_of_every_file_is_listed_with_its_line(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        "[limits]\nturn_s = 0\niterations = true\n[nonsense]\n",
        env="A=1\nnot a variable\n",
        mcp='{"mcpServers": {"x": {}}}',
    )
    found = problems(home_paths(str(tmp_path), {}))
    files = sorted(line.removeprefix(f"{tmp_path}/").partition(": ")[0] for line in found)
    assert files == [".env:2", "config.toml:2", "config.toml:3", "config.toml:4", "mcp.json:1"]


def test_a_reference_to_an_invalid_provider_is_not_a_second_error(tmp_path: Path) -> None:
    write_files(tmp_path, 'model = "mine/x"\n[providers.mine]\ntools = false\n')
    (found,) = problems(home_paths(str(tmp_path), {}))
    assert found.startswith(f"{tmp_path}/config.toml:2: providers.mine: has no URL")


def test_a_draft_is_checked_in_place_of_the_file_and_the_list_is_bounded(tmp_path: Path) -> None:
    write_files(tmp_path, 'owner = "ada"')
    draft = "[prices]\n" + "".join(f'"openai/m{n}" = 1\n' for n in range(2 * PROBLEMS_MAX))
    assert problems(home_paths(str(tmp_path), {})) == []
    assert len(problems(home_paths(str(tmp_path), {}), draft=draft)) == PROBLEMS_MAX
