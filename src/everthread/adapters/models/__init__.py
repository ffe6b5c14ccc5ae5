"""Models: who answers."""
