"""Run an unmodified memory plugin of Hermes Agent for the parent process.

Run as a single script, under an interpreter that has `hermes-agent`; it does not import everthread. Its argument is the
file descriptor of a socket: requests and responses are JSON, each after its length in four bytes. The output of plugins
goes to stderr. The process ends with the socket, so it can't outlive its parent.

An instance of a plugin holds one session, so each session has its own. Deliveries and queries have a thread each; an
instance is never called by both at once. Plugins pass work to threads of their own and swallow errors in them. So a
call is over when those threads are idle, and has failed if the plugin has logged a failure.

Top down: settings, plugin threads and logged failures, finding and loading plugins, calling plugins, the host with its
instances, the socket and the workers, `main`.
"""

from __future__ import annotations

import os
import sys

# Plugins must not import files of this folder by accident.
sys.path[:] = [
    folder for folder in sys.path if os.path.realpath(folder or ".") != os.path.dirname(os.path.realpath(__file__))
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

# Settings -------------------------------------------------------------------------------------------------------------

FRAME_BYTES_MAX = 64 * 1024 * 1024
INSTANCES_MAX = 8
"""Sessions with an instance; the one idle longest is shut down for another."""
START_S_MAX = 20.0
"""How long to wait for the threads of a new instance. Threads still busy after that count as housekeeping."""
POLL_S = 0.005
TEXT_CHARS_MAX = 500

BUNDLED_PACKAGE, INSTALLED_PACKAGE = "plugins.memory", "_hermes_user_memory"
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
DELIVERY, QUERY = "delivery", "query"
_PR_SET_PDEATHSIG = 1
# Log messages of a failure, and those of a failure that the plugin has recovered from.
_FAILURE_TEXT = re.compile(
    r"fail|error|exception|time[d]?[ -]?out|refused|reachable|unable|could not|cannot|can't|disabled|skipping"
    r"|not installed|uncommitted|unavailable",
    re.IGNORECASE,
)
_RECOVERED_TEXT = re.compile(r"falling back|fallback|reconnecting|retrying|will retry", re.IGNORECASE)
_OUTAGE_TYPE = re.compile(r"connect|timeout|network|unavailable|unreachable|protocolerror|oserror", re.IGNORECASE)


class HostError(Exception):
    """A request can't be carried out. The message is meant for users."""


# Plugin threads and logged failures -----------------------------------------------------------------------------------


def track_threads() -> None:
    """Label each thread with the worker that started it, directly or not: `delivery`, `query` or none."""
    start = threading.Thread.start

    def tracked_start(self: threading.Thread) -> None:
        self.started_by = started_by(threading.current_thread())  # type: ignore[attr-defined]
        start(self)

    threading.Thread.start = tracked_start  # type: ignore[method-assign]


def started_by(thread: threading.Thread | None) -> str:
    return getattr(thread, "started_by", "")


class PluginThreads:
    """Threads that plugins have started."""

    def __init__(self) -> None:
        self._housekeeping: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def wait_idle(self, kind: str, bound_s: float | None = None) -> bool:
        """Wait until all threads of a kind are idle; False if one is still busy after `bound_s`."""
        end = None if bound_s is None else time.monotonic() + bound_s
        pause_s = POLL_S / 5
        while self._busy(kind):
            if end is not None and time.monotonic() > end:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, POLL_S * 10)
        return True

    def ignore(self, kind: str) -> None:
        self._housekeeping.update(self._busy(kind))

    def _busy(self, kind: str) -> list[threading.Thread]:
        own = threading.current_thread()
        started = [t for t in threading.enumerate() if started_by(t) == kind and t is not own]
        started = [t for t in started if t not in self._housekeeping and not isinstance(t, RequestWorker)]
        if not started:
            return []
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no public API
        return [t for t in started if t.ident in frames and not is_idle(frames[t.ident])]


def is_idle(frame: Any) -> bool:
    """Tell from its stack whether a thread waits for work: at an empty queue, in an event loop, for an event."""
    in_threading_wait = False
    while frame is not None:
        file, name = os.path.basename(frame.f_code.co_filename), frame.f_code.co_name
        folder = os.path.basename(os.path.dirname(frame.f_code.co_filename))
        if file == "threading.py" and name == "wait":
            in_threading_wait = True
            if has_work(frame):
                return False
        elif file == "queue.py" or (folder, file) == ("futures", "thread.py"):
            return not has_work(frame)
        elif file != "selectors.py":
            # Waiting for a future is work, and so is everything else that a plugin does.
            return (in_threading_wait and folder != "futures") or (folder, file) == ("asyncio", "base_events.py")
        frame = frame.f_back
    return False


