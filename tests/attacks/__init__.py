"""Hostile inputs against a running gateway: `make attack`.

runner            run every group, print the counts, exit with 1 if an attack succeeded
attempts          the record of attempts and successes of one group
target            the attacked home: owner, guests, tokens, gateway process, model, Telegram, nginx
obedient_model    a model that obeys every instruction that it reads, and reports every secret that it sees
lying_mcp_server  an MCP server that calls its destructive tools read-only
nginx             a real nginx with eight usual configurations

ownership         sessions of other owners on every route
proxies           requests without a token through nginx
webhooks          unsigned, altered, late and repeated webhooks
bodies            malformed, huge and slow requests
terminal          escape sequences in stored text, read in a terminal
archives          backups and exports that write outside the home
mcp               destructive tools of a lying MCP server
injection         instructions in every channel that a model reads
"""
