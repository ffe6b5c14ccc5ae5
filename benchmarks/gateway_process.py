"""The measured gateway in its own process: `python -m benchmarks.gateway_process JSON`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import (
    GatewaySettings,
    HttpSettings,
    PlatformAccount,
    ProviderSettings,
    ReviewSettings,
    Settings,
    Variables,
)
from everthread.domain.api_key import hash_token
from everthread.gc_tuning import collect_and_freeze
from everthread.store.api_keys import ApiKey
from everthread.testing.loopback.platform import LoopbackPlatform

TOKEN = "42:a-token-for-measurements"


def print_report(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


async def main() -> None:
    options = json.loads(sys.argv[1])
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    settings = Settings(
        Path(options["home"]),
        model="stub/one",
        providers={"stub": ProviderSettings("openai_compat", options["model"])},
        platforms={
            options["kind"]: PlatformAccount(
                options["kind"], allow_all=True, stream=False, base_url=options["platform"]
            )
        },
        gateway=GatewaySettings(messages_per_minute=100_000, http=HttpSettings(port=0)),
        review=ReviewSettings(every_turns=0),
        variables=Variables({"TELEGRAM_BOT_TOKEN": TOKEN}),
    )
    # Other platforms are built from the settings, as in `gateway run`.
    loop_platform = (LoopbackPlatform("loop", options["platform"]),) if options["kind"] == "loop" else ()
    runtime = Runtime(settings, platforms=loop_platform)
    async with runtime:
        await runtime.ready()
        gateway = runtime.gateway()
        await gateway.start()
        web = runtime.web(gateway)
        await web.start()
        for token in options["tokens"]:
            row = ApiKey(hash_token(token), f"owner of {token}", "bench", runtime.clock.now())
            await runtime.store.write(lambda uow, row=row: uow.api_keys.add(row))
        collect_and_freeze()

        def report() -> None:
            print_report(cpu_s=time.process_time(), stall_ms=gateway.loop_lag.longest_s * 1000, port=web.port or 0)
            gateway.loop_lag.longest_s = 0.0

        loop.add_signal_handler(signal.SIGUSR1, report)
        report()
        await ended.wait()
        await gateway.stop()
        await web.stop()


if __name__ == "__main__":
    asyncio.run(main())
