"""Settings. Only this package and `bootstrap` read the environment.

In the order of data flow:

| module | contents |
|---|---|
| `schema` | the declaration of every setting |
| `declaration` | metadata of a setting, evaluated from the annotations of `schema` |
| `checks` | checks of texts in settings |
| `provider_settings` | declarations and checks of `[memory.NAME]` |
| `settings` | load the settings in force |
| `environment`, `terminal` | facts from environment variables |
| `dotenv` | read and change `.env` |
| `tables` | configuration files as text and as tables |
| `secrets` | refuse secrets in `config.toml` and `mcp.json` |
| `parse` | read `config.toml` and `mcp.json` by the declarations |
| `line_numbers` | find the line of a key |
| `origins` | find the origin of a setting |
| `access` | the rules of `[access]` as a policy of rights |
| `validate` | find every mistake in a configuration |
| `edit` | change `config.toml` and `.env` |
"""
