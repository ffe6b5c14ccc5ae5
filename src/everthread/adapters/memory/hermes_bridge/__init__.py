"""Any memory plugin of Hermes Agent's as a memory, unmodified, in a process of its own for each person."""
