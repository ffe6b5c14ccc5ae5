"""Memory providers."""
