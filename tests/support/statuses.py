"""The status of a run and of a task about which little is known, for `_replace`."""

from __future__ import annotations

from tflaunch.explain.run_status import Status, TaskStatus

TASK = TaskStatus("worker:0", role="worker", host="host-0", address=None, state="running", pid=None, attempt=0)
RUN = Status(
    run="night", name="night", phase="running", state="running", attempt=0, restarts=0, restart=None, max_restarts=3,
    last_failure=None, exit_code=None, culprit=None, reason=None, forming=None, supervisor="alive", started=0.0,
    logs="/logs", tensorboard=None, hosts=(), tasks=(),
)  # fmt: skip
