"""The process in which Mem0's library runs. Nothing here is imported by Everthread, and nothing of Everthread here."""
