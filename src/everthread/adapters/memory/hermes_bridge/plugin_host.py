"""The process in which a memory plugin of Hermes Agent's runs, as it is, for its parent only.

Run as a file, under the interpreter of an environment that has `hermes-agent`; it needs nothing of Everthread's. Its
one argument is the number of a socket: requests and answers are JSON, each behind its length in four bytes. Whatever a
plugin prints goes to stderr. It ends with the socket, so that it can't outlive its parent.

A plugin holds one session, so each session has an instance of its own, and nothing can land in another. Telling and
asking have a thread each; one instance is never called from both at once. Plugins hand their work to threads and
swallow what goes wrong in them: a call is over when those threads rest, and has failed if the plugin has complained in
its log.
"""

from __future__ import annotations

import os
import sys

# Nothing of the folder of this file is to be taken for a module of somebody's.
sys.path[:] = [
    place for place in sys.path if os.path.realpath(place or ".") != os.path.dirname(os.path.realpath(__file__))
]

import contextlib  # noqa: E402
import ctypes  # noqa: E402
import importlib  # noqa: E402
import importlib.machinery  # noqa: E402
import importlib.metadata  # noqa: E402
import importlib.util  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import queue  # noqa: E402
import re  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import weakref  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

FRAME_BYTES_MAX = 64 * 1024 * 1024
SEATS_MAX = 8
"""Sessions that are held at once; the one that was idle longest is let go for another."""
STARTING_S_MAX = 20.0
"""How long what an instance begins when it starts may take. What is busy after that is taken for housekeeping."""
LOOK_S = 0.005
TEXT_CHARS_MAX = 500

BUNDLED, OTHERS = "plugins.memory", "_hermes_user_memory"
HOOKS = (
    "system_prompt_block",
    "prefetch",
    "queue_prefetch",
    "sync_turn",
    "handle_tool_call",
    "shutdown",
    "on_turn_start",
    "on_session_end",
    "on_session_switch",
    "on_pre_compress",
    "on_delegation",
    "on_memory_write",
)
TELLING, ASKING = "telling", "asking"
_PR_SET_PDEATHSIG = 1
# What a plugin says when it could not do something, and what it says when it did it in another way.
_COMPLAINT = re.compile(
    r"fail|error|exception|time[d]?[ -]?out|refused|reachable|unable|could not|cannot|can't|disabled|skipping"
    r"|not installed|uncommitted|unavailable",
    re.IGNORECASE,
)
_OVERCOME = re.compile(r"falling back|fallback|reconnecting|retrying|will retry", re.IGNORECASE)
_OUTAGE = re.compile(r"connect|timeout|network|unavailable|unreachable|protocolerror|oserror", re.IGNORECASE)


class Refused(Exception):
    """What was asked for can't be done, for a reason that is told to people."""


# Threads --------------------------------------------------------------------------------------------------------------


def mark_threads() -> None:
    """Every thread is known by the one that its work began in: `telling`, `asking` or neither."""
    start = threading.Thread.start

    def marked(self: threading.Thread) -> None:
        self.begun_by = begun_by(threading.current_thread())  # type: ignore[attr-defined]
        start(self)

    threading.Thread.start = marked  # type: ignore[method-assign]


def begun_by(thread: threading.Thread | None) -> str:
    return getattr(thread, "begun_by", "")


class Threads:
    """Those that plugins have started."""

    def __init__(self) -> None:
        self._housekeeping: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def rest(self, kind: str, bound_s: float | None = None) -> bool:
        """Wait until none of a kind works; false if one still does when the time is over."""
        end = None if bound_s is None else time.monotonic() + bound_s
        pause_s = LOOK_S / 5
        while self._busy(kind):
            if end is not None and time.monotonic() > end:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LOOK_S * 10)
        return True

    def leave_alone(self, kind: str) -> None:
        self._housekeeping.update(self._busy(kind))

    def _busy(self, kind: str) -> list[threading.Thread]:
        own = threading.current_thread()
        found = [t for t in threading.enumerate() if begun_by(t) == kind and t is not own]
        found = [t for t in found if t not in self._housekeeping and not isinstance(t, Worker)]
        if not found:
            return []
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - nobody else knows
        return [t for t in found if t.ident in frames and not waits_for_work(frames[t.ident])]


def waits_for_work(frame: Any) -> bool:
    """Whether a thread waits for something to do, and there is nothing: at a queue, in a loop, for an event."""
    through_threading = False
    while frame is not None:
        file, name = os.path.basename(frame.f_code.co_filename), frame.f_code.co_name
        folder = os.path.basename(os.path.dirname(frame.f_code.co_filename))
        if file == "threading.py" and name == "wait":
            through_threading = True
            if is_called(frame):
                return False
        elif file == "queue.py" or (folder, file) == ("futures", "thread.py"):
            return not is_called(frame)
        elif file != "selectors.py":
            # A future that is waited for is somebody's work, and so is whatever else a plugin does.
            return (through_threading and folder != "futures") or (folder, file) == ("asyncio", "base_events.py")
        frame = frame.f_back
    return False


