"""`everthread cron`.

group   the verbs: list, show, run, pause, resume, remove
add     the verb `add`: parse the options of a new task
output  tasks and their runs as text and JSON
"""
