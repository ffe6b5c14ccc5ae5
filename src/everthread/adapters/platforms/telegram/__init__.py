"""Telegram: a bot, through python-telegram-bot.

| module | what is in it |
|---|---|
| `platform` | the bot as the gateway sees it |
| `updates` | what comes in, as ours |
| `markdown` | what goes out, as Telegram's MarkdownV2 |
| `polling`, `webhook` | asking for updates, or being brought them |
| `transport`, `failures` | how the Bot API is reached, and what went wrong |
| `token_lock` | one bot, one gateway |
"""

from everthread.adapters.platforms.telegram.platform import TelegramPlatform as TelegramPlatform
from everthread.adapters.platforms.telegram.token_lock import TokenLock as TokenLock
