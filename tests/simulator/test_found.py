"""Histories in which the search has found a defect, shrunk by it."""

import json
from typing import Any, NamedTuple

import pytest

from simulator.case import Case, Fault, Moment
from simulator.history import play
from simulator.programs import Script, Trouble


class Found(NamedTuple):
    """A history, without what is the same in all: the command, and programs that behave simply."""

    seed: int
    spec: dict[str, Any]
    script: Script
    faults: tuple[Fault, ...]
    has_function: bool = False


def at(seconds: float, kind: str, number: int) -> Fault:
    return Fault(kind, number, at=seconds)


def after(phase: str, event: str, kind: str, number: int) -> Fault:
    return Fault(kind, number, after=Moment(phase, event))


ONE, TWO = {"cluster": {"worker": ["a"]}}, {"cluster": {"worker": ["a", "b"]}}
FOREVER = {"window": 1000000.0}
FOUND = {
    # The supervisor of an elastic job waited for it without end.
    "the output of a lost host whose task is elsewhere": Found(
        17,
        {
            "cluster": {"worker": ["a", "b", "c"]},
            "elastic": {"min_workers": 1, "retry": 10},
            "restart": {**FOREVER, "backoff": [0, 0]},
            "timeouts": {"connect": 4, "lease": 15, "heartbeat": 2},
        },
        Script(
            duration=12.0,
            starting=1.0,
            term="dies",
            saved_code=42,
            troubles=(Trouble("worker:2", (0, 1), "child", 0, 0.0333401227385746),),
            epochs="resumes",
        ),
        (
            at(3.021, "cut", 0),
            at(2.294, "restart", 1),
            after("draining", "HostUnreachable", "half_written", 3093042),
            after("draining", "HostUnreachable", "kill_guard_and_agent", 3093044),
        ),
        has_function=True,
    ),
    # A late receipt counted as an error of the agent.
    "a restart while files are sent over a slow link": Found(
        2005988,
        {**TWO, "sync": {}},
        Script(saved_code=42),
        (at(0.558, "drain", 1), after("preparing", "HostLeaving", "slow", 6030626)),
    ),
    # After the supervisor had stood still, the next agent never got its orders, and the job waited without end.
    "an agent that is given up while its greeting is read": Found(
        2,
        {"cluster": {"worker": 1}, "restart": {"backoff": [0, 0]}, "timeouts": {"connect": 4}},
        Script(duration=4.0),
        (at(1.964, "restart", 0), at(1.846, "freeze_supervisor", 1), at(1.787, "kill_guard", 2)),
    ),
    # It ran on, so that the agent did not end, and the job waited for its host without end.
    "a task that is ordered from an agent that is drained": Found(
        30000263,
        {
            "cluster": {"worker": 2, "evaluator": 1},
            "sidecars": {"board": {"command": "board"}},
            "restart": {"backoff": [1, 4]},
        },
        Script(),
        (
            at(0.776, "restart", 0),
            after("running", "RestartRequested", "drain", 90004014),
            after("running", "RestartRequested", "freeze_agent", 90004016),
        ),
    ),
    # After its supervisor was killed, too, the last line of the attempt before counted as one of this attempt.
    "a log without space for the line that names an attempt": Found(
        31008488,
        {**TWO, "tensorboard": "logs/", "restart": {"backoff": [0, 0]}},
        Script(
            starting=4.0,
            hang_share=0.2,
            troubles=(
                Trouble("tensorboard", (0,), "exit", 7, 1.9079222663854225),
                Trouble("worker:0", (0,), "exit", 42, 5.071195131905386),
            ),
        ),
        (
            after("running", "PortsHeld", "half_open", 93186453),
            after("running", "PortsHeld", "kill_guard_and_agent", 93186454),
            after("running", "PortsHeld", "late_hello", 93186455),
            after("joining", "TaskStarted", "kill_supervisor", 93882252),
            after("stopping", "LinkRestored", "fill_logs", 93882254),
        ),
    ),
    # Nothing showed the log's output afterwards.
    "a log without space for its first mark": Found(
        30898,
        {
            "cluster": {"chief": ["a"], "worker": ["a", "b"], "ps": ["b"], "evaluator": ["a"]},
            "tensorboard": "logs/",
            "spares": ["s", "t"],
            "sync": {},
        },
        Script(),
        (
            at(0.067, "refuse_files", 2),
            after("joining", "HostRefused", "fill_logs", 103590),
            after("joining", "HostRefused", "refuse_files", 103591),
        ),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_the_search_has_found_is_mended(name: str) -> None:
    """The comment beside each says what was wrong."""
    found = FOUND[name]
    spec = json.dumps({**found.spec, "command": ["train"]})
    assert play(Case(found.seed, spec, found.script, found.faults, found.has_function)).violation is None
