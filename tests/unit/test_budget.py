"""What the core may spend: restarts within a budget, and sizes that are linear in the number of tasks."""

import json
from collections import Counter
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as some

from support.job_history import HERE, History
from support.specs import GOOD, SMALLEST, clustered, planned
from tflaunch.core import preflight, restart_budget, time_limits
from tflaunch.core.actions import StopTask
from tflaunch.core.events import PortOpened, TaskExited, TaskGone, TaskStarted
from tflaunch.core.job_state import StateTable
from tflaunch.core.restart_budget import ALIKE, MOST_FREE, Answer, Budget, Failure, Reached
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan, RestartPlan


def spread(count: int, per_host: int = 1, **fields: Any) -> Plan:
    return clustered({"worker": [f"host{number // per_host:05}x" for number in range(count)]}, **fields)


@pytest.mark.parametrize("data", [SMALLEST, *GOOD.values()], ids=["smallest", *GOOD])
def test_a_record_gives_the_plan_again(data: dict[str, Any]) -> None:
    plan = planned(data)
    assert serialize.from_json(json.loads(json.dumps(serialize.as_json(plan)))) == plan
    assert "TF_CONFIG" not in {name for task in serialize.as_json(plan)["tasks"] for name in task["env"]}


def test_twice_the_tasks_make_twice_the_record_and_twice_the_questions() -> None:
    """Questions of names and addresses, where there are too many hosts for each to probe all others."""
    sizes = []
    for count in (200, 400):
        plan, hosts = spread(count), [f"host{number:05}x" for number in range(count)]
        asked = sum(len(one.peers) for one in preflight.peers_to_try(plan).values())
        names = sum(map(len, preflight.names_to_find(plan, hosts).values()))
        sizes.append((len(json.dumps(serialize.as_json(plan))), asked, names))
    assert all(large < 2.1 * small for small, large in zip(*sizes, strict=True))


@pytest.mark.parametrize("count", [2, 64, 65, 66, 67, 301])
def test_few_hosts_all_try_all_and_of_many_each_tries_and_is_tried_by_many(count: int) -> None:
    """The first host, which leads, is probed by all; no host probes itself."""
    wanted = preflight.peers_to_try(spread(count))
    tried = [peer for one in wanted.values() for peer in one.peers]
    least = min(preflight.MOST_PEERS, count - 1)
    assert tried.count("worker:0") == count - 1
    assert all(least <= tried.count(f"worker:{number}") <= least + 1 for number in range(1, count))
    assert all(least <= len(one.peers) <= least + 1 for one in wanted.values())
    assert all(not one.peers.keys() & one.ports.keys() for one in wanted.values())
    assert all(f"worker:{(number + 1) % count}" in wanted[f"host{number:05}x"].peers for number in range(count))


