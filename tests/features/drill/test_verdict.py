"""The verdict about a training that was struck, beside one that was not."""

from collections.abc import Sequence
from typing import Any

import pytest

from tflaunch.features.drill.findings import Verdict
from tflaunch.features.drill.records import BESTS, MOVED, READ, WRITTEN, Fault, FileEvent, Life, Point, Rehearsal, Saved
from tflaunch.features.drill.saved_files import place_of_iterations
from tflaunch.features.drill.verdict import judge

AT = 50.0  # when it was struck, after step 50
FAULT = Fault("kill", ("worker:1",), 50)


def curve(first: int, last: int, begins: float, shift: float = 0.0) -> tuple[Point, ...]:
    """Return a point for each step, one a second."""
    steps = range(first, last + 1)
    return tuple(Point(begins + step - first, step, None, 10.0 / step + shift) for step in steps)


def rehearsal(*lives: Sequence[Point], files: Sequence[FileEvent] = (), **fields: Any) -> Rehearsal:
    """Return what was seen of two workers with the same steps."""
    seen = tuple(Life(attempt, tuple(points)) for attempt, points in enumerate(lives))
    source = fields.pop("source", "steps")
    trails = {task: {source: seen} for task in ("worker:0", "worker:1")}
    about = {"struck_at": None, "per_epoch": {}, "exits": (), "saved": None, **fields}
    return Rehearsal(0, "", is_stopped=False, is_late=False, trails=trails, files=files, **about)


CALM = rehearsal(curve(1, 100, 1.0))
SAVED = [
    FileEvent(41.0, WRITTEN, "ckpt-40.tmp"),
    FileEvent(41.0, MOVED, "ckpt-40.h5"),
    FileEvent(58.0, READ, "ckpt-40.h5"),
]


def judged(
    later: Sequence[Point], files: Sequence[FileEvent] = SAVED, calm: Rehearsal = CALM, **fields: Any
) -> Verdict:
    return judge(calm, rehearsal(curve(1, 50, 1.0), later, files=files, struck_at=AT + 0.5, **fields), FAULT)


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


def test_a_training_that_goes_on_from_its_checkpoint_is_proved() -> None:
    note = [FileEvent(41.0, MOVED, "training.json"), FileEvent(58.0, READ, "training.json")]  # says when it was made
    verdict = judged(curve(41, 100, 60.0), [*SAVED, *note])
    assert (verdict.verdict, kinds(verdict)) == ("proved", ["resumed"])
    assert verdict.findings[0].sentence == "resumed at step 40 from ckpt-40.h5; 10 steps lost, and it took 9.5 s"


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ([], "no_checkpoint"),
        (SAVED[:2], "never_read"),
        ([*SAVED[:2], FileEvent(65.0, READ, "ckpt-40.h5")], "read_late"),
        ([FileEvent(41.0, MOVED, "a/ckpt-40.h5"), FileEvent(99.0, MOVED, "b/ckpt-40.h5")], "other_directory"),
        ([FileEvent(41.0, WRITTEN, "train.log"), FileEvent(58.0, READ, "train.log")], "no_checkpoint"),
        (SAVED, "not_used"),
    ],
)
def test_why_a_training_began_again(files: list[FileEvent], kind: str) -> None:
    verdict = judged(curve(1, 100, 60.0), files)
    assert (verdict.verdict, kinds(verdict)) == ("not proved", [kind])
    assert verdict.findings[0].remedy


def test_steps_that_count_again_with_trained_weights_are_told_from_a_new_training() -> None:
    later = [point._replace(loss=0.2) for point in curve(1, 100, 60.0)]
    assert kinds(judged(later)) == ["counter"]
    (finding,) = judged([point._replace(loss=None) for point in curve(1, 100, 60.0)]).findings
    assert finding.sentence.endswith("what was read may have been used: no loss tells it")


def test_a_checkpoint_that_comes_after_the_fault_is_said_to_come_too_late() -> None:
    calm = CALM._replace(files=[FileEvent(80.0, MOVED, "ckpt-80.h5")])
    assert "the first one comes at step 80" in judged(curve(1, 100, 60.0), [], calm).findings[0].sentence


