"""Mem0 as a memory: its library on this machine, or its platform. A model draws facts from each turn, or none does."""
