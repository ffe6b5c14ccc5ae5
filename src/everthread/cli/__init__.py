"""The command line. Its modules import click and nothing slower: what a command needs is imported when it runs."""
