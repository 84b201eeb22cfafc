"""Ask a run's supervisor where its tasks are, from another process."""

from __future__ import annotations

from pathlib import Path

from tflaunch.client.control_client import ControlClient, NoSupervisorError
from tflaunch.client.requests import why_over
from tflaunch.explain.run_status import Status, read_status
from tflaunch.features.hang.evidence import USUAL, Evidence, Sampling
from tflaunch.records import read_record
from tflaunch_worker import fields


def ask_stacks(client: ControlClient, sampling: Sampling = USUAL) -> tuple[Status, list[Evidence], list[str]]:
    """Return the run's status, where its tasks are, and the hosts that did not answer.

    Raises:
        NoSupervisorError: the supervisor has exited.
        TflaunchError: the supervisor does not answer within 10 s, or what it sends cannot be read.
    """
    found = []
    answer = client.ask("stacks", **sampling.as_json())
    try:
        while answer["kind"] == "evidence":
            found.append(read_record(Evidence, answer))
            answer = client.next_answer()
        return read_status(answer.get("status")), found, fields.texts(answer, "silent_hosts")
    except ValueError as error:
        raise client.malformed("answer", error) from None


def request_stacks(directory: Path) -> tuple[Status, list[Evidence], list[str]]:
    """Return what `ask_stacks` does, of the run in a directory.

    Raises:
        TflaunchError: the supervisor does not answer, or there is none.
    """
    try:
        return ask_stacks(ControlClient(directory))
    except NoSupervisorError:
        raise why_over(directory) from None
