"""`everthread sessions rename` and `delete`."""

from __future__ import annotations

from tests.e2e.cli.commands.sessions.sessions_home import SampleHome
from tests.e2e.commands import everthread, printed, problems, refused

# --- Rename and delete -----------------------------------------------------------------------------------------------


def test_rename_sets_a_title_that_is_not_taken(sample: SampleHome) -> None:
    done = printed(sample.home, "sessions", "rename", "Taxes", "  Taxes   2026 ")
    assert done == {"id": sample.taxes, "title": "Taxes 2026", "before": "Taxes"}
    refused(everthread(sample.home, "sessions", "rename", sample.taxes, "trip to lisbon"), 2, "another session")
    refused(everthread(sample.home, "sessions", "rename", sample.taxes, " "), 2)
    assert printed(sample.home, "sessions", "show", sample.taxes)["title"] == "Taxes 2026"


def test_delete_asks_for_confirmation_and_forgets(sample: SampleHome) -> None:
    done = everthread(sample.home, "sessions", "delete", "Taxes", answer="n\n")
    assert done.returncode == 1
    assert sample.taxes in done.stdout
    done = printed(sample.home, "sessions", "delete", "Taxes", "--yes")
    assert (done["forgotten"], done["id"]) == ("session", sample.taxes)
    refused(everthread(sample.home, "sessions", "show", sample.taxes), 1)
    assert problems(sample.home) == []
