"""A Bot API of Telegram for tests: real HTTP on loopback, with people who write, press, look, and break things.

In a test:

    async with TelegramEmulator() as telegram, People(telegram.base_url) as people:
        ...  # a bot that talks to telegram.base_url with telegram.token
        await people.say(ANN, "hello")
        await people.until(lambda: people.texts(ANN) == ["Hi Ann!"], "an answer")

As a process of its own, which outlives the bot: `python -m everthread.testing.telegram --port 0 --token 42:TEST` prints
its address as a line of JSON.

| module | what is in it |
|---|---|
| `server.TelegramEmulator` | the server: Bot API, files, and the control calls of tests |
| `people.People` | the other side, for tests: people, and whoever breaks things |
| `wire` | what `People` and the server say to each other |
| `screen` | a conversation as a person sees it, as text |
| `methods`, `file_methods`, `bot_methods` | the methods of the Bot API |
| `world`, `people_side` | what there is, and what people do to it |
| `markdown_v2`, `html_markup`, `markdown_legacy`, `formatting` | texts and their entities |
| `updates`, `webhook` | how updates reach the bot |
| `limits`, `faults` | what goes wrong, by itself and on demand |
"""