@pytest.mark.parametrize(
    ("shifted_from", "saves_optimizer", "kind"),
    [(41, True, "data"), (42, True, "optimizer"), (42, False, "weights_only"), (100, True, "")],
)
def test_what_a_loss_tells(shifted_from: int, saves_optimizer: bool, kind: str) -> None:
    """The first loss is that of the restored weights; what comes later depends on the optimizer."""
    later = [*curve(41, shifted_from - 1, 60.0), *curve(shifted_from, 100, 60.0 + shifted_from - 41, 0.5)]
    assert kinds(judged(later, saved=Saved("ckpt-40.h5", saves_optimizer, None))) == ["resumed", *filter(None, [kind])]


@pytest.mark.parametrize(("saves_optimizer", "kind"), [(True, "differs"), (False, "weights_only")])
def test_means_of_epochs_do_not_tell_order_from_state(saves_optimizer: bool, kind: str) -> None:
    """Keras shows the mean since the epoch's begin, which says nothing in an epoch that was begun again."""
    calm = rehearsal([point._replace(mean_of=10) for point in curve(1, 100, 1.0)])
    fields: dict[str, Any] = {"struck_at": AT, "saved": Saved("ckpt-40.h5", saves_optimizer, None), "files": SAVED}
    for shift, said in ((0.0, []), (0.5, [kind])):
        later = [point._replace(mean_of=10) for point in [*curve(36, 49, 60.0, 9.0), *curve(50, 100, 74.0, shift)]]
        verdict = judge(calm, rehearsal(calm.trails["worker:0"]["steps"][0].points[:50], later, **fields), FAULT)
        assert kinds(verdict) == ["resumed", *said]
        assert verdict.verdict == ("not proved" if said == ["weights_only"] else "proved")


def test_a_loss_that_differs_in_undisturbed_trainings_tells_nothing() -> None:
    calm = rehearsal([point._replace(loss=(point.loss or 0) * 1.2) for point in curve(1, 100, 1.0)])
    assert kinds(judged(curve(41, 100, 60.0, 0.01), calm=calm)) == ["resumed"]


def test_a_learning_rate_that_begins_again_is_named() -> None:
    rated = [point._replace(rate=1 / point.step) for point in curve(1, 100, 1.0)]
    later = [point._replace(rate=1.0, loss=9.0) for point in curve(41, 100, 60.0)]
    assert kinds(judged(later, calm=rehearsal(rated))) == ["resumed", "rate"]


def test_tasks_that_resume_at_different_steps_are_named() -> None:
    struck = rehearsal(curve(1, 50, 1.0), curve(41, 100, 60.0), files=SAVED, struck_at=AT)
    trails = {**struck.trails, "worker:1": {"steps": (Life(0, curve(1, 50, 1.0)), Life(1, curve(1, 100, 60.0)))}}
    (finding,) = judge(CALM, struck._replace(trails=trails), FAULT).findings
    assert finding.sentence == "the tasks resumed at different places: worker:0 at step 40, worker:1 at step 0"


def test_a_name_with_a_number_that_comes_twice_has_several_writers() -> None:
    twice = [*SAVED[:2], FileEvent(41.1, MOVED, "ckpt-40.h5"), SAVED[2]]
    assert kinds(judged(curve(41, 100, 60.0), twice)) == ["resumed", "several_writers"]
    shared = [
        FileEvent(41.0, WRITTEN, "last.h5", frozenset({"worker:0", "worker:1"})),
        FileEvent(58.0, READ, "last.h5"),
    ]
    assert "worker:0, worker:1" in judged(curve(41, 100, 60.0), shared).findings[1].sentence


def test_a_number_in_a_name_that_is_written_again_is_no_step() -> None:
    """It may be that of a task, or of a kind of model."""
    again = [FileEvent(21.0, MOVED, "rank0.h5"), FileEvent(41.0, MOVED, "rank0.h5"), FileEvent(58.0, READ, "rank0.h5")]
    assert kinds(judged(curve(41, 100, 60.0), again)) == ["resumed"]


def test_tasks_that_are_not_in_step_resume_where_each_was() -> None:
    ahead = Life(0, curve(1, 70, 1.0)), Life(1, curve(61, 100, 60.0))
    struck = rehearsal(curve(1, 50, 1.0), curve(41, 100, 60.0), files=SAVED, struck_at=AT + 50)
    verdict = judge(CALM, struck._replace(trails={**struck.trails, "worker:1": {"steps": ahead}}), FAULT)
    assert kinds(verdict) == ["resumed"]