def is_called(frame: Any) -> bool:
    """Whether what a thread waits for is there already, and it only has not woken up yet."""
    found = frame.f_locals
    event, jobs = found.get("self"), found.get("work_queue", found.get("self"))
    if isinstance(event, threading.Event):
        return event.is_set()
    return isinstance(jobs, queue.Queue | queue.SimpleQueue) and jobs.qsize() > 0


class Complaints(logging.Handler):
    """What the plugin has said in its log that went wrong, by who had begun it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.loggers: tuple[str, ...] = ()
        self._said: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(self.loggers or ("",)) or not self.loggers:
            return
        with contextlib.suppress(Exception):
            text = record.getMessage()
            wrong = record.exc_info is not None or _COMPLAINT.search(text)
            if wrong and not _OVERCOME.search(text):
                self._said.append((begun_by(threading.current_thread()), record.levelno, " ".join(text.split())))

    def forget(self, kind: str) -> None:
        self._said = [one for one in self._said if one[0] != kind]

    def of(self, kind: str, level: int) -> str:
        return next((text for who, at, text in self._said if who == kind and at >= level), "")


# Plugins --------------------------------------------------------------------------------------------------------------


class Shelf:
    """Where plugins are: those that come with Hermes, and those in its home."""

    def __init__(self, home: Path) -> None:
        self._own = home / "plugins"

    def found(self) -> dict[str, tuple[str, Path]]:
        """By name: `bundled` or `installed`, and the folder. What is bundled goes first, as in Hermes."""
        found: dict[str, tuple[str, Path]] = {}
        for kind, folder in (("bundled", self._bundled()), ("installed", self._own)):
            for place in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
                if place.name not in found and self._is_one(place, kind):
                    found[place.name] = (kind, place)
        return found

    def _bundled(self) -> Path | None:
        spec = importlib.util.find_spec("plugins")
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        return Path(places[0]) / "memory" if places else None

    def _is_one(self, place: Path, kind: str) -> bool:
        source = place / "__init__.py"
        if place.name.startswith(("_", ".")) or not source.is_file():
            return False
        if kind == "bundled":
            return True
        words = source.read_text(errors="replace")
        return "register_memory_provider" in words or "MemoryProvider" in words

    def description(self, place: Path) -> str:
        with contextlib.suppress(Exception):
            for line in (place / "plugin.yaml").read_text(encoding="utf-8-sig").splitlines():
                if line.startswith("description:"):
                    return line.partition(":")[2].strip().strip("\"'")
        return ""

    def module(self, name: str) -> Any:
        kind, place = self.found().get(name, ("", Path()))
        if not kind:
            known = ", ".join(sorted(self.found())) or "none"
            raise Refused(f"there is no memory plugin {name!r}; there are: {known}")
        try:
            if kind == "bundled":
                return importlib.import_module(f"{BUNDLED}.{name}")
            return self._from_folder(f"{OTHERS}.{name}", place)
        except Exception as error:
            raise Refused(f"the plugin {name} can't be loaded: {said(error)}") from error

    def _from_folder(self, name: str, place: Path) -> Any:
        if name in sys.modules:
            return sys.modules[name]
        if OTHERS not in sys.modules:
            parent = importlib.machinery.ModuleSpec(OTHERS, None, is_package=True)
            parent.submodule_search_locations = [str(place.parent)]
            sys.modules[OTHERS] = importlib.util.module_from_spec(parent)
        spec = importlib.util.spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def _takes_anything(*_: Any, **__: Any) -> None: ...


class Registering:
    """What a plugin's `register` is handed; it takes whatever is registered, and keeps the memory."""

    provider: Any = None

    def register_memory_provider(self, provider: Any) -> None:
        self.provider = provider

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _takes_anything


def made(module: Any) -> Any:
    """A new instance of the plugin's class."""
    if hasattr(module, "register"):
        context = Registering()
        module.register(context)
        if context.provider is not None:
            return context.provider
    for name in dir(module):
        value: Any = getattr(module, name)
        if (
            isinstance(value, type)
            and value.__module__ == module.__name__
            and callable(getattr(value, "is_available", None))
        ):
            return value()
    raise Refused("the plugin registers no memory")


