"""The agent: one turn after another, each a function of what is stored."""
