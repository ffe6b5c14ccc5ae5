"""Kill -9 during downloads of attachments: check the stored files and the answers."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

from tests.faults.fixture import PlatformKind, Scene
from tests.faults.platforms import OnTelegram
from tests.faults.result import Outcome

CHATS = 5
FILE_BYTES = 300_000
LEFT = ("set_aside", "late", "interrupted")
FETCH_S = (0.0, 0.1, 0.2, 0.4)
WHERE = """
SELECT messages.content, turns.status FROM messages JOIN turns ON turns.id = messages.id / 4096
WHERE messages.role = 'user' AND messages.content LIKE ? || '%'
"""
PACKED = "SELECT COUNT(*) FROM inbox WHERE state = 'waiting' AND media LIKE '%handle%'"
_KEPT_AS = re.compile(r"; stored as ([^\]]+)\]")


async def killed_while_fetching(
    folder: Path, times: int, *, platform: PlatformKind = "telegram", seed: int = 1
) -> Outcome:
    """Let five users send a file each and kill the gateway during the downloads, this many times.

    One of the five has left by `/new` before the next process can fetch anything.
    """
    outcome, dice = Outcome(times), random.Random(seed)
    sent: dict[str, tuple[str, bytes]] = {}
    left: set[str] = set()
    fetching = 0
    async with Scene(folder, platform=platform) as scene:
        people = scene.people
        assert isinstance(people, OnTelegram)
        for number in range(times):
            life = await scene.start()
            chats = [f"c{number}-{n}" for n in range(CHATS)]
            for chat in chats:
                await people.delay_next_file(dice.choice(FETCH_S))
                sent[f"{chat} look"] = chat, dice.randbytes(FILE_BYTES)
                await people.send_file(chat, f"{chat} look", sent[f"{chat} look"][1], "list.bin")
            await scene.all_taken()
            await asyncio.sleep(dice.uniform(0.0, 0.3))
            life.kill()
            fetching += scene.rows(PACKED)[0][0]
            await people.heal()
            await people.say(chats[0], "/new")
            left.add(f"{chats[0]} look")
        life = await scene.start()
        await scene.all_taken()
        await scene.rest()
        # The next process removes unused files when it starts, at the latest.
        await life.end()
        await scene.start()
        await people.refresh()
        outcome.counts["being fetched when killed"] = fetching
        outcome.expect(fetching > 0, "nobody was killed while fetching anything")
        _look_at_all(outcome, scene, sent, left)
    return outcome


def _look_at_all(outcome: Outcome, scene: Scene, sent: dict[str, tuple[str, bytes]], left: set[str]) -> None:
    kept: set[Path] = set()
    answered: list[tuple[str, str]] = []
    for text, (chat, content) in sent.items():
        places = scene.rows(WHERE, text)
        if len(places) != 1:
            outcome.problems.append(f"{text!r} stands in {len(places)} turns")
            continue
        told, status = places[0]
        found = _KEPT_AS.search(told)
        if status == "done":
            answered.append((chat, text))
            outcome.expect(found is not None, f"{text!r} was answered without its file")
        else:
            # The next process may already answer messages whose files were fetched.
            outcome.expect(text in left and status in LEFT, f"{text!r} is {status}")
            outcome.counts["left before they were answered"] = (
                outcome.counts.get("left before they were answered", 0) + 1
            )
        if found is not None:
            path = Path(found[1])
            kept.add(path)
            outcome.expect(path.is_file() and path.read_bytes() == content, f"the file of {text!r} is not whole")
    outcome.counts["files"] = len(sent)
    outcome.counts["files kept, whole"] = len(kept)
    files = {path for path in (scene.home / "media").rglob("*") if path.is_file()}
    outcome.counts["files that nobody has"] = len(files - kept)
    outcome.expect(files == kept, f"{len(files - kept)} files are kept for nobody")
    outcome.answered_once_or_marked(scene, answered)
