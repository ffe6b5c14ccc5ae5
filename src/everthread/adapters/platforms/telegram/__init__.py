"""Telegram bot, through python-telegram-bot.

platform        the platform adapter of the gateway
polling         receive updates with getUpdates
webhook         receive updates by a webhook
updates         updates of Telegram as updates of the gateway
sender          moved chats, known message ids, sends in progress
markdown        model output as MarkdownV2
delivery_check  find out whether an uncertain message was delivered
message_ids     message ids that are known, and the search among unknown ones
http            Bot API requests over aiohttp
errors          errors of Telegram as platform errors
token_lock      one gateway for each bot
"""

from everthread.adapters.platforms.telegram.platform import TelegramPlatform as TelegramPlatform
from everthread.adapters.platforms.telegram.token_lock import TokenLock as TokenLock
