"""The judge of drills finds what is wrong, and nothing else."""

import json
from pathlib import Path
from typing import Any

from chaos import program
from chaos.drill import STEPS, WORKERS
from chaos.judge import Evidence, Taken, gather, violations
from support.processes import Living, ProcessWatch, Sample

TASKS = ["worker:0", "worker:1"]
RESULT = program.result_of(STEPS, WORKERS)
SAID = {task: [f"said {task} {attempt} {step}" for attempt in (0, 1) for step in (1, 2, 3)] for task in TASKS}
SOUND = Evidence(
    code=0,
    clashes=(),
    left=(),
    said=SAID,
    logged=SAID,
    results=dict.fromkeys(TASKS, RESULT),
    journal=[json.dumps({"seq": number, "kind": "task_gone"}) for number in range(5)],
    has_started=True,
    may_lose=False,
    errors="",
    taken=(),
    has_fixed_ports=False,
)


def found(**changes: Any) -> list[str]:
    """Return the invariants that evidence with these changes violates."""
    return [sentence.partition(":")[0] for sentence in violations(SOUND._replace(**changes), RESULT, TASKS)]


def without(*lines: str) -> dict[str, list[str]]:
    return {task: [line for line in logged if line not in lines] for task, logged in SAID.items()}


def test_a_sound_run_is_accepted() -> None:
    """Also one that lacks the last line of an attempt, or ended before its tasks had started, or before it began."""
    assert found() == []
    assert found(logged=without("said worker:1 0 3")) == []
    assert found(code=3, has_started=False) == []
    assert found(code=125, has_started=False, journal=[]) == []


def test_each_violation_is_found() -> None:
    """By its invariant."""
    assert found(clashes=["worker:0"]) == ["I1"]
    assert found(left=["sleep"]) == ["I2"]
    assert found(code=None) == ["I5"]
    assert found(code=1) == found(code=3) == found(code=125, has_started=False) == ["I3"]
    assert found(results={"worker:0": RESULT}) == ["I8"]
    assert found(results={"worker:0": RESULT, "worker:1": RESULT + 1}) == ["I8"]
    assert found(journal=['{"seq": 0}', '{"seq": 2}']) == found(journal=['{"seq": 0']) == ["I7"]


def test_output_arrives_once_and_in_order() -> None:
    """A line in the middle of an attempt may be missing only after a fault that destroys output."""
    missing = without("said worker:1 0 2")
    assert found(logged=missing) == ["I6"]
    assert found(logged=missing, may_lose=True) == []
    for lines in (SAID["worker:0"][::-1], [*SAID["worker:0"], SAID["worker:0"][2]], ["said worker:0 0 9"]):
        assert found(logged={"worker:0": lines}, may_lose=True) == ["I6"]


def test_ports_of_other_programs_are_refused_or_not_chosen() -> None:
    """A fixed port is refused only while somebody has it; another one is chosen where the spec names none."""
    held = json.dumps({"seq": 0, "kind": "ports_held", "now": 5.0, "host": "h1", "ports": {"worker:0": 4000}})
    reason = "port 4000 is in use by pid 7 (python)"
    refused = json.dumps({"seq": 0, "kind": "ports_refused", "now": 5.0, "host": "h1", "refused": {"worker:0": reason}})
    taken = Taken("h1", frozenset({4000}), 4.0, 6.0, is_early=False, is_to_the_end=False)
    assert found(journal=[held]) == []
    assert found(journal=[held], taken=[taken]) == ["I14"]
    assert found(journal=[held], taken=[taken._replace(host="h2")]) == []
    assert found(journal=[held], taken=[taken._replace(since=1.0, until=4.9)]) == []
    assert found(journal=[refused], has_fixed_ports=True) == ["I3"]
    assert found(journal=[refused], has_fixed_ports=True, taken=[taken]) == []
    assert found(journal=[refused], taken=[taken]) == []
    assert found(journal=[refused], taken=[taken], code=3, has_started=False) == ["I3"]
    whole = taken._replace(is_early=True, is_to_the_end=True)
    start: dict[str, Any] = {"has_fixed_ports": True, "taken": [whole], "journal": [refused]}
    assert found(**start, code=3, has_started=False, errors=reason) == []
    assert found(**start, code=3, has_started=False) == ["I3"]
    assert found(**start, errors=reason) == ["I3"]


def test_evidence_is_read_from_files(tmp_path: Path) -> None:
    """The logs also have lines of TensorFlow."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").write_text("I0000 starting\nsaid worker:0 0 1\n\x1b[0mdone\n")
    (tmp_path / "said.worker:0").write_text("said worker:0 0 1\n")
    (tmp_path / "result.worker:0").write_text("12\n")
    (tmp_path / "events.jsonl").write_text('{"seq": 0}\n')
    seen: dict[str, Any] = {"code": 0, "clashes": (), "left": (), "has_started": True, "may_lose": False}
    seen |= {"errors": "", "taken": (), "has_fixed_ports": False}
    read = gather(tmp_path, tmp_path, **seen)
    assert read.logged == read.said == {"worker:0": ["said worker:0 0 1"]}
    assert read.results == {"worker:0": 12.0}


def test_two_attempts_of_a_task_alive_at_once_are_a_clash_and_one_after_the_other_are_none() -> None:
    first, second, other = (Living("worker:0", 0, host=1), Living("worker:0", 1, host=2), Living("worker:1", 0, host=2))
    watch = ProcessWatch(lambda _: 0)
    watch.samples = [Sample(when, frozenset(living)) for when, living in enumerate([{first, other}, {second, other}])]
    assert watch.clashes() == []
    watch.samples.append(Sample(2, frozenset({first, second, other})))
    assert watch.clashes() == [(2, [first, second])]
