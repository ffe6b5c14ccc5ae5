"""The conversation in a terminal: answers drawn as they are written, an input that is always there, a status line."""
