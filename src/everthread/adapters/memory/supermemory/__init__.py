"""Supermemory as a memory: everybody has a namespace, and each turn and note is a document in it."""