def test_differences_that_grow_by_themselves_are_no_lost_state() -> None:
    """Sums of several threads differ in their last digits, and training multiplies that."""
    later = [point._replace(loss=(point.loss or 0) * (1 + 1.3 ** (point.step - 80))) for point in curve(41, 100, 60.0)]
    assert kinds(judged(later)) == ["resumed"]


@pytest.mark.parametrize(("early", "said"), [({44, 47}, []), (set(range(41, 51)), ["data"])])
def test_what_differs_by_itself_differs_more_in_the_end(early: set[int], said: list[str]) -> None:
    calm = rehearsal([point._replace(loss=(point.loss or 0) * 1.01) for point in curve(1, 100, 1.0)])
    points = curve(41, 100, 60.0)
    later = [
        each._replace(loss=(each.loss or 0) * (1.1 if each.step in early or each.step > 60 else 1)) for each in points
    ]
    assert kinds(judged(later, calm=calm)) == ["resumed", *said]


@pytest.mark.parametrize(("saved_at", "kind"), [(50.0, "not_seen"), (None, "no_checkpoint")])
def test_an_epoch_that_is_told_several_times_may_go_on_within(saved_at: float | None, kind: str) -> None:
    def within(first: int, last: int, begins: float) -> list[Point]:
        points = curve(first, last, begins)
        return [point._replace(step=1 + point.step // 40, loss=None) for point in points]

    files = [FileEvent(saved_at - 12, MOVED, "a.h5"), FileEvent(58.0, READ, "a.h5")] if saved_at else []
    calm = rehearsal(within(1, 100, 1.0), source="epochs")
    struck = rehearsal(within(1, 50, 1.0), within(38, 100, 60.0), files=files, struck_at=AT, source="epochs")
    assert kinds(judge(calm, struck, FAULT)) == [kind]


@pytest.mark.parametrize(("reached", "kind"), [(52, "exits_0"), (100, "resumed")])
def test_a_task_may_go_on_at_term(reached: int, kind: str) -> None:
    saved = [FileEvent(AT + 1, MOVED, "ckpt-51.h5")]
    exits = [("worker:1", 0, AT + 60)]
    struck = rehearsal(curve(1, reached, 1.0), files=saved, struck_at=AT, exits=exits)
    assert kinds(judge(CALM, struck, FAULT._replace(kind="term"))) == [kind]


def test_what_has_an_own_attempt_may_go_on_without_the_struck_task() -> None:
    """Workers beside parameter servers restart alone, and the chief that prints the steps goes on."""
    struck = rehearsal(curve(1, 100, 1.0), struck_at=AT)
    assert [(each.kind, each.is_fault) for each in judge(CALM, struck, FAULT).findings] == [("resumed", False)]


def test_a_training_that_ends_elsewhere_is_not_proved() -> None:
    assert kinds(judged(curve(41, 90, 60.0))) == ["resumed", "other_end"]


def test_a_task_that_is_stopped_because_others_have_ended_may_end_anywhere() -> None:
    exits = [("worker:0", 0, 200.0), ("worker:1", None, 201.0)]
    struck = rehearsal(curve(1, 50, 1.0), curve(41, 100, 60.0), files=SAVED, struck_at=AT, exits=exits)
    shorter = {"steps": (Life(0, curve(1, 50, 1.0)), Life(1, curve(41, 90, 60.0)))}
    assert kinds(judge(CALM, struck._replace(trails={**struck.trails, "worker:1": shorter}), FAULT)) == ["resumed"]


def test_a_fault_after_the_last_step_proves_nothing() -> None:
    """Then `fit` has removed what it saved."""
    struck = rehearsal(curve(1, 100, 1.0), curve(1, 100, 120.0), files=SAVED[:2], struck_at=99.9)
    verdict = judge(CALM, struck, FAULT)
    assert (verdict.verdict, kinds(verdict)) == ("unknown", ["not_struck"])


def test_a_fault_that_was_not_done_proves_nothing() -> None:
    assert judge(CALM, CALM, FAULT).verdict == "unknown"


def every(step: int, points: Sequence[Point]) -> list[Point]:
    """Return what a program tells that prints every few steps only."""
    return [point for point in points if point.step % step == 0]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a-20", "a-30", "a-36"], "resumed at step 36, as the name of a-36.h5 says; at most 13 steps lost"),
        (["a-34", "a-35", "a-36"], "resumed between step 30 and 39 from a-36.h5; at most 19 steps lost"),  # saves?
        (["a-3", "a-6", "a-9"], "resumed between step 30 and 39 from a-9.h5; at most 19 steps lost"),
    ],
)
def test_a_step_between_two_prints_is_said_as_a_range(names: list[str], sentence: str) -> None:
    calm = rehearsal(every(10, curve(1, 100, 1.0)))
    files = [FileEvent(40.0, MOVED, f"{name}.h5") for name in names] + [FileEvent(58.0, READ, f"{names[-1]}.h5")]
    later = every(10, curve(37, 100, 60.0))
    verdict = judge(calm, rehearsal(every(10, curve(1, 49, 1.0)), later, files=files, struck_at=AT), FAULT)
    assert verdict.findings[0].sentence.startswith(sentence)
    assert kinds(verdict) == ["resumed"]