def test_a_gang_is_stopped_in_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task states are replaced as often, whatever their number."""
    changes = []
    for workers in (20, 200):
        history = History(clustered({"worker": workers})).start()
        replaced = Mock(side_effect=StateTable.replaced)
        with monkeypatch.context() as patch:
            patch.setattr(StateTable, "replaced", lambda *arguments, mock=replaced: mock(*arguments))
            history.happens(TaskExited("localhost", "worker:3", 0, 1, None, 0.0))
        assert len([action for action in history.actions if isinstance(action, StopTask)]) == workers
        changes.append(replaced.call_count)
    assert changes[0] == changes[1] > 0


RULES = RestartPlan(max=2, window=100, backoff=(1, 8))


def spend(failures: list[Failure], rules: RestartPlan = RULES, gap: float = 1.0) -> list[Answer]:
    """Return the responses to failures ``gap`` seconds apart."""
    answers, spent = [], Budget()
    for number, failure in enumerate(failures):
        answers.append(restart_budget.decide_restart(spent, rules, failure, 1000 + number * gap, "job"))
        spent = answers[-1].budget
    return answers


LOST = Failure("")
"""An attempt that ended through no fault of the program."""
PREEMPTED = Failure("exit 143 ", is_free=True)


def test_a_preemption_is_not_charged_but_a_loop_of_them_ends() -> None:
    """A program that always asks for a restart would otherwise loop without end."""
    answers = spend([PREEMPTED] * (MOST_FREE + 1))
    assert all(answer.wait is not None for answer in answers[:-1])
    assert answers[-1].wait is None
    assert not answers[-1].budget.charged
    after = restart_budget.decide_restart(answers[3].budget, RULES, LOST, 1010, "job")
    assert (after.wait is not None, len(after.budget.charged)) == (True, 1)


RAISED = Failure("exit 1 ValueError at train.py:12", what="ValueError at train.py:12")
RICH = RULES._replace(max=50)


def at(step: int, failure: Failure = RAISED) -> Failure:
    """Return a training failure that reached this step."""
    return failure._replace(reached=Reached(step=step))


OTHER = Failure("exit 9 ")
SPENT = "within 1 min 40 s, which is restart.max"
LOOP = "crash loop: the same failure 3 times without progress (ValueError at train.py:12)"


@pytest.mark.parametrize(
    ("failures", "rules", "gap", "reason"),
    [
        ([LOST] * 3, RULES, 1, f"restarted 2 times {SPENT} (2)"),
        ([LOST] * 2, RULES._replace(max=1), 1, f"restarted once {SPENT} (1)"),
        ([LOST] * 20, RULES, 51, ""),
        ([PREEMPTED], RULES._replace(max=0), 1, "restart.max is 0"),
        ([at(100)], RULES._replace(max=0), 1, "restart.max is 0"),
        ([RAISED] * ALIKE, RULES, 1e6, LOOP),
        ([RAISED, RAISED, OTHER, RAISED, RAISED, OTHER], RICH, 1, ""),
        ([RAISED, LOST, RAISED, LOST, RAISED], RICH, 1, LOOP),
        ([at(400)] * 3, RICH, 1, LOOP),
        ([at(400), at(300), at(399)], RICH, 1, LOOP),
    ],
    ids=["budget", "one restart", "the window moves on", "never for a preemption", "never after progress",
         "each failure is outside the window before the next", "another failure, so the program is not the only cause",
         "a lost host says nothing about the program", "no checkpoints", "no newer progress"],
)  # fmt: skip
def test_when_restarts_end(failures: list[Failure], rules: RestartPlan, gap: float, reason: str) -> None:
    *before, last = spend(failures, rules, gap)
    assert all(answer.wait is not None for answer in before)
    assert (last.no_retry_reason, last.wait is None) == (reason, bool(reason))


def test_newer_progress_makes_a_restart_free_and_breaks_the_row() -> None:
    """No limit applies, and the backoff is the shortest: the training advances."""
    answers = spend([at(step) for step in range(100, 5000, 100)])
    assert all(0.75 <= (answer.wait or 0) <= 1 for answer in answers)
    assert (answers[-1].budget.charged, answers[-1].budget.free, answers[-1].budget.restarts) == ((), (), 49)


@pytest.mark.parametrize("further", [Reached(step=5), Reached(epoch=2), Reached(checkpoint=3)])
def test_any_of_the_three_kinds_of_progress_counts(further: Reached) -> None:
    """Reported steps, reported epochs, and checkpoint numbers."""
    before = Reached(step=4, epoch=1, checkpoint=2)
    assert further.is_beyond(before)
    assert not before.is_beyond(before)
    assert before.furthest(further).is_beyond(before)
    assert not before.furthest(further).is_beyond(further.furthest(before))


def test_waits_double_up_to_the_longest_and_are_a_little_shorter_by_chance() -> None:
    """The jitter is reproducible from the journal, and differs between jobs."""
    waits = [answer.wait or 0 for answer in spend([LOST] * 6, RICH)]
    for wait, whole in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert 0.75 * whole <= wait <= whole
    assert waits == [answer.wait for answer in spend([LOST] * 6, RICH)]
    many = Budget(charged=(0.0,) * 5000)
    assert 6 <= (restart_budget.decide_restart(many, RULES._replace(max=10000), LOST, 1, "job").wait or 0) <= 8
    first, other = (restart_budget.decide_restart(Budget(), RICH, LOST, 0, job) for job in ("job", "b"))
    assert first.wait != other.wait


# ---- tagged states are counted in constant time


NAMES = some.sampled_from("abcd")
TAGS = some.frozensets(some.sampled_from("xyz"))


class Thing(NamedTuple):
    tags: frozenset[str]


@given(some.dictionaries(NAMES, TAGS), some.lists(some.dictionaries(NAMES, TAGS)))
def test_it_counts_what_a_look_at_each_would(first: dict[str, frozenset[str]], changes: list[Any]) -> None:
    """After any replacements; earlier tables do not change."""
    table: Any = StateTable({name: Thing(tags) for name, tags in first.items()})
    known = dict(first)
    for change in changes:
        earlier, before = table, dict(known)
        table = table.replaced({name: Thing(tags) for name, tags in change.items()})
        known.update(change)
        for one, expected in ((table, known), (earlier, before)):
            assert {name: thing.tags for name, thing in one.items()} == expected
            counts = Counter(tag for tags in expected.values() for tag in tags)
            assert [one.count(tag) for tag in "xyz"] == [counts[tag] for tag in "xyz"]
            assert one.count("x", "z") == counts["x"] + counts["z"]
    assert list(table) == list(known)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_an_event_costs_no_more_looks_with_more_tasks(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the supervisor, its clock and the messages: one task in the middle of a running job."""
    assert _looks(200, strategy, monkeypatch) == _looks(20, strategy, monkeypatch)


def _looks(workers: int, strategy: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many single tasks are inspected for each of the four events of a task's life."""
    cluster = {"chief": 1, "worker": workers, "ps": 1}
    if strategy != "parameter_server":
        del cluster["ps"]
    history = History(clustered(cluster, strategy=strategy)).start()
    counted = 0
    original = StateTable.__getitem__

    def count(self: StateTable[Any], name: str) -> Any:
        nonlocal counted
        counted += 1
        return original(self, name)

    looks = []
    with monkeypatch.context() as patch:
        patch.setattr(StateTable, "__getitem__", count)
        name = f"worker:{workers // 2}"
        for event in (
            TaskStarted(HERE, name, 0, 1, 0.0),
            PortOpened(HERE, name, 0),
            TaskExited(HERE, name, 0, 0, None, 0.0),
            TaskGone(HERE, name, 0),
        ):
            counted, before = 0, history.job
            history.happens(event)
            time_limits.next_deadline(history.job)
            messages_about(before, event, history.job, history.now, Logs("", lambda *_: []))
            looks.append(counted)
    return looks
