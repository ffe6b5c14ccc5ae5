"""`everthread config`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.chat_home import Terminal

SECRET = "sk-ant-0123456789abcdefghij"


CONFIG = """\
model = "ollama/qwen3"

[limits]
turn_s = 30

[mcpServers.files]
command = "npx"
args = ["hunter2"]
env = { PIN = "hunter2", FILES_TOKEN = "${FILES_TOKEN}" }

[reset.chat_types.group]
mode = "idle"
idle_minutes = 60
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={SECRET}\n")
    (tmp_path / ".env").chmod(0o600)
    return tmp_path


def everthread(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "everthread", "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        env=inherited | variables,
        timeout=18,
        check=False,
    )


def printed(home: Path, *arguments: str, **variables: str) -> Any:
    done = everthread(home, *arguments, "--json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_show_has_all_settings_and_no_secret(home: Path) -> None:
    shown = printed(home, "config", "show", EVERTHREAD_MODEL="local/x", ANTHROPIC_API_KEY=SECRET)
    assert shown["model"] == "local/x"
    assert shown["limits"] == {"iterations": 50, "turn_s": 30.0, "output_tokens": 8192, "spend_per_day": None}
    assert shown["reset"]["mode"] == "none"
    assert shown["reset"]["chat_types"] == {
        "group": {"mode": "idle", "idle_minutes": 60.0, "hour": None, "zone": None},
    }
    set_or_not = {name: provider["api_key_set"] for name, provider in shown["providers"].items()}
    assert (set_or_not["anthropic"], set_or_not["openai"], set_or_not["gemini"]) == (True, True, False)
    assert set_or_not["ollama"] is None, "ollama needs no key"
    assert shown["mcpServers"]["files"]["env"] == {"PIN": "[hidden]", "FILES_TOKEN": "${FILES_TOKEN}"}
    for text in (json.dumps(shown), everthread(home, "config", "show", FILES_TOKEN=SECRET).stdout):
        assert SECRET not in text
        assert "hunter2" not in text


def test_show_prints_a_table(home: Path) -> None:
    lines = everthread(home, "config", "show").stdout.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["SETTING"] == "VALUE"
    assert rows["model"] == "ollama/qwen3"
    assert rows["limits.turn_s"] == "30"
    assert rows["providers.openai.api_key_set"] == "yes"
    assert rows["reset.chat_types.group.idle_minutes"] == "60"


def test_path_is_printed_even_if_the_file_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[broken")
    assert everthread(tmp_path, "config", "path").stdout == f"{tmp_path / 'config.toml'}\n"
    assert printed(tmp_path / "not there", "config", "path") == {
        "home": f"{tmp_path}/not there",
        "config": f"{tmp_path}/not there/config.toml",
        "env": f"{tmp_path}/not there/.env",
        "mcp": f"{tmp_path}/not there/mcp.json",
    }
    assert not (tmp_path / "not there").exists()


def test_validate_accepts_a_valid_file(home: Path, tmp_path: Path) -> None:
    assert everthread(home, "config", "validate").stdout == f"{home / 'config.toml'}: no problems.\n"
    assert printed(home, "config", "validate") == {"valid": True, "error": None, "problems": [], "warnings": []}
    assert "does not exist; defaults are used" in everthread(tmp_path / "none", "config", "validate").stdout
    (home / ".env").chmod(0o644)
    [warning] = printed(home, "config", "validate")["warnings"]
    assert f"chmod 600 {home / '.env'}" in warning
    assert warning in everthread(home, "config", "validate").stdout


@pytest.mark.parametrize("command", ["config validate", "config show", "sessions list", "forget 01ABCD --yes"])
def test_an_invalid_file_is_one_line_and_exit_code_78_for_every_command(command: str, home: Path) -> None:
    (home / "config.toml").write_text("[limits]\nturns = 5\n")
    done = everthread(home, *command.split())
    assert done.returncode == 78
    assert done.stderr == (
        f"everthread: {home / 'config.toml'}:2: Unknown setting 'limits.turns'. Did you mean limits.turn_s?\n"
    )
    assert done.stdout == ""


def test_validate_prints_problems_as_json(home: Path) -> None:
    (home / "config.toml").write_text("model = 'x'")
    done = everthread(home, "config", "validate", "--json")
    assert done.returncode == 78
    told = json.loads(done.stdout)
    assert told["valid"] is False
    assert told["error"].startswith(f"{home / 'config.toml'}:1: model: not a model")
    assert done.stderr == f"everthread: {told['error']}\n"


def test_a_key_without_a_model_is_reported_only_by_validate(home: Path) -> None:
    (home / "config.toml").unlink()
    done = everthread(home, "config", "validate")
    assert (done.returncode, done.stdout) == (78, "")
    assert f'at the top of {home / "config.toml"}: model = "openai/MODEL"\n' in done.stderr
    assert everthread(home, "sessions", "list").returncode == 0


def test_validate_reports_every_problem_with_its_line(home: Path) -> None:
    (home / "config.toml").write_text(
        'model = "mine/x"\nowener = "me"\n[limits]\nturn_s = "long"\niterations = 0\n'
        '[providers.mine]\ntools = true\n[tools]\nallow = ["a", 5, "b"]\n'
    )
    (home / ".env").write_text("A=1\nnonsense\nB='open\n")
    (home / "mcp.json").write_text('{"mcpServers": {\n"a": {},\n"b": {"command": "x", "url": "http://x"}}}')
    done = everthread(home, "config", "validate")
    assert (done.returncode, done.stdout) == (78, "")
    env, config, mcp = home / ".env", home / "config.toml", home / "mcp.json"
    places = [line.removeprefix("everthread: ").split(": ")[0] for line in done.stderr.splitlines()]
    assert sorted(places) == sorted(
        [f"{env}:2", f"{env}:3", *(f"{config}:{line}" for line in (2, 4, 5, 6, 9)), f"{mcp}:2", f"{mcp}:3"]
    )
    told = json.loads(everthread(home, "config", "validate", "--json").stdout)
    assert len(told["problems"]) == 9
    assert told["error"] == told["problems"][0]


# --- get and set -----------------------------------------------------------------------------------------------------


def test_get_prints_the_value_and_its_origin(home: Path) -> None:
    config = home / "config.toml"

    def told(key: str, **variables: str) -> tuple[Any, str]:
        got = printed(home, "config", "get", key, **variables)
        return got["value"], got["from"]

    assert told("model") == ("ollama/qwen3", f"{config}:1")
    assert told("model", EVERTHREAD_MODEL="local/x") == ("local/x", "environment (EVERTHREAD_MODEL)")
    assert told("limits.turn_s") == (30.0, f"{config}:4")
    assert told("limits.iterations") == (50, "default")
    assert told("mcpServers.files.env.PIN") == ("[hidden]", f"{config}:9")
    address = told("providers.openai.base_url", OPENAI_BASE_URL="http://127.0.0.1:1")
    assert address == ("http://127.0.0.1:1", "environment (OPENAI_BASE_URL)")
    (home / ".env").write_text("EVERTHREAD_OWNER=ana\n")
    (home / ".env").chmod(0o600)
    assert told("owner") == ("ana", f"{home / '.env'} (EVERTHREAD_OWNER)")
    shown = everthread(home, "config", "get", "limits").stdout.splitlines()
    assert shown[0].split() == ["SETTING", "VALUE", "FROM"]
    assert f"limits.turn_s         30     {config}:4" in shown
    for key, words in (("limits.turns", "Did you mean limits.turn_s?"), ("modl", "Did you mean model?")):
        done = everthread(home, "config", "get", key)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr


def test_set_changes_one_setting_and_nothing_else(home: Path) -> None:
    config = home / "config.toml"
    config.write_text("# mine\n" + CONFIG.replace("30", "30  # seconds"))
    config.chmod(0o644)
    before = config.read_text()
    done = everthread(home, "config", "set", "limits.turn_s", "45.5")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"limits.turn_s is set in {config}.\n", "")
    assert config.read_text() == before.replace("30  #", "45.5  #")
    assert config.stat().st_mode & 0o777 == 0o600
    for key, value in (("owner", "42"), ("fallback_models", "local/a, local/b"), ("tools.allow", '["x"]')):
        assert everthread(home, "config", "set", key, value).returncode == 0
    shown = printed(home, "config", "show")
    assert (shown["owner"], shown["fallback_models"]) == ("42", ["local/a", "local/b"])
    assert shown["tools"]["allow"] == ["x"]
    assert sorted(path.name for path in home.iterdir()) == [".env", "config.toml"], "no temporary files may be left"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("limits.turns", "5", "Did you mean limits.turn_s?"),
        ("limits.turn_s", "long", "expected a number"),
        ("limits.turn_s", "0", "out of range"),
        ("modle", "ollama/x", "Did you mean model?"),
        ("model", "nowhere/x", "unknown provider"),
        ("limits", "5", "config edit"),
        ("a b", "5", "is not a setting"),
        ("x = 1\ny", "5", "is not a setting"),
    ],
)
def test_an_invalid_value_is_reported_and_changes_nothing(home: Path, key: str, value: str, words: str) -> None:
    done = everthread(home, "config", "set", key, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert (home / "config.toml").read_text() == CONFIG


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("providers.openai.api_key", SECRET),
        ("providers.openai.api_key", "8642"),
        ("mcpServers.files.headers.Authorization", SECRET),
        ("owner", SECRET),
    ],
)
def test_a_secret_is_refused_and_not_printed(home: Path, key: str, secret: str) -> None:
    done = everthread(home, "config", "set", key, secret)
    assert done.returncode == 2
    assert str(home / ".env") in done.stderr
    assert secret not in done.stderr
    assert (home / "config.toml").read_text() == CONFIG


