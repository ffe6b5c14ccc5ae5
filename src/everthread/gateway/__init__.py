"""The gateway: people write from elsewhere, many at once, and each is answered where they wrote.

What comes in is stored before it is acknowledged; what goes out is stored before it is sent. So nothing here needs to
be remembered: a process that dies leaves it all to the next one.
"""
