"""Faults of a memory provider and of the process that delivers to it: check the entries that reach the provider."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.faults.fixture import PlatformKind, Scene
from tests.faults.result import Outcome

TURNS = 5
EXIT_S_MAX = 5.0
COMMAND_S_MAX = 0.05
PREPARED_MAX = 128


async def killed_at_the_reply(folder: Path, times: int, *, platform: PlatformKind = "loop") -> Outcome:
    """Send five messages at once and kill the process with -9 once the last answer is shown."""
    outcome, texts = Outcome(times), list[str]()
    async with Scene(folder, platform=platform) as scene:
        scene.feel("slow 0.02")
        for number in range(times):
            life = await scene.start()
            burst = [f"burst {number} message {n}" for n in range(TURNS)]
            await scene.people.say_all([(f"c{number}", text) for text in burst])
            await scene.answered(f"c{number}", burst[-1])
            life.kill()
            texts += burst
        await scene.start()
        outcome.counts["turns that had reached it when killed"] = len(scene.effects("turn"))
        await scene.rest()
        await scene.people.refresh()
        outcome.told_once(scene, texts)
        outcome.answered_once_or_marked(scene, [(f"c{text.split()[1]}", text) for text in texts])
    return outcome


async def failing_for_a_while(folder: Path, times: int) -> Outcome:
    """Let the provider answer 500 during ten turns in two chats, then recover; so many times."""
    outcome, said = Outcome(times), list[tuple[str, str]]()
    async with Scene(folder) as scene:
        await scene.start(rate=30.0)
        for number in range(times):
            scene.feel("fail")
            both = [(f"c{number}-{n % 2}", f"outage {number} message {n}") for n in range(2 * TURNS)]
            await scene.people.say_all(both)
            for chat, text in both[-2:]:
                await scene.answered(chat, text)
            scene.feel("well")
            said += both
        await scene.rest()
        outcome.told_once(scene, [text for _, text in said])
    return outcome


async def hanging_then_new_then_exit(folder: Path, times: int, *, drain_s: float = 5.0) -> Outcome:
    """Run two turns, /new and two more turns, and end the process, all while the provider hangs forever."""
    outcome, texts, exits = Outcome(times), list[str](), list[float]()
    firsts: list[list[str]] = []
    async with Scene(folder) as scene:
        for number in range(times):
            scene.feel("hang")
            life = await scene.start(tasks=number % 2 == 0, drain_s=drain_s)
            chat, said = f"c{number}", [f"rep {number} message {n}" for n in range(4)]
            for text in (*said[:2], "/new", *said[2:]):
                await scene.people.say(chat, text)
                if text != "/new":
                    await scene.answered(chat, text)
            exits.append(await life.end())
            texts += said
            firsts.append(said[:2])
        scene.feel("well")
        await scene.start(rate=60.0)
        await scene.rest()
        outcome.told_once(scene, texts)
        _ends_as_they_were(outcome, scene, firsts)
        _exits(outcome, exits)
    return outcome


async def new_while_hanging(folder: Path, times: int, *, command_s_max: float = COMMAND_S_MAX) -> Outcome:
    """Run two turns and /new in each of ten concurrent chats while the provider hangs; other users only talk."""
    outcome = Outcome(times)
    chats = [f"c{number}" for number in range(times)]
    async with Scene(folder) as scene:
        scene.feel("hang")
        await scene.start()
        people = scene.people
        for chat in chats:
            await people.say_all([(chat, f"{chat} one"), (chat, f"{chat} two")])
            await scene.answered(chat, f"{chat} two")
        for some in (chats[n : n + 10] for n in range(0, times, 10)):
            await people.say_all([*((chat, "/new") for chat in some), ("bystander", f"beside {some[0]}")])
            await scene.answered("bystander", f"beside {some[0]}")
            await people.until(lambda some=some: all(len(people.answers(chat)) == 3 for chat in some), "/new answered")
        # Also one at a time, as for a single user.
        for chat in chats:
            await people.say(chat, "/new")
            await people.until(lambda chat=chat: len(people.answers(chat)) == 4, "/new answered")
        at_once, alone = [_waited(scene, chat, 2) for chat in chats], [_waited(scene, chat, 3) for chat in chats]
        beside = [_waited(scene, "bystander", n) for n in range(len(people.answers("bystander")))]
        scene.feel("well")
    async with Scene(folder / "again") as scene:
        # The order in which hanging calls return is undefined, so it is checked in a new process.
        scene.feel("hang")
        life = await scene.start()
        for chat in chats:
            await scene.people.say_all([(chat, f"{chat} one"), (chat, f"{chat} two"), (chat, "/status")])
            await scene.answered(chat, f"{chat} two")
        await scene.people.say_all([(chat, "/new") for chat in chats])
        await scene.people.until(lambda: all(len(scene.people.answers(chat)) == 4 for chat in chats), "/new answered")
        life.kill()
        scene.feel("well")
        await scene.start(rate=60.0)
        await scene.rest()
        outcome.told_once(scene, [f"{chat} {word}" for chat in chats for word in ("one", "two")])
        _ends_as_they_were(outcome, scene, [[f"{chat} one", f"{chat} two"] for chat in chats])
    _latencies(outcome, "/new", alone)
    _latencies(outcome, "ten /new at once", at_once)
    _latencies(outcome, "a message beside them", beside)
    median = sorted(alone)[len(alone) // 2]
    outcome.expect(median < command_s_max, f"/new takes {median:.3f} s")
    outcome.expect(max(*at_once, *alone, *beside) < 2.0, "somebody waited for the provider")
    return outcome


async def evicted_then_new(folder: Path, times: int) -> Outcome:
    """Evict the cached state of a session before its /new. Its close must still be delivered."""
    outcome = Outcome(times)
    chats = [f"c{number}" for number in range(times)]
    async with Scene(folder) as scene:
        await scene.start()
        for some, word in ((chats, "hello"), ([f"other{n}" for n in range(PREPARED_MAX)], "evicts")):
            await scene.people.say_all([(chat, f"{word} from {chat}") for chat in some])
            for chat in some:
                await scene.answered(chat, f"{word} from {chat}")
        await scene.people.say_all([(chat, "/new") for chat in chats])
        await scene.people.until(lambda: all(len(scene.people.answers(chat)) == 2 for chat in chats), "/new answered")
        await scene.rest()
        _ends_as_they_were(outcome, scene, [[f"hello from {chat}"] for chat in chats])
    return outcome


async def killed_then_expired(folder: Path, times: int) -> Outcome:
    """Kill with -9 after a turn. Another process expires the sessions and delivers each close once."""
    outcome, firsts = Outcome(times), list[list[str]]()
    origin = time.time()
    async with Scene(folder) as scene:
        for number in range(times):
            life = await scene.start(rate=60.0, origin=origin, idle_s=120.0)
            said = [(f"c{number}-{n}", f"life {number} chat {n}") for n in range(3)]
            await scene.people.say_all(said)
            for chat, text in said:
                await scene.answered(chat, text)
            life.kill()
            firsts += [[text] for _, text in said]
        await scene.start(rate=60.0, origin=origin, idle_s=120.0)
        for _ in range(600):
            if len(scene.effects("close")) >= len(firsts):
                break
            await asyncio.sleep(0.1)
        await scene.rest()
        outcome.told_once(scene, [text for (text,) in firsts])
        _ends_as_they_were(outcome, scene, firsts)
        expired = scene.rows("SELECT COUNT(*) FROM boundaries WHERE kind = 'expire'")[0][0]
        outcome.expect(expired == len(firsts), f"{expired} boundaries of {len(firsts)}")
    return outcome


async def ended_with_slow_writes(folder: Path, times: int, *, drain_s: float = 5.0) -> Outcome:
    """Queue many slow writes of 0.3 s and end the process. The writes must arrive after the next start."""
    outcome, texts, exits = Outcome(times), list[str](), list[float]()
    async with Scene(folder) as scene:
        for number in range(times):
            scene.feel("slow 0.3")
            life = await scene.start(tasks=number % 2 == 0, drain_s=drain_s)
            said = [(f"c{number}", f"life {number} message {n}") for n in range(20)]
            await scene.people.say_all(said)
            await scene.answered(*said[-1])
            queued = 20 - len([one for one in scene.effects("turn") if one.facts["text"].startswith(f"life {number} ")])
            outcome.counts["least queued at the end"] = min(outcome.counts.get("least queued at the end", 20), queued)
            exits.append(await life.end())
            texts += [text for _, text in said]
            scene.feel("well")
        await scene.start()
        await scene.rest()
        outcome.told_once(scene, texts)
        _exits(outcome, exits)
    return outcome


def _ends_as_they_were(outcome: Outcome, scene: Scene, wanted: list[list[str]]) -> None:
    """Check that each session is closed once, after its turns, with exactly its own messages."""
    closes = [one for one in scene.effects() if one.kind == "close" and one.facts["shown"]]
    got = sorted(one.facts["shown"] for one in closes)
    outcome.counts["ends"] = len(wanted)
    outcome.counts["ends at the provider"] = sum(1 for shown in got if shown in wanted)
    wrong = [shown for shown in got if shown not in wanted]
    outcome.counts["ends with wrong words"] = len(wrong)
    outcome.expect(got == sorted(wanted), f"{len(got)} ends of {len(wanted)}; wrong ones: {wrong[:3]}")


def _exits(outcome: Outcome, exits: list[float]) -> None:
    outcome.counts["longest exit, s"] = round(max(exits), 2)
    outcome.expect(max(exits) < EXIT_S_MAX, f"an exit took {max(exits):.1f} s")


def _waited(scene: Scene, chat: str, which: int) -> float:
    """Seconds from a message in a chat to its answer, by the platform's clock."""
    said = [one for one in scene.people.log if one.chat == chat and one.what == "said"]
    return scene.people.answers(chat)[which].at - said[which].at


def _latencies(outcome: Outcome, name: str, waited: list[float]) -> None:
    ordered = sorted(waited)
    outcome.counts[f"{name}, median ms"] = round(ordered[len(ordered) // 2] * 1000, 1)
    outcome.counts[f"{name}, longest ms"] = round(ordered[-1] * 1000, 1)
