"""Clients of models."""
