"""Result of a repeated fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from everthread.gateway.delivery_check import MAY_BE_TWICE
from tests.faults.fixture import Scene, answer_to


class Outcome(Struct):
    """Result of a fault run. `problems` is empty if all checks passed; `counts` are measurements."""

    repetitions: int
    counts: dict[str, float] = field(default_factory=dict[str, float])
    problems: list[str] = field(default_factory=list[str])

    def expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def told_once(self, scene: Scene, texts: Sequence[str]) -> None:
        """Check that each text reached the diary in one turn, and that the turns of each session are in order."""
        turns = scene.effects("turn")
        told = Counter(one.facts["text"] for one in turns)
        self.counts["turns"] = len(texts)
        self.counts["turns at the provider"] = sum(1 for text in texts if told[text])
        self.counts["turns there twice"] = sum(1 for text in texts if told[text] > 1)
        self.expect(not (lost := [text for text in texts if not told[text]]), f"never told: {lost[:5]}")
        self.expect(not (twice := [text for text in texts if told[text] > 1]), f"told twice: {twice[:5]}")
        for session, seqs in _by_session((one.session_id, one.seq) for one in scene.effects()).items():
            self.expect(seqs == sorted(seqs), f"out of order in {session}: {seqs}")

    def answered_once(self, scene: Scene, said: Iterable[tuple[str, str]]) -> None:
        """Check that each text was answered once, in its chat and nowhere else."""
        missing = self._shown_once(scene, said)
        self.counts["unanswered"] = len(missing)
        self.expect(not missing, f"{len(missing)} unanswered: {missing[:5]}")

    def answered_once_or_marked(self, scene: Scene, said: Iterable[tuple[str, str]]) -> None:
        """Check the same on a platform that shows repeated sends.

        A reply that may or may not have been sent is marked and reported as an incident; it does not count as lost. If
        sends can be repeated, no reply may be marked.
        """
        missing, marked = self._shown_once(scene, said), scene.marked()
        lost = sorted({*missing} - {*marked})
        self.counts["unanswered"] = len(lost)
        self.expect(not lost, f"{len(lost)} unanswered: {lost[:5]}")
        if not scene.repeats:
            self.expect(not marked, f"{len(marked)} replies are marked, and could have been repeated")
            return
        if scene.kind != "loop":
            self._looked_for(scene, missing)
        self.counts["marked, and not there"] = len(missing) - len(lost)
        self.counts["marked, and there"] = len(marked) - len(missing) + len(lost)
        incidents = scene.rows("SELECT COUNT(*) FROM incidents WHERE source = 'delivery'")[0][0]
        self.expect(incidents >= len(marked), f"{incidents} incidents for {len(marked)} marked replies")

    def _looked_for(self, scene: Scene, missing: Sequence[str]) -> None:
        """Check that every message has an answer on a platform that can look up a send."""
        self.expect(not missing, f"{len(missing)} are not there, marked or not: {missing[:5]}")
        self.counts["found to be out"] = scene.logged("a reply was found to be delivered")
        self.counts["not out, and sent again"] = scene.logged("a reply was not delivered; sending it again")
        self.counts["there after all, and the second taken back"] = scene.logged("removed the second copy")
        in_doubt = [text for chat in scene.people.chats() for text in scene.people.texts(chat) if _in_doubt(text)]
        self.counts["said to be there twice, perhaps"] = len(in_doubt)
        incidents = scene.rows("SELECT COUNT(*) FROM incidents WHERE source = 'delivery'")[0][0]
        self.expect(incidents >= len(in_doubt), f"{incidents} incidents for {len(in_doubt)} replies in doubt")

    def _shown_once(self, scene: Scene, said: Iterable[tuple[str, str]]) -> list[str]:
        """Check that no answer was shown twice or in a wrong chat. Return the messages without an answer."""
        shown = Counter((chat, _plain(text)) for chat in scene.people.chats() for text in scene.people.texts(chat))
        places = Counter(text for _, text in shown)
        missing, twice, elsewhere = list[str](), list[str](), list[str]()
        for chat, text in said:
            times = shown[chat, answer_to(text)]
            if times == 0:
                missing.append(text)
            if times > 1:
                twice.append(text)
            if places[answer_to(text)] > (times > 0):
                elsewhere.append(text)
        for name, texts in (("answered twice", twice), ("in a wrong chat", elsewhere)):
            self.counts[name] = len(texts)
            self.expect(not texts, f"{len(texts)} {name}: {texts[:5]}")
        return missing


def _in_doubt(text: str) -> bool:
    return text.startswith(MAY_BE_TWICE)


def _plain(text: str) -> str:
    """Remove the line that announces a possible duplicate. A real duplicate is still counted."""
    return text.removeprefix(MAY_BE_TWICE).lstrip("\n") if _in_doubt(text) else text


def _by_session(rows: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    sessions: dict[str, list[int]] = {}
    for session, seq in rows:
        sessions.setdefault(session, []).append(seq)
    return sessions
