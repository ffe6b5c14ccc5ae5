"""Serve the local model with xllamacpp's server, on loopback, for the parent process.

Run as a script with the folder of xllamacpp, the file of the weights, the model's name and its context in tokens; it
does not import everthread. It writes one line of JSON to stdout: the `url` and the `key` of the endpoint once it
listens, or an `error`. It ends with its stdin, so it can't outlive its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import secrets
import signal
import sys
import threading
from typing import Any

THREADS = 1
"""A second thread makes this model hardly faster."""
HTTP_THREADS = 2

# Measured with factual questions and with stories: another temperature or a stronger word penalty loses facts, and
# without the penalty of repeated phrases (DRY) every third long answer repeats itself.
TEMPERATURE = 0.0
WORD_PENALTY, WORD_TOKENS = 1.1, 64
PHRASE_PENALTY, PHRASE_LENGTH_MIN, PHRASE_TOKENS = 0.8, 4, 256

_PR_SET_PDEATHSIG = 1


def main() -> None:
    folder, weights, name, context_tokens = sys.argv[1:]
    _die_with_parent()
    write_line = _claim_stdout()
    key = secrets.token_urlsafe(32)
    try:
        sys.path.insert(0, folder)
        server = _serve(weights, name, int(context_tokens), key)
    except Exception as error:  # noqa: BLE001 - reported to the parent
        write_line({"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]})
        os._exit(1)
    write_line({"url": server.listening_address, "key": key})
    threading.Event().wait()


def _die_with_parent() -> None:
    def exit_with_stdin() -> None:
        while os.read(0, 1024):
            pass
        # Not sys.exit, which would wait for the model's threads.
        os._exit(0)

    threading.Thread(target=exit_with_stdin, daemon=True).start()
    if sys.platform == "linux":
        # In case the process is too busy to notice the end of stdin, or another process has inherited the pipe.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _claim_stdout() -> Any:
    """Redirect the output of libraries to /dev/null, and return a function that writes a line to the real stdout."""
    out, devnull = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)

    def write_line(line: dict[str, str]) -> None:
        os.write(out, json.dumps(line).encode() + b"\n")
        os.close(out)

    return write_line


def _serve(weights: str, name: str, context_tokens: int, key: str) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.model_alias = {name}
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = THREADS
    params.cpuparams_batch.n_threads = THREADS
    params.sampling.temp = TEMPERATURE
    params.sampling.penalty_repeat = WORD_PENALTY
    params.sampling.penalty_last_n = WORD_TOKENS
    params.sampling.dry_multiplier = PHRASE_PENALTY
    params.sampling.dry_allowed_length = PHRASE_LENGTH_MIN
    params.sampling.dry_penalty_last_n = PHRASE_TOKENS
    # Any free port. The key keeps out other users of the machine, and web pages.
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.n_threads_http = HTTP_THREADS
    params.ui = False
    params.endpoint_slots = False
    params.cache_ram_mib = 0
    params.warmup = False
    params.verbosity = -1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
