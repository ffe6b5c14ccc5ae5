"""The store on one SQLite file.

store: `SqliteStore`, the asynchronous interface.
write_queue: queue of transactions for the writer thread.
writer: group commit on the one connection that writes.
connection: connections, the `Database` of the tables, and error translation.
migrate: schema migrations.
maintenance: check, copy and restore of the file.
"""
