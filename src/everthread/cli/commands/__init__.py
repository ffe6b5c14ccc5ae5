"""The commands, one module or package each; `cli.main` has the table. A package's `group` holds its click group."""
