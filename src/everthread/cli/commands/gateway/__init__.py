"""`everthread gateway`.

group    the verbs: run, install, start, stop, restart, status
run      serve in this process, with a graceful shutdown
lock     one gateway per home
report   status report of a running gateway
status   lock, report and queued work as text and JSON
control  start and stop a gateway from another process
systemd  the systemd unit, systemctl and notifications
"""
