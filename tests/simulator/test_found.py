"""Histories in which the search has found a defect, shrunk by it."""

# ruff: noqa: E501 - cases as they are printed

from __future__ import annotations

import pytest

from simulator.case import Case, Fault, Moment
from simulator.history import play
from simulator.programs import Script, Trouble

pytestmark = pytest.mark.simulator


def test_files_that_were_refused_are_offered_again() -> None:
    """The agent answered no second offer, and the job waited without end."""
    case = Case(
        seed=1000163,
        spec='{"cluster": {"worker": ["a"]}, "command": ["train"], "restart": {"window": 1000000.0}, "sync": {}}',
        script=Script(
            duration=1.0,
            starting=0.3,
            term="ignores",
            slow_share=0.0,
            hang_share=0.0,
            evaluator="ends",
            saved_code=143,
            lines=3,
            troubles=(),
            epochs="silent",
        ),
        faults=(
            Fault(kind="drain", number=0, at=3.81, after=None),
            Fault(kind="refuse_files", number=3001564, at=None, after=Moment(phase="backing_off", event="LinkLost")),
        ),
        has_function=False,
    )
    assert play(case).violation is None


def test_the_output_of_a_lost_host_whose_task_is_elsewhere() -> None:
    """The supervisor of an elastic job waited for it without end."""
    case = Case(
        seed=17,
        spec='{"cluster": {"worker": ["a", "b", "c"]}, "command": ["train"], "elastic": {"min_workers": 1, "retry": 10}, "restart": {"window": 1000000.0, "backoff": [0, 0]}, "timeouts": {"connect": 4, "lease": 15, "heartbeat": 2}}',
        script=Script(
            duration=12.0,
            starting=1.0,
            term="dies",
            slow_share=0.0,
            hang_share=0.0,
            evaluator="ends",
            saved_code=42,
            lines=3,
            troubles=(Trouble(task="worker:2", attempts=(0, 1), kind="child", number=0, after=0.0333401227385746),),
            epochs="resumes",
        ),
        faults=(
            Fault(kind="cut", number=0, at=3.021, after=None),
            Fault(kind="restart", number=1, at=2.294, after=None),
            Fault(
                kind="half_written", number=3093042, at=None, after=Moment(phase="draining", event="HostUnreachable")
            ),
            Fault(
                kind="kill_guard_and_agent",
                number=3093044,
                at=None,
                after=Moment(phase="draining", event="HostUnreachable"),
            ),
        ),
        has_function=True,
    )
    assert play(case).violation is None


def test_a_restart_while_files_are_sent_over_a_slow_link() -> None:
    """A late receipt counted as an error of the agent."""
    case = Case(
        seed=2005988,
        spec='{"cluster": {"worker": ["a", "b"]}, "command": ["train"], "sync": {}}',
        script=Script(
            duration=1.0,
            starting=0.3,
            term="ignores",
            slow_share=0.0,
            hang_share=0.0,
            evaluator="ends",
            saved_code=42,
            lines=3,
            troubles=(),
            epochs="silent",
        ),
        faults=(
            Fault(kind="drain", number=1, at=0.558, after=None),
            Fault(kind="slow", number=6030626, at=None, after=Moment(phase="preparing", event="HostLeaving")),
        ),
        has_function=False,
    )
    assert play(case).violation is None


def test_a_host_is_drained_while_its_link_is_lost() -> None:
    """The lease was blamed, and the restart charged."""
    case = Case(
        seed=2012878,
        spec='{"cluster": {"worker": ["a", "b"]}, "command": ["train"], "spares": ["s", "t"]}',
        script=Script(
            duration=25.0,
            starting=0.3,
            term="ignores",
            slow_share=0.0,
            hang_share=0.0,
            evaluator="ends",
            saved_code=143,
            lines=3,
            troubles=(),
            epochs="silent",
        ),
        faults=(
            Fault(kind="power_off", number=0, at=3.001, after=None),
            Fault(kind="cut", number=6056103, at=None, after=Moment(phase="running", event="HostUnreachable")),
            Fault(kind="drain", number=6056104, at=None, after=Moment(phase="running", event="HostUnreachable")),
        ),
        has_function=False,
    )
    assert play(case).violation is None


