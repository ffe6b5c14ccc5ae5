"""The portable SQL behind the store's ports: one module per group of tables, each on a bare `Execute`."""
