"""Run the emulator as a process: `python -m everthread.testing.telegram --port 0`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from everthread.testing.telegram.server import TOKEN, TelegramEmulator


async def _serve(options: argparse.Namespace) -> None:
    emulator = TelegramEmulator(
        options.token, username=options.username, limits=not options.no_limits, privacy=options.privacy
    )
    await emulator.run_as_process(options.port)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="everthread.testing.telegram", description="Emulator of Telegram's Bot API, for tests."
    )
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        help="port to listen on; 0 chooses a free one, and the address is printed as JSON",
    )
    parser.add_argument("--token", default=TOKEN, help="token of the bot; the number before the colon is its id")
    parser.add_argument("--username", default="test_bot", help="user name of the bot")
    parser.add_argument("--no-limits", action="store_true", help="apply no rate limits")
    parser.add_argument("--privacy", action="store_true", help="in groups, deliver only messages addressed to the bot")
    options = parser.parse_args()
    number, colon, _ = options.token.partition(":")
    if not number.isdigit() or not colon:
        parser.error(f"a token is a number, a colon and a secret, as in {TOKEN}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(options))


if __name__ == "__main__":
    main()