def has_work(frame: Any) -> bool:
    """Tell whether the work is there already and the thread has not woken up yet."""
    variables = frame.f_locals
    event, jobs = variables.get("self"), variables.get("work_queue", variables.get("self"))
    if isinstance(event, threading.Event):
        return event.is_set()
    return isinstance(jobs, queue.Queue | queue.SimpleQueue) and jobs.qsize() > 0


class FailureHandler(logging.Handler):
    """Collects failures that the plugin has logged, by the kind of thread."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.loggers: tuple[str, ...] = ()
        self._failures: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(self.loggers or ("",)) or not self.loggers:
            return
        with contextlib.suppress(Exception):
            text = record.getMessage()
            wrong = record.exc_info is not None or _FAILURE_TEXT.search(text)
            if wrong and not _RECOVERED_TEXT.search(text):
                self._failures.append((started_by(threading.current_thread()), record.levelno, " ".join(text.split())))

    def clear(self, kind: str) -> None:
        self._failures = [one for one in self._failures if one[0] != kind]

    def first(self, kind: str, level: int) -> str:
        return next((text for who, at, text in self._failures if who == kind and at >= level), "")


# Finding and loading plugins ------------------------------------------------------------------------------------------


class PluginFinder:
    """Finds the plugins that come with Hermes and those in its home."""

    def __init__(self, home: Path) -> None:
        self._installed_folder = home / "plugins"

    def plugins(self) -> dict[str, tuple[str, Path]]:
        """Map names to the kind (`bundled` or `installed`) and the folder. As in Hermes, bundled plugins win."""
        plugins: dict[str, tuple[str, Path]] = {}
        for kind, parent in (("bundled", self._bundled_folder()), ("installed", self._installed_folder)):
            for folder in sorted(parent.iterdir()) if parent is not None and parent.is_dir() else ():
                if folder.name not in plugins and self._is_plugin(folder, kind):
                    plugins[folder.name] = (kind, folder)
        return plugins

    def _bundled_folder(self) -> Path | None:
        spec = importlib.util.find_spec("plugins")
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        return Path(folders[0]) / "memory" if folders else None

    def _is_plugin(self, folder: Path, kind: str) -> bool:
        source = folder / "__init__.py"
        if folder.name.startswith(("_", ".")) or not source.is_file():
            return False
        if kind == "bundled":
            return True
        text = source.read_text(errors="replace")
        return "register_memory_provider" in text or "MemoryProvider" in text

    def description(self, folder: Path) -> str:
        with contextlib.suppress(Exception):
            for line in (folder / "plugin.yaml").read_text(encoding="utf-8-sig").splitlines():
                if line.startswith("description:"):
                    return line.partition(":")[2].strip().strip("\"'")
        return ""

    def load(self, name: str) -> Any:
        kind, folder = self.plugins().get(name, ("", Path()))
        if not kind:
            known = ", ".join(sorted(self.plugins())) or "none"
            raise HostError(f"no memory plugin {name!r}; available: {known}")
        try:
            if kind == "bundled":
                return importlib.import_module(f"{BUNDLED_PACKAGE}.{name}")
            return self._load_folder(f"{INSTALLED_PACKAGE}.{name}", folder)
        except Exception as error:
            raise HostError(f"the plugin {name} can't be loaded: {error_text(error)}") from error

    def _load_folder(self, name: str, folder: Path) -> Any:
        if name in sys.modules:
            return sys.modules[name]
        if INSTALLED_PACKAGE not in sys.modules:
            parent = importlib.machinery.ModuleSpec(INSTALLED_PACKAGE, None, is_package=True)
            parent.submodule_search_locations = [str(folder.parent)]
            sys.modules[INSTALLED_PACKAGE] = importlib.util.module_from_spec(parent)
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
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


def _ignore_call(*_: Any, **__: Any) -> None: ...


class RegistrationContext:
    """Argument of a plugin's `register`. Keeps the memory provider, and ignores other registrations."""

    provider: Any = None

    def register_memory_provider(self, provider: Any) -> None:
        self.provider = provider

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ignore_call


def make_plugin(module: Any) -> Any:
    """Make an instance of the plugin."""
    if hasattr(module, "register"):
        context = RegistrationContext()
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
    raise HostError("the plugin registers no memory provider")


def has_hook(plugin: Any, hook: str) -> bool:
    """Tell whether the plugin implements a hook: older ones lack some, and those of the base class do nothing."""
    own: Any = getattr(plugin.__class__, hook, None)
    return callable(own) and not getattr(own, "__module__", "").startswith("agent.memory_provider")


