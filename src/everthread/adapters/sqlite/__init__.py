"""The store on one SQLite file.

store: `SqliteStore`, the asynchronous interface.
write_queue: queue of transactions for the writer thread.
writer: group commit on the one connection that writes.
connection: connections, the `Database` of the tables, and error translation.
migrate: schema migrations.
sentinel: tell a lost or replaced database from a new one, and stop writing to a damaged one.
lock_holder: find the process that holds the write lock.
maintenance: check, copy and restore of the file.
"""
