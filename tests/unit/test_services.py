"""What features do in an agent: their services are made when they are needed."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from support.played_agent import Answers, agent_parts
from tflaunch_worker import schema, spawn
from tflaunch_worker.agent.services import Service, Services
from tflaunch_worker.feature import RAISE_FAULTS, Feature, features, load, name_of_raiser
from tflaunch_worker.feature import start_guard as start_guard_by_feature


class Counter(Service):
    CALLS: ClassVar = {"count": {"by": schema.integer()}}
    made: ClassVar[list[Counter]] = []

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.made.append(self)
        self.counted = 0

    def count(self, call: Any, message: dict[str, Any]) -> None:
        self.counted += message["by"]
        call.answer(counted=self.counted)

    def look_at_hang(self, task: Any, looked: Any) -> None:
        looked()


class Watcher(Service):
    noted: ClassVar[list[object]] = []

    def begin_task(self, task: Any, command: Any) -> None:
        self.noted.append(("begin", task))

    def stop_task(self, name: str) -> None:
        self.noted.append(("stop", name))

    def end_task(self, name: str) -> None:
        self.noted.append(("end", name))

    def leave(self) -> None:
        self.noted.append("leave")

    def explain_kill(self, pid: int) -> str:
        return "it was large"

    def look_at_hang(self, task: Any, looked: Any) -> None:
        self.noted.append(looked)


class Starter(Service):
    def outlive_run(self) -> list[int]:
        return [42]


def start_guard(recipe: str, python: Any, directory: str, title: str, link: Any) -> int | None:
    return 7 if recipe == "known" else None


FEATURES = {
    "counter": Feature(f"{__name__}:Counter", calls=("count",)),
    "watcher": Feature(f"{__name__}:Watcher", moments=("begin_task",)),
    "starter": Feature(f"{__name__}:Starter", moments=("start_task",), guards=f"{__name__}:start_guard"),
}


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Services:
    Counter.made.clear()
    Watcher.noted.clear()
    monkeypatch.setattr("tflaunch_worker.agent.services.features", lambda: FEATURES)
    return Services(agent_parts(), Answers().calls)


def test_a_service_is_made_for_its_first_call(services: Services) -> None:
    """Its feature says how fields are checked, with the call's number; a kind that no feature serves is unknown."""
    assert Counter.made == []
    assert sorted(services.checks("count")) == ["by", "call"]
    with pytest.raises(ValueError, match="unknown"):
        services.checks("examine")
    answers = Answers()
    for expected in (2, 4):
        assert answers.ask(services.serve, kind="count", by=2)[0] == {"counted": expected}
    assert len(Counter.made) == 1


def test_a_service_takes_part_from_the_moment_that_its_feature_names(services: Services) -> None:
    task: Any = "worker:0"
    services.at("stop_task", "worker:0")
    assert services.at("explain_kill", 7) == []
    services.at("begin_task", task, spawn.Command([], {}, "/"))
    services.at("stop_task", "worker:0")
    services.at("end_task", "worker:0")
    services.at("leave")
    assert Watcher.noted == [("begin", task), ("stop", "worker:0"), ("end", "worker:0"), "leave"]
    assert services.at("explain_kill", 7) == ["it was large"]
    assert Counter.made == []


def test_a_task_that_hangs_is_ended_when_all_have_looked_at_it(services: Services) -> None:
    """At once if there is nobody."""
    task: Any = "worker:0"
    ended: list[str] = []
    services.look_at_hang(task, lambda: ended.append("at once"))
    assert ended == ["at once"]
    services.at("begin_task", task, spawn.Command([], {}, "/"))
    Answers().ask(services.serve, kind="count", by=2)
    Watcher.noted.clear()
    services.look_at_hang(task, lambda: ended.append("later"))
    assert ended == ["at once"]
    (looked,) = Watcher.noted
    assert callable(looked)
    looked()
    assert ended == ["at once", "later"]


def test_a_task_that_names_modules_may_be_started_by_a_feature(services: Services) -> None:
    """Others are executed as they are; what has started none leaves nothing for later runs."""
    refused: list[bool] = []
    for modules in ((), ("json",)):
        command = spawn.Command(["python"], {}, "/", modules)
        assert services.start_task(command, print, lambda: refused.append(True)) is None
        assert services.at("outlive_run") == [[42]] * bool(modules)
    assert refused == [True, True]