def test_a_task_fails_at_its_start_after_another_has_trained() -> None:
    """The job was given up, although it had made progress."""
    case = Case(
        seed=10052398,
        spec='{"cluster": {"worker": ["here", "a"]}, "command": ["train"], "timeouts": {"lease": 8}}',
        script=Script(
            duration=1.0,
            starting=1.0,
            term="ignores",
            slow_share=0.0,
            hang_share=0.0,
            evaluator="ends",
            saved_code=143,
            lines=3,
            troubles=(Trouble(task="worker:1", attempts=None, kind="raise", number=1, after=1.2620141037726307),),
            epochs="from zero",
        ),
        faults=(Fault(kind="half_logged", number=0, at=1.494, after=None),),
        has_function=False,
    )
    assert play(case).violation is None


def test_an_agent_that_is_given_up_while_its_greeting_is_read() -> None:
    """After the supervisor had stood still, the next agent never got its orders, and the job waited without end."""
    case = Case(
        seed=2,
        spec='{"cluster": {"worker": 1}, "command": ["train"], "restart": {"backoff": [0, 0]}, "timeouts": {"connect": 4}}',
        script=Script(
            duration=4.0,
            starting=0.3,
            term="ignores",
            slow_share=0.0,
            hang_share=0.0,
            evaluator="ends",
            saved_code=143,
            lines=3,
            troubles=(),
            epochs="silent",
        ),
        faults=(
            Fault(kind="restart", number=0, at=1.964, after=None),
            Fault(kind="freeze_supervisor", number=1, at=1.846, after=None),
            Fault(kind="kill_guard", number=2, at=1.787, after=None),
        ),
        has_function=False,
    )
    assert play(case).violation is None


def test_a_task_that_is_ordered_from_an_agent_that_is_drained() -> None:
    """It ran on, so that the agent did not end, and the job waited for its host without end."""
    case = Case(
        seed=30000263,
        spec='{"cluster": {"worker": 2, "evaluator": 1}, "command": ["train"], "sidecars": {"board": {"command": "board"}}, "restart": {"backoff": [1, 4]}}',
        script=Script(
            duration=1.0,
            starting=0.3,
            term="ignores",
            slow_share=0.0,
            hang_share=0.0,
            evaluator="ends",
            saved_code=143,
            lines=3,
            troubles=(),
            epochs="silent",
        ),
        faults=(
            Fault(kind="restart", number=0, at=0.776, after=None),
            Fault("drain", 90004014, after=Moment(phase="running", event="RestartRequested")),
            Fault("freeze_agent", 90004016, after=Moment(phase="running", event="RestartRequested")),
        ),
        has_function=False,
    )
    assert play(case).violation is None


def test_a_log_without_room_for_the_line_that_names_an_attempt() -> None:
    """After its supervisor was killed, too, the last line of the attempt before counted as one of this attempt."""
    case = Case(
        seed=31008488,
        spec='{"cluster": {"worker": ["a", "b"]}, "command": ["train"], "tensorboard": "logs/", "restart": {"backoff": [0, 0]}}',
        script=Script(
            duration=1.0,
            starting=4.0,
            term="ignores",
            slow_share=0.0,
            hang_share=0.2,
            evaluator="ends",
            saved_code=143,
            lines=3,
            troubles=(
                Trouble(task="tensorboard", attempts=(0,), kind="exit", number=7, after=1.9079222663854225),
                Trouble(task="worker:0", attempts=(0,), kind="exit", number=42, after=5.071195131905386),
            ),
            epochs="silent",
        ),
        faults=(
            Fault("half_open", 93186453, after=Moment(phase="running", event="PortsHeld")),
            Fault("kill_guard_and_agent", 93186454, after=Moment(phase="running", event="PortsHeld")),
            Fault("late_hello", 93186455, after=Moment(phase="running", event="PortsHeld")),
            Fault("kill_supervisor", 93882252, after=Moment(phase="joining", event="TaskStarted")),
            Fault("fill_logs", 93882254, after=Moment(phase="stopping", event="LinkRestored")),
        ),
        has_function=False,
    )
    assert play(case).violation is None
