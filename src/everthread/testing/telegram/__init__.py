"""Telegram Bot API emulator for tests: real HTTP on loopback, with scripted users and faults.

In a test:

    async with TelegramEmulator() as telegram, TelegramUsers(telegram.base_url) as people:
        ...  # a bot that talks to telegram.base_url with telegram.token
        await actions.say(ANN, "hello")
        await people.until(lambda: people.texts(ANN) == ["Hi Ann!"], "an answer")

As a process of its own, which outlives the bot: `python -m everthread.testing.telegram --port 0 --token 42:TEST` prints
its address as a line of JSON.

| module | contents |
|---|---|
| `users.TelegramUsers` | control client for tests: users, faults, message log |
| `protocol` | messages between `TelegramUsers` and the server |
| `server.TelegramEmulator` | the server: Bot API, files, control calls |
| `control` | handlers of the control calls |
| `user_actions`, `state` | actions of users; users, chats and messages |
| `updates`, `webhook` | delivery of updates to the bot by polling and by webhook |
| `params`, `objects`, `errors` | parameters, objects and errors of the Bot API |
| `message_methods`, `bot_methods` | methods of the Bot API |
| `formatting`, `markdown`, `html_markup`, `entities` | text markup and its entities |
| `files` | stored files |
| `rate_limits`, `faults` | rate limits; injected faults |
| `screen` | text rendering of a chat |
"""
