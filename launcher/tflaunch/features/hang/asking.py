"""Ask a run's supervisor where its tasks are, from another process."""

from __future__ import annotations

from pathlib import Path

from tflaunch.client.control_client import ControlClient
from tflaunch.explain.run_status import Status, read_status
from tflaunch.features.hang.evidence import Evidence
from tflaunch.records import read_record
from tflaunch_worker import fields


def request_stacks(directory: Path) -> tuple[Status, list[Evidence], list[str]]:
    """Return a run's status, its tasks' evidence, and the hosts that did not answer.

    Raises:
        TflaunchError: the supervisor does not answer within 10 s, what it sends cannot be read, or there is none.
    """
    found = []
    client = ControlClient(directory)
    try:
        answer = client.ask("stacks")
        while answer["kind"] == "evidence":
            found.append(read_record(Evidence, answer))
            answer = client.next_answer()
        return read_status(answer.get("status")), found, fields.texts(answer, "silent_hosts")
    except ValueError as error:
        raise client.malformed("answer", error) from None