def test_set_writes_through_a_symbolic_link(home: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("dotfiles") / "everthread.toml"
    (home / "config.toml").rename(elsewhere)
    (home / "config.toml").symlink_to(elsewhere)
    assert everthread(home, "config", "set", "owner", "ana").returncode == 0
    assert (home / "config.toml").is_symlink()
    assert 'owner = "ana"' in elsewhere.read_text()


def test_set_repairs_or_creates_the_file_and_reports_precedence(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert everthread(home, "config", "set", "model", "ollama/x").returncode == 0
    assert (home / "config.toml").read_text() == 'model = "ollama/x"\n'
    assert (home.stat().st_mode & 0o777, (home / "config.toml").stat().st_mode & 0o777) == (0o700, 0o600)
    (home / "config.toml").write_text('model = "x"\n')
    done = everthread(home, "config", "set", "model", "ollama/y", EVERTHREAD_MODEL="local/z")
    assert done.returncode == 0
    assert "EVERTHREAD_MODEL) takes precedence" in done.stderr
    (home / "config.toml").write_text('[limits]\nturn_s = "x"\n')
    done = everthread(home, "config", "set", "model", "ollama/y")
    assert done.returncode == 78, "another error in the file must be reported"
    assert f"{home / 'config.toml'}:" in done.stderr


def test_a_negative_number_is_not_taken_for_an_option(home: Path) -> None:
    for written, told in (("-1", "out of range"), ("nan", "number"), ("inf", "out of range"), ("-inf", "-inf")):
        done = everthread(home, "config", "set", "limits.turn_s", written)
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr
        assert "as it is written" not in done.stderr
    done = everthread(home, "config", "set", "owner", "--typo")
    assert (done.returncode, "No such option" in done.stderr) == (2, True)


# --- edit ------------------------------------------------------------------------------------------------------------


def editor(folder: Path, text: str) -> str:
    program = folder / "editor.py"
    program.write_text(f"import sys, pathlib\npathlib.Path(sys.argv[1]).write_text({text!r})\n")
    return f"{sys.executable} {program}"


def test_an_invalid_text_can_be_edited_again(home: Path, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("editor")
    program = folder / "editor.py"
    program.write_text(
        "import sys, pathlib\npath = pathlib.Path(sys.argv[1])\n"
        "wrong = 'turns = 1' in path.read_text()\n"
        "path.write_text('owner = \"ana\"' if wrong else '[limits]\\nturns = 1\\n')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VISUAL", f"{sys.executable} {program}")
        terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "config", "edit"])
    try:
        terminal.expect("(?s)Unknown setting 'limits.turns'.*Open it again")
        terminal.type("\n")
        assert terminal.ended() == 0, terminal.seen
    finally:
        terminal.close()
    assert (home / "config.toml").read_text() == 'owner = "ana"'


def test_edit_saves_a_valid_text_and_keeps_a_rejected_one(home: Path, tmp_path_factory: Any) -> None:
    folder, config = tmp_path_factory.mktemp("editor"), home / "config.toml"
    done = everthread(home, "config", "edit", EDITOR=editor(folder, 'model = "ollama/z"\n'))
    assert (done.returncode, done.stdout) == (0, f"{config} was changed.\n")
    assert config.read_text() == 'model = "ollama/z"\n'
    wrong = 'model = "ollama/z"\n[limits]\nturns = 1\n'
    done = everthread(home, "config", "edit", VISUAL=editor(folder, wrong))
    assert (done.returncode, done.stdout) == (78, "")
    kept = home / "config.toml.rejected"
    assert f"{kept}:3: Unknown setting 'limits.turns'" in done.stderr
    assert (config.read_text(), kept.read_text()) == ('model = "ollama/z"\n', wrong)
    assert kept.stat().st_mode & 0o777 == 0o600
    # A rejected text is never overwritten.
    assert everthread(home, "config", "edit", EDITOR="true").stdout == f"{config} was not changed.\n"
    done = everthread(home, "config", "edit", VISUAL=editor(folder, wrong + "# again"))
    assert f"your text is in {kept}.2" in done.stderr
    assert (kept.read_text(), (home / "config.toml.rejected.2").read_text()) == (wrong, wrong + "# again")
    assert everthread(home, "config", "edit", EDITOR="false").returncode == 1
    assert sorted(path.name for path in home.iterdir()) == [
        *(".env", "config.toml", "config.toml.rejected", "config.toml.rejected.2")
    ]


def test_edit_can_continue_with_a_rejected_text(home: Path, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("editor")
    everthread(home, "config", "edit", VISUAL=editor(folder, "[limits]\nturns = 1\n"))
    program = folder / "editor.py"
    program.write_text(
        "import sys, pathlib\npath = pathlib.Path(sys.argv[1])\n"
        "path.write_text(path.read_text().replace('turns = 1', 'turn_s = 7'))\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VISUAL", f"{sys.executable} {program}")
        terminal = Terminal([sys.executable, "-m", "everthread", "--home", str(home), "config", "edit"])
    try:
        terminal.expect("Continue with the text rejected")
        terminal.type("\n")
        assert terminal.ended() == 0, terminal.seen
    finally:
        terminal.close()
    assert (home / "config.toml").read_text() == "[limits]\nturn_s = 7\n"
    assert not (home / "config.toml.rejected").exists()


def test_a_file_changed_meanwhile_is_not_overwritten(home: Path, tmp_path_factory: Any) -> None:
    folder, config = tmp_path_factory.mktemp("editor"), home / "config.toml"
    program = folder / "editor.py"
    program.write_text(
        "import sys, pathlib\npathlib.Path(sys.argv[1]).write_text('owner = \"ana\"')\n"
        f"pathlib.Path({str(config)!r}).write_text('owner = \"bo\"')\n"
    )
    done = everthread(home, "config", "edit", EDITOR=f"{sys.executable} {program}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "was changed meanwhile" in done.stderr
    assert (config.read_text(), (home / "config.toml.rejected").read_text()) == ('owner = "bo"', 'owner = "ana"')


def test_the_text_of_a_failing_editor_is_kept_and_not_used(home: Path, tmp_path_factory: Any) -> None:
    folder, config = tmp_path_factory.mktemp("editor"), home / "config.toml"
    before = config.read_text() if config.exists() else None
    program = folder / "editor.py"
    program.write_text("import sys, pathlib\npathlib.Path(sys.argv[1]).write_text('owner = \"ana\"')\nsys.exit(3)")
    done = everthread(home, "config", "edit", EDITOR=f"{sys.executable} {program}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "your text is in" in done.stderr
    assert (home / "config.toml.rejected").read_text() == 'owner = "ana"'
    assert (config.read_text() if config.exists() else None) == before
