"""Run the emulator as a process: `python -m everthread.testing.telegram --port 0`."""

from __future__ import annotations

from everthread.testing.model_server.http import process_parser
from everthread.testing.telegram.server import TOKEN, TelegramEmulator


def main() -> None:
    parser = process_parser("telegram", "Emulator of Telegram's Bot API, for tests.")
    parser.add_argument("--token", default=TOKEN, help="token of the bot; the number before the colon is its id")
    parser.add_argument("--username", default="test_bot", help="user name of the bot")
    parser.add_argument("--no-limits", action="store_true", help="apply no rate limits")
    parser.add_argument("--privacy", action="store_true", help="in groups, deliver only messages addressed to the bot")
    options = parser.parse_args()
    number, colon, _ = options.token.partition(":")
    if not number.isdigit() or not colon:
        parser.error(f"a token is a number, a colon and a secret, as in {TOKEN}")
    TelegramEmulator(
        options.token, username=options.username, limits=not options.no_limits, privacy=options.privacy
    ).run_as_process(options.port)


if __name__ == "__main__":
    main()