def call_supported(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a function with the arguments that it accepts: older plugins take fewer."""
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        named = {name: value for name, value in named.items() if name in known}
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        places = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        args = args[:places]
    return function(*args, **named)


def error_text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:TEXT_CHARS_MAX] if text else type(error).__name__


# The host and its instances -------------------------------------------------------------------------------------------


class SessionInstance:
    """An instance of the plugin for one session."""

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin
        self.lock = threading.RLock()
        self.turns = 0
        self.used_at = time.monotonic()


class PluginHost:
    """The plugin and its instances."""

    def __init__(self) -> None:
        self.failures = FailureHandler()
        self.threads = PluginThreads()
        self._module: Any = None
        self._context: dict[str, Any] = {}
        self._instances: dict[str, SessionInstance] = {}
        self._lock = threading.RLock()

    # Requests about plugins -----------------------------------------------------------------------------------------

    def list(self, request: dict[str, Any]) -> dict[str, Any]:
        finder = PluginFinder(Path(request["home"]))
        plugins: list[dict[str, Any]] = []
        for name, (kind, folder) in finder.plugins().items():
            available, why = False, ""
            try:
                available = bool(make_plugin(finder.load(name)).is_available())
            except Exception as error:  # noqa: BLE001 - reported in the response
                why = error_text(error) if not isinstance(error, HostError) else str(error)
            text = finder.description(folder)
            plugins.append({"name": name, "kind": kind, "description": text, "available": available, "why": why})
        return {"plugins": plugins, "hermes": version()}

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        name, home = request["plugin"], request["home"]
        finder = PluginFinder(Path(home))
        self._module = finder.load(name)
        self.failures.loggers = (self._module.__name__, name)
        self._context = {"hermes_home": home, "agent_context": "primary", **request["told"]}
        plugin = make_plugin(self._module)
        hooks = [hook for hook in HOOKS if has_hook(plugin, hook)]
        schemas: list[Any] = [schema for schema in plugin.get_tool_schemas() or () if isinstance(schema, dict)]
        return {
            "hermes": version(),
            "description": finder.description(finder.plugins()[name][1]),
            "available": bool(plugin.is_available()),
            "hooks": hooks,
            "tools": schemas,
        }

    # Requests to a plugin -------------------------------------------------------------------------------------------

    def call(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        """Call a hook of the session's instance. `left` lists sessions whose instances shut down properly meanwhile."""
        session, hook = request["session"], request["hook"]
        self.failures.clear(kind)
        instance, closed = self._instance(kind, session, request.get("opens", {}))
        with instance.lock:
            instance.used_at = time.monotonic()
            args, named = tuple(request.get("args", ())), dict(request.get("named", {}))
            if hook == "on_turn_start":
                instance.turns += 1
                args = (instance.turns, *args)
            has = has_hook(instance.plugin, hook)
            result = call_supported(getattr(instance.plugin, hook), args, named) if has else None
            if kind == DELIVERY:
                self._wait_done(request)
        if request.get("leaves"):
            self._close(session)
        return {"value": result if isinstance(result, str) else None, "left": closed}

    def _wait_done(self, request: dict[str, Any]) -> None:
        """Wait for the threads that the call started. Raise if the plugin has logged a failure."""
        self.threads.wait_idle(DELIVERY)
        # Plugins log a failure to mirror a note at a low level.
        level = logging.DEBUG if request["hook"] == "on_memory_write" else logging.WARNING
        if failure := self.failures.first(DELIVERY, level):
            raise ConnectionError(failure[:TEXT_CHARS_MAX])

    def _instance(self, kind: str, session: str, context: dict[str, Any]) -> tuple[SessionInstance, list[str]]:
        with self._lock:
            instance = self._instances.get(session)
            if instance is not None:
                return instance, []
            closed = self._evict_idle()
            instance = SessionInstance(make_plugin(self._module))
            self._start(kind, instance, session, context)
            self._instances[session] = instance
            return instance, closed

    def _start(self, kind: str, instance: SessionInstance, session: str, context: dict[str, Any]) -> None:
        call_supported(instance.plugin.initialize, (session,), {**self._context, **context})
        if not self.threads.wait_idle(kind, START_S_MAX):
            self.threads.ignore(kind)
        if failure := self.failures.first(kind, logging.WARNING):
            # The instance would accept everything from now on, and store nothing.
            with contextlib.suppress(Exception):
                instance.plugin.shutdown()
            raise ConnectionError(failure[:TEXT_CHARS_MAX])

    def _evict_idle(self) -> list[str]:
        idle = sorted(self._instances, key=lambda session: self._instances[session].used_at)
        evicted = idle[: max(len(self._instances) - INSTANCES_MAX + 1, 0)]
        return [session for session in evicted if self._close(session)]

    def _close(self, session: str) -> bool:
        """Shut an instance down, and return whether it succeeded, so that nothing is left in its buffers."""
        with self._lock:
            instance = self._instances.pop(session, None)
        if instance is None:
            return False
        with instance.lock:
            try:
                if has_hook(instance.plugin, "shutdown"):
                    instance.plugin.shutdown()
            except Exception:
                logging.getLogger("bridge").exception("shutdown")
                return False
        return self.threads.wait_idle(DELIVERY, START_S_MAX)

    def end(self) -> dict[str, Any]:
        """Shut all instances down, and return the sessions where that succeeded."""
        return {"left": [session for session in list(self._instances) if self._close(session)]}


def version() -> str:
    with contextlib.suppress(Exception):
        return importlib.metadata.version("hermes-agent")
    return ""


# The socket and the workers -------------------------------------------------------------------------------------------


class FramedSocket:
    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._send_lock = threading.Lock()

    def read(self) -> dict[str, Any] | None:
        """Read the next request; None at the end."""
        head = self._read_exactly(4)
        if head is None:
            return None
        [size] = struct.unpack(">I", head)
        body = self._read_exactly(size) if size <= FRAME_BYTES_MAX else None
        return json.loads(body) if body is not None else None

    def send(self, response: dict[str, Any]) -> None:
        body = json.dumps(response, default=str).encode("utf-8", "replace")
        if len(body) > FRAME_BYTES_MAX:
            body = json.dumps({"id": response["id"], "error": "the response is too large", "kind": "failed"}).encode()
        with self._send_lock:
            self._socket.sendall(struct.pack(">I", len(body)) + body)

    def _read_exactly(self, size: int) -> bytes | None:
        parts: list[bytes] = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class RequestWorker(threading.Thread):
    """Thread that handles the requests of one kind, one after another."""

    def __init__(self, kind: str, connection: FramedSocket, host: PluginHost) -> None:
        super().__init__(name=kind, daemon=True)
        self._kind, self._connection, self._host = kind, connection, host
        self.requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def run(self) -> None:
        self.started_by = self._kind
        while True:
            request = self.requests.get()
            response: dict[str, Any] = {"id": request["id"]}
            try:
                response |= self._handle(request)
            except BaseException as error:
                logging.getLogger("bridge").warning("%s", request.get("hook", request["op"]), exc_info=True)
                response |= {"error": message_of(error), "kind": kind_of(error)}
            self._connection.send(response)
            if request["op"] == "end":
                os._exit(0)

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "list":
                return self._host.list(request)
            case "hello":
                return self._host.hello(request)
            case "end":
                return self._host.end()
            case _:
                return self._host.call(self._kind, request)


def message_of(error: BaseException) -> str:
    return (
        str(error)[:TEXT_CHARS_MAX]
        if isinstance(error, HostError | ConnectionError) and str(error)
        else error_text(error)
    )


def kind_of(error: BaseException) -> str:
    """Classify an error: `refused` (the plugin can't be used), `outage` (temporary) or `failed` (unknown)."""
    if isinstance(error, HostError):
        return "refused"
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return "outage" if any(_OUTAGE_TYPE.search(kind) for kind in kinds) else "failed"


def load_dotenv(home: Path) -> None:
    """Load the .env file of the home into the environment, where plugins look for keys."""
    with contextlib.suppress(OSError):
        for line in (home / ".env").read_text(encoding="utf-8-sig", errors="replace").splitlines():
            name, equals, value = line.strip().removeprefix("export ").partition("=")
            if equals and name.strip().isidentifier():
                os.environ.setdefault(name.strip(), value.strip().strip("\"'"))  # noqa: TID251 - a separate process


def main() -> None:
    if sys.platform == "linux":
        # In case the process is too busy to notice the end of its socket.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(2, 1)
    host, connection = PluginHost(), FramedSocket(int(sys.argv[1]))
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger().addHandler(host.failures)
    for prefix in (BUNDLED_PACKAGE, INSTALLED_PACKAGE):
        logging.getLogger(prefix).setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        if handler is not host.failures:
            handler.setLevel(logging.INFO)
    load_dotenv(Path(os.environ.get("HERMES_HOME") or "."))  # noqa: TID251 - a separate process
    track_threads()
    workers = {kind: RequestWorker(kind, connection, host) for kind in (DELIVERY, QUERY)}
    for worker in workers.values():
        worker.start()
    while (request := connection.read()) is not None:
        workers[QUERY if request["op"] == "ask" else DELIVERY].requests.put(request)
    # Not sys.exit, which would wait for the plugin's threads.
    os._exit(0)


if __name__ == "__main__":
    main()
