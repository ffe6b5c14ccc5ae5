"""Import data from Hermes, another agent. Reads a Hermes home and never writes to it.

home: the files of a Hermes home
snapshot: copy a SQLite file that may be in use
database: read sessions and messages from the copy
rows: a database row and its meaning
lineage: the parent of each session and the kind of relation
compaction: recognise summarised conversations and copied messages
turns: group messages into turns
session_keys: the session key of each conversation
convert: sessions as lines of the export format
allowlist: accounts with access
"""