class Failing(Service):
    """Fails at a call that it serves unless the answer may wait, at moments, and at starts."""

    CALLS: ClassVar = {"fail": {}}

    def fail(self, call: Any, message: dict[str, Any]) -> None:
        if not message["body"]:
            raise IndexError("no such task")

    def begin_task(self, task: Any, command: Any) -> None:
        raise IndexError("no such task")

    def start_task(self, command: Any, started: Any, refused: Any) -> None:
        raise IndexError("no such task")


@pytest.mark.parametrize("at", ["call", "checks", "moment", "start", "callback"])
def test_a_service_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Its calls are refused from then on, that which waits, too; a task is executed; others serve on."""
    monkeypatch.delenv(RAISE_FAULTS)
    failing = Feature(f"{__name__}:Failing", calls=("fail", "forgotten"), moments=("begin_task", "start_task"))
    monkeypatch.setattr("tflaunch_worker.agent.services.features", lambda: {"failing": failing, **FEATURES})
    answers, executed, command = Answers(), list[bool](), spawn.Command(["python"], {}, "/", ("json",))
    services = Services(agent_parts(), answers.calls)
    answers.begin(services.watch_faults, kind="watch_faults")
    waiting = answers.begin(services.serve, b"wait", kind="fail")
    match at:
        case "call":
            answers.begin(services.serve, kind="fail")
        case "checks":  # it declares a call whose fields it does not
            with pytest.raises(ValueError, match="the feature failing has failed here: KeyError: 'forgotten'"):
                services.checks("forgotten")
        case "moment":
            services.at("begin_task", None, command)
        case "start":
            assert services.start_task(command, print, lambda: executed.append(True)) is None
        case "callback":
            with pytest.raises(IndexError) as caught:
                Failing(agent_parts()).begin_task(None, None)
            monkeypatch.setattr("tflaunch_worker.agent.services.name_of_raiser", lambda *_: "failing")
            assert services.excuse(caught.value)
    assert executed == [True] * (at == "start")
    told = [message for message, _ in answers.heard]
    why = "KeyError: 'forgotten' (services.py" if at == "checks" else "IndexError: no such task (test_services.py"
    refused = {message["call"]: message["refused"] for message in told if "refused" in message}
    assert refused[waiting].startswith(why)
    assert [message["feature"] for message in told if message["kind"] == "told"] == ["failing"]
    with pytest.raises(ValueError, match=f"the feature failing has failed here: {why[:10]}"):
        services.checks("fail")
    assert answers.ask(services.serve, kind="count", by=2)[0] == {"counted": 2}


def test_a_guard_is_started_by_the_feature_that_has_what_the_recipe_asks_for(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feature without another way has a task executed; an error of no feature is not excused."""
    refused: list[bool] = []
    base: Any = Service(agent_parts())
    assert base.start_task(spawn.Command([], {}, "/"), None, lambda: refused.append(True)) is None
    assert refused == [True]
    monkeypatch.setattr("tflaunch_worker.feature.features", lambda: FEATURES)
    assert [start_guard_by_feature(recipe, [], "/", "", base) for recipe in ("known", "other")] == [7, None]
    assert not services.excuse(IndexError())


@pytest.mark.parametrize(
    ("raisers", "feature"),
    [
        ([{"__name__": "a.shared"}, {"__name__": "a.code.user_code"}, {"__name__": "a.exec.command"}], "code"),
        ([{"__name__": "a.shared"}], ""),
        ([{"__name__": "a.code", "__path__": []}], "code"),
        ([{"__name__": "other.watcher"}], "tally"),
    ],
)
def test_an_error_is_that_of_the_outermost_feature(raisers: list[dict[str, Any]], feature: str) -> None:
    """Not of a module that several features share."""

    def call(first: dict[str, Any], *rest: dict[str, Any]) -> None:
        exec("call(*rest)" if rest else "raise IndexError", {**first, "call": call, "rest": rest})

    with pytest.raises(IndexError) as raised:
        call(*raisers)
    assert name_of_raiser(raised.value, {"a": "", "other": "tally"}) == feature


def test_what_features_declare_is_there_and_no_two_serve_the_same_calls() -> None:
    """Each serves the calls that it checks, and takes part in moments that there are."""
    for feature in features().values():
        assert not feature.network or callable(load(feature.network))
        service = load(feature.service) if feature.service else Service
        assert sorted(service.CALLS) == sorted(feature.calls)
        assert all(callable(getattr(service, kind)) for kind in feature.calls)
        assert all(callable(getattr(Service, moment)) for moment in feature.moments)
        assert not feature.guards or callable(load(feature.guards))
    kinds = [kind for feature in features().values() for kind in feature.calls]
    assert len(kinds) == len(set(kinds))
