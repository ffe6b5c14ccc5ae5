"""The HTTP interface: other programs talk to the agent as they talk to a model, and look after conversations."""

from everthread.web.server import Web

__all__ = ["Web"]
