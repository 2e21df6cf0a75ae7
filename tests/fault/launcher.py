"""Starts `gym` processes quickly: imports once, then forks one process for each line of JSON on stdin.

`{"words": [...], "log": path, "file_limit": bytes or null}`; answers with the process id, and with the exit status
once it has ended. `file_limit` is the size beyond which no file of the process can grow, where no small disk can be
made.
"""

from __future__ import annotations

import json
import os
import resource
import sys

import nemo_gym.cli.eval_run
import nemo_gym.rollouts.collect  # noqa: F401 - so that no child imports it
from nemo_gym.cli import main


def child(request: dict) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if request["file_limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], request["file_limit"]))
    code = 70
    try:
        code = main.run(request["words"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        child(json.loads(line))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