@pytest.mark.parametrize(("saved_at", "kind"), [(8.0, "not_seen"), (35.0, "not_used"), (None, "no_checkpoint")])
def test_what_begins_within_the_first_print_may_have_resumed(saved_at: float | None, kind: str) -> None:
    """A checkpoint from later than that print was not used; one from before may have been."""
    calm = rehearsal(every(10, curve(1, 100, 1.0)))
    files = [FileEvent(saved_at, MOVED, "a.h5"), FileEvent(58.0, READ, "a.h5")] if saved_at else []
    struck = rehearsal(every(10, curve(1, 49, 1.0)), every(10, curve(9, 100, 60.0)), files=files, struck_at=AT)
    assert kinds(judge(calm, struck, FAULT)) == [kind]


@pytest.mark.parametrize(
    ("iterations", "said"), [(40, []), (33, ["not_joined"]), (20, []), (None, ["not_joined_unknown"])]
)
def test_steps_that_servers_had_not_done_when_they_were_saved(iterations: int | None, said: list[str]) -> None:
    saved = Saved("ckpt-40.h5", True, iterations)
    assert kinds(judged(curve(41, 100, 60.0), saved=saved, exits=[("ps:0", None, 200.0)])) == ["resumed", *said]
    assert kinds(judged(curve(41, 100, 60.0), saved=saved)) == ["resumed"]


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        (b"\x08\t\x12\x00 \x10(\x085", (0, 16)),
        (b"\x08\t\x12\x00\x18\x01 \xa8\x42(\x085", (1, 8488)),
        (b"\x08\t\x12\x00(\x085", (0, 0)),
        (b"\x08\x01\x12\x00(\x045", None),  # a float
    ],
)
def test_where_a_checkpoint_has_its_iterations(entry: bytes, place: tuple[int, int] | None) -> None:
    index = b"\x0doptimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE" + entry
    assert place_of_iterations(index) == place
    assert place_of_iterations(index + index) is None, "there are two optimizers"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([0.1, 0.5, 0.7], [0.5], []),  # the last one may have come too late to be kept
        ([0.1, 0.5, 0.7], [0.2, 0.9], ["best"]),
        ([9.0, 5.0, 4.0], [8.0], ["best"]),
        ([9.0, 5.0, 4.0], [4.0], []),
        ([], [], ["best_unknown"]),
        ([9.0, 4.0, 5.0], [8.0], ["best_unknown"]),
        ([9.0, 5.0, 4.0], [3.0], ["best_unknown"]),  # kept or not
    ],
)
def test_an_evaluator_keeps_its_best_metric(before: list[float], after: list[float], said: list[str]) -> None:
    lives = tuple(
        Life(attempt, tuple(Point(40.0 + attempt, 0.0, None, best) for best in told))
        for attempt, told in enumerate((before, after))
        if told
    )
    struck = rehearsal(curve(1, 100, 1.0), files=SAVED, struck_at=AT)
    trails = {**struck.trails, "evaluator:0": {BESTS: lives}}
    exits = [("evaluator:0", None, AT + 1), ("evaluator:0", 0, 200.0)]
    calm = CALM._replace(trails={**CALM.trails, "evaluator:0": {BESTS: lives[:1]}})
    assert kinds(judge(calm, struck._replace(trails=trails, exits=exits), FAULT)) == ["resumed", *said]