def brings(plugin: Any, hook: str) -> bool:
    """Whether the plugin has this hook itself: older ones lack some, and the base class's do nothing."""
    own: Any = getattr(plugin.__class__, hook, None)
    return callable(own) and not getattr(own, "__module__", "").startswith("agent.memory_provider")


def fitting(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call it with what it knows: older plugins take fewer arguments."""
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        named = {name: value for name, value in named.items() if name in known}
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        places = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        args = args[:places]
    return function(*args, **named)


def said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:TEXT_CHARS_MAX] if text else type(error).__name__


# Sessions -------------------------------------------------------------------------------------------------------------


class Seat:
    """An instance of the plugin, and the one session it holds."""

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin
        self.lock = threading.RLock()
        self.turns = 0
        self.used_at = time.monotonic()


class House:
    """The plugin, and its instances."""

    def __init__(self) -> None:
        self.complaints = Complaints()
        self.threads = Threads()
        self._module: Any = None
        self._common: dict[str, Any] = {}
        self._seats: dict[str, Seat] = {}
        self._lock = threading.RLock()

    # What is asked of the environment -------------------------------------------------------------------------------

    def list(self, asked: dict[str, Any]) -> dict[str, Any]:
        shelf = Shelf(Path(asked["home"]))
        found: list[dict[str, Any]] = []
        for name, (kind, place) in shelf.found().items():
            available, why = False, ""
            try:
                available = bool(made(shelf.module(name)).is_available())
            except Exception as error:  # noqa: BLE001 - told, in words
                why = said(error) if not isinstance(error, Refused) else str(error)
            words = shelf.description(place)
            found.append({"name": name, "kind": kind, "description": words, "available": available, "why": why})
        return {"plugins": found, "hermes": version()}

    def hello(self, asked: dict[str, Any]) -> dict[str, Any]:
        name, home = asked["plugin"], asked["home"]
        shelf = Shelf(Path(home))
        self._module = shelf.module(name)
        self.complaints.loggers = (self._module.__name__, name)
        self._common = {"hermes_home": home, "agent_context": "primary", **asked["told"]}
        plugin = made(self._module)
        hooks = [hook for hook in HOOKS if brings(plugin, hook)]
        schemas: list[Any] = [schema for schema in plugin.get_tool_schemas() or () if isinstance(schema, dict)]
        return {
            "hermes": version(),
            "description": shelf.description(shelf.found()[name][1]),
            "available": bool(plugin.is_available()),
            "hooks": hooks,
            "tools": schemas,
        }

    # What a plugin is told and asked ----------------------------------------------------------------------------------

    def call(self, kind: str, asked: dict[str, Any]) -> dict[str, Any]:
        """One hook of the session's instance. Says which sessions were let go in good order for it."""
        session, hook = asked["session"], asked["hook"]
        self.complaints.forget(kind)
        seat, left = self._seat(kind, session, asked.get("opens", {}))
        with seat.lock:
            seat.used_at = time.monotonic()
            args, named = tuple(asked.get("args", ())), dict(asked.get("named", {}))
            if hook == "on_turn_start":
                seat.turns += 1
                args = (seat.turns, *args)
            result = fitting(getattr(seat.plugin, hook), args, named) if brings(seat.plugin, hook) else None
            if kind == TELLING:
                self._settled(asked)
        if asked.get("leaves"):
            self._leave(session)
        return {"value": result if isinstance(result, str) else None, "left": left}

    def _settled(self, asked: dict[str, Any]) -> None:
        """The threads that the call began have ended, and none has said that it failed."""
        self.threads.rest(TELLING)
        # Notes are mirrored on the side, and what goes wrong with that is mentioned by the way.
        level = logging.DEBUG if asked["hook"] == "on_memory_write" else logging.WARNING
        if complaint := self.complaints.of(TELLING, level):
            raise ConnectionError(complaint[:TEXT_CHARS_MAX])

    def _seat(self, kind: str, session: str, opens: dict[str, Any]) -> tuple[Seat, list[str]]:
        with self._lock:
            seat = self._seats.get(session)
            if seat is not None:
                return seat, []
            left = self._make_room()
            seat = Seat(made(self._module))
            self._begin(kind, seat, session, opens)
            self._seats[session] = seat
            return seat, left

    def _begin(self, kind: str, seat: Seat, session: str, opens: dict[str, Any]) -> None:
        fitting(seat.plugin.initialize, (session,), {**self._common, **opens})
        if not self.threads.rest(kind, STARTING_S_MAX):
            self.threads.leave_alone(kind)
        if complaint := self.complaints.of(kind, logging.WARNING):
            # It would take everything from now on, and keep nothing.
            with contextlib.suppress(Exception):
                seat.plugin.shutdown()
            raise ConnectionError(complaint[:TEXT_CHARS_MAX])

    def _make_room(self) -> list[str]:
        idle = sorted(self._seats, key=lambda session: self._seats[session].used_at)
        gone = [session for session in idle[: max(len(self._seats) - SEATS_MAX + 1, 0)]]
        return [session for session in gone if self._leave(session)]

    def _leave(self, session: str) -> bool:
        """Let an instance go; whether it went in good order, so that it holds nothing back."""
        with self._lock:
            seat = self._seats.pop(session, None)
        if seat is None:
            return False
        with seat.lock:
            try:
                if brings(seat.plugin, "shutdown"):
                    seat.plugin.shutdown()
            except Exception:
                logging.getLogger("bridge").exception("shutdown")
                return False
        return self.threads.rest(TELLING, STARTING_S_MAX)

    def end(self) -> dict[str, Any]:
        """Every instance is let go; of which sessions that went well."""
        return {"left": [session for session in list(self._seats) if self._leave(session)]}


def version() -> str:
    with contextlib.suppress(Exception):
        return importlib.metadata.version("hermes-agent")
    return ""


# The wire -------------------------------------------------------------------------------------------------------------


class Wire:
    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._sending = threading.Lock()

    def read(self) -> dict[str, Any] | None:
        """The next request; None at the end."""
        head = self._exactly(4)
        if head is None:
            return None
        [size] = struct.unpack(">I", head)
        body = self._exactly(size) if size <= FRAME_BYTES_MAX else None
        return json.loads(body) if body is not None else None

    def send(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer, default=str).encode("utf-8", "replace")
        if len(body) > FRAME_BYTES_MAX:
            body = json.dumps({"id": answer["id"], "error": "the answer is too long", "kind": "failed"}).encode()
        with self._sending:
            self._socket.sendall(struct.pack(">I", len(body)) + body)

    def _exactly(self, size: int) -> bytes | None:
        parts: list[bytes] = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Worker(threading.Thread):
    """Answers requests of one kind, one after another."""

    def __init__(self, kind: str, wire: Wire, house: House) -> None:
        super().__init__(name=kind, daemon=True)
        self._kind, self._wire, self._house = kind, wire, house
        self.requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def run(self) -> None:
        self.begun_by = self._kind
        while True:
            asked = self.requests.get()
            answer: dict[str, Any] = {"id": asked["id"]}
            try:
                answer |= self._answer(asked)
            except BaseException as error:
                logging.getLogger("bridge").warning("%s", asked.get("hook", asked["op"]), exc_info=True)
                answer |= {"error": text_of(error), "kind": kind_of(error)}
            self._wire.send(answer)
            if asked["op"] == "end":
                os._exit(0)

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        match asked["op"]:
            case "list":
                return self._house.list(asked)
            case "hello":
                return self._house.hello(asked)
            case "end":
                return self._house.end()
            case _:
                return self._house.call(self._kind, asked)


def text_of(error: BaseException) -> str:
    return str(error)[:TEXT_CHARS_MAX] if isinstance(error, Refused | ConnectionError) and str(error) else said(error)


def kind_of(error: BaseException) -> str:
    """`refused` is about the plugin, `outage` passes by itself, `failed` may be anything."""
    if isinstance(error, Refused):
        return "refused"
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return "outage" if any(_OUTAGE.search(kind) for kind in kinds) else "failed"


def read_variables(home: Path) -> None:
    """Hermes has its keys in a file of its home, and plugins look for them in the environment."""
    with contextlib.suppress(OSError):
        for line in (home / ".env").read_text(encoding="utf-8-sig", errors="replace").splitlines():
            name, equals, value = line.strip().removeprefix("export ").partition("=")
            if equals and name.strip().isidentifier():
                os.environ.setdefault(name.strip(), value.strip().strip("\"'"))  # noqa: TID251 - it is theirs


def main() -> None:
    if sys.platform == "linux":
        # For a process that is too busy to see the end of its socket.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(2, 1)
    house, wire = House(), Wire(int(sys.argv[1]))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger().addHandler(house.complaints)
    for prefix in (BUNDLED, OTHERS):
        logging.getLogger(prefix).setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        if handler is not house.complaints:
            handler.setLevel(logging.INFO)
    read_variables(Path(os.environ.get("HERMES_HOME") or "."))  # noqa: TID251 - a program of its own
    mark_threads()
    workers = {kind: Worker(kind, wire, house) for kind in (TELLING, ASKING)}
    for worker in workers.values():
        worker.start()
    while (asked := wire.read()) is not None:
        workers[ASKING if asked["op"] == "ask" else TELLING].requests.put(asked)
    # Not an ordinary exit: the plugin's threads need not agree.
    os._exit(0)


if __name__ == "__main__":
    main()
