"""Many users who write, start new sessions and resume old ones during answers, checked against a simple model.

Per key, commands take effect in the order they were given. A message belongs to the session that the commands before it
selected, and is answered there once. If a later command overtakes it, the message is set aside and named, or its answer
is stopped and the user is told.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

from everthread.testing.loopback.protocol import ChatEvent
from tests.faults.fixture import PlatformKind, Scene, answer_to
from tests.faults.result import Outcome

STEPS = 8
COMMANDS = ("/new", "/new", "/resume 1", "/resume 2")
SET_ASIDE = "Set aside without an answer: "
STOPPED = re.compile(r"^The answer to (.*) was stopped\. Its partial text is kept there\.$", re.MULTILINE)
WHERE = """
SELECT messages.content, turns.session_id, turns.status FROM messages
JOIN turns ON turns.id = messages.id / 4096 JOIN sessions ON sessions.id = turns.session_id
WHERE messages.role = 'user' AND sessions.kind = 'chat'
"""
MOVES = "SELECT key, to_session FROM boundaries WHERE actor = 'user' ORDER BY id"
FIRSTS = "SELECT key, to_session FROM boundaries WHERE actor <> 'user' ORDER BY id"


async def in_mid_turn(
    folder: Path, times: int, *, platform: PlatformKind = "loop", seed: int = 1, steps: int = STEPS
) -> Outcome:
    """Run `times` users with so many steps each, seeded."""
    outcome, dice = Outcome(times), random.Random(seed)
    async with Scene(folder, platform=platform, model=["--delay-ms=40", "--chunks=3"]) as scene:
        await scene.start()

        async def person(chat: str, own: random.Random) -> None:
            for step in range(steps):
                command = step > 0 and own.random() < 0.4
                await scene.people.say(chat, own.choice(COMMANDS) if command else f"{chat} message {step}")
                # Sometimes immediately, sometimes during an answer, sometimes after it.
                await asyncio.sleep(own.choice((0.0, 0.02, 0.2, 1.0)))

        people = [f"c{number}" for number in range(times)]
        await asyncio.gather(*(person(chat, random.Random(dice.random())) for chat in people))
        await scene.all_taken(180.0)
        await scene.rest(180.0)
        await scene.people.refresh()
        _check(outcome, scene, people)
    return outcome


def _check(outcome: Outcome, scene: Scene, people: list[str]) -> None:
    where: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for text, session, status in scene.rows(WHERE):
        where[text].append((session, status))
    moves, firsts = _by_chat(scene, MOVES), _by_chat(scene, FIRSTS)
    counts: Counter[str] = Counter({name: 0 for name in ("wrong session", "unanswered and not named")})
    for chat in people:
        seen = [one for one in scene.people.log if one.chat == chat]
        problems = _look_at_one(seen, scene.people.texts(chat), where, moves[chat], firsts[chat], counts)
        outcome.problems += [f"{chat}: {problem}" for problem in problems]
    outcome.counts |= {name: float(count) for name, count in sorted(counts.items())}
    _check_memory(outcome, scene, where)


def _look_at_one(
    seen: list[ChatEvent],
    shown: list[str],
    where: dict[str, list[tuple[str, str]]],
    moves: list[str],
    firsts: list[str],
    counts: Counter[str],
) -> list[str]:
    """Return the problems of one chat."""
    problems: list[str] = []
    commands = _to_commands([one for one in seen if one.what == "sent"])
    went = [text.startswith(("Started a new session", "Resumed")) for text in commands]
    said = [one.text for one in seen if one.what == "said"]
    if len(commands) != sum(text.startswith("/") for text in said):
        problems.append(f"{len(commands)} answers to commands")
    if sum(went) != len(moves):
        problems.append(f"{sum(went)} commands say that they went somewhere, {len(moves)} did")
        return problems
    session, passed = "", 0
    left = iter(zip(commands, went, strict=True))
    for text in said:
        if text.startswith("/"):
            counts["commands"] += 1
            if next(left, ("", False))[1]:
                session, passed = moves[passed], passed + 1
            continue
        counts["messages"] += 1
        # Only the first session of a key is opened by a message; later ones by a command.
        session = session or (firsts[0] if firsts else "")
        places = where.get(text, [])
        if [place for place, _ in places] != [session]:
            counts["wrong session"] += 1
            problems.append(f"{text!r} is in {places}, not in {session}")
            continue
        problem = _fate(text, places[0][1], shown, commands, counts)
        if problem:
            counts["unanswered and not named"] += 1
            problems.append(problem)
    return problems


def _fate(text: str, status: str, shown: list[str], commands: list[str], counts: Counter[str]) -> str:
    """Return the problem with the outcome of a message that is in the right session."""
    answers = shown.count(answer_to(text))
    named = sum(f'"{text}"' in reply.partition(SET_ASIDE)[2] for reply in commands)
    stopped = sum(f'"{text}"' in (found[1] if (found := STOPPED.search(reply)) else "") for reply in commands)
    counts[f"messages {status}"] += 1
    match status:
        case "done":
            return (
                "" if (answers, named) == (1, 0) else f"{text!r} was answered {answers} times and named {named} times"
            )
        case "set_aside":
            return "" if (answers, named) == (0, 1) else f"{text!r}, set aside, was named {named} times"
        case "late" | "interrupted":
            told = f"{text!r}, {status}, was answered {answers} times and named {named} + {stopped} times"
            return "" if (answers, named, stopped) == (0, 0, 1) else told
        case _:
            return f"{text!r} is {status}"


def _check_memory(outcome: Outcome, scene: Scene, where: dict[str, list[tuple[str, str]]]) -> None:
    """Check that the diary received each remembered turn once, in its session, in order."""
    remembered = {
        text: session for text, ((session, status), *_) in where.items() if status in ("done", "late", "interrupted")
    }
    outcome.told_once(scene, list(remembered))
    told = {one.facts["text"]: one.session_id for one in scene.effects("turn")}
    wrong = [text for text, session in remembered.items() if told.get(text) != session]
    outcome.counts["in a wrong session at the provider"] = len(wrong)
    outcome.expect(not wrong, f"told of in a wrong session: {wrong[:5]}")
    outcome.expect(told.keys() == remembered.keys(), "the diary was told of something else as well")


def _to_commands(sent: list[ChatEvent]) -> list[str]:
    """Answers to commands, in the order the commands were given."""
    if not all(one.id for one in sent):
        # If sent messages have no id of ours, identify commands by their text: a chat is answered in order.
        return [one.text for one in sent if not one.text.startswith(answer_to(""))]
    replies = {one.id.partition(".")[0]: one.text for one in sent}
    return [text for name, text in sorted(replies.items(), key=_place) if name.startswith("order-")]


def _place(reply: tuple[str, str]) -> int:
    name = reply[0]
    return int(name.removeprefix("order-")) if name.startswith("order-") else 0


def _by_chat(scene: Scene, query: str) -> defaultdict[str, list[str]]:
    chats: defaultdict[str, list[str]] = defaultdict(list)
    for key, session in scene.rows(query):
        chats[scene.people.chat_of(key)].append(session)
    return chats
