"""How many seconds a user's code may run on once it is to end (the table of docs/execution.md)."""

GRACE_SECONDS = 25.0  # default of --grace: until trials have paused, and after a trial's last report
STOP_SECONDS = 2.0  # a function at most, once the study is to end
COMMAND_SECONDS = 8.0  # a command at most, with its SIGTERM
TERM_SECONDS = 5.0  # between SIGTERM and SIGKILL
LEFT_SECONDS = 1.0  # the same, of processes that a command left behind
