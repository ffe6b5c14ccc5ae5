"""`everthread setup`.

group        the verbs: setup itself, telegram, local
model        choose a model and its key
memory       choose memory providers
telegram     a Telegram bot
secrets      ask for secrets and write them
installer    run pip, uv or venv for a folder in the home
local_model  download the local model
hermes_env   install Hermes Agent for its memory plugins
"""
