"""The jobs of histories, and how their programs behave, drawn at random."""

import functools
import json
import random
from typing import Any

from simulator.programs import Script, Trouble
from support.specs import MACHINE, planned
from tflaunch.plan.model import Plan

_MACHINE = MACHINE._replace(local_names=frozenset({"localhost", "here"}))
_SHARE_WITH_SPARES = 0.35  # of the jobs on several hosts
_SHARE_PRIVATE = 0.1  # of those on this machine

_BOARD = {"board": {"command": "board"}}

_SHAPES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"worker": 2}, {}),
    ({"worker": 3}, {"success": "chief"}),
    ({"chief": 1, "worker": 2}, {}),
    ({"worker": 2, "evaluator": 1}, {"sidecars": _BOARD}),
    ({"worker": ["a", "a"]}, {}),
    ({"worker": ["a", "b"]}, {}),
    ({"worker": ["a", "b"]}, {"success": "chief"}),
    ({"worker": ["a:2222", "b:2222", "c:2222"]}, {}),
    ({"worker": ["here", "a"]}, {}),
    ({"chief": ["a"], "worker": ["b", "c"], "evaluator": ["c"]}, {"sidecars": _BOARD}),
    ({"worker": ["a", "b"], "evaluator": ["c"]}, {"sidecars": {"board": {"command": "board", "host": "a"}}}),
    ({"worker": ["a", "b"]}, {"sync": {}}),
    ({"chief": 1, "worker": 2, "ps": 1}, {}),
    ({"chief": ["a"], "worker": ["b", "c"], "ps": ["a"]}, {}),
    ({"chief": ["a"], "worker": ["a", "b"], "ps": ["b", "c"], "evaluator": ["a"]}, {}),
    ({"worker": 2}, {"strategy": "none"}),
    ({"worker": ["a", "b"]}, {"strategy": "none"}),
    ({"worker": ["a", "b", "c"]}, {"elastic": {"min_workers": 1, "retry": 10}}),
    ({"worker": ["a", "b", "c"]}, {"elastic": {"min_workers": 2, "retry": 20}}),
    ({"chief": ["a"], "worker": ["b", "c"], "ps": ["a"]}, {"elastic": {"min_workers": 1, "retry": 10}}),
    ({"worker": 2}, {"tensorboard": "logs/"}),
    ({"worker": ["a", "b"]}, {"tensorboard": "logs/"}),
    ({"chief": ["a"], "worker": ["a", "b"], "ps": ["b"], "evaluator": ["a"]}, {"tensorboard": "logs/"}),
    ({"worker": 2}, {"tensorboard": "logs/", "strategy": "none"}),
)


@functools.lru_cache(maxsize=4096)
def planned_spec(text: str) -> Plan:
    return planned(json.loads(text), _MACHINE)


def draw_spec(chance: random.Random) -> str:
    cluster, fields = chance.choice(_SHAPES)
    restart = {
        "max": chance.choice((0, 1, 2, 3, 3)),
        "window": chance.choice((25, 600, 1e6)),
        "backoff": chance.choice(([0, 0], [1, 4], [1, 60])),
    }
    timeouts: dict[str, Any] = {"grace": chance.choice((1, 3, 10)), "connect": chance.choice((4, 10))}
    is_far = any(isinstance(addresses, list) for addresses in cluster.values())
    if is_far or chance.random() < 0.25:
        timeouts["lease"] = chance.choice((8, 15, 30))
        timeouts["heartbeat"] = chance.choice((2, 5))
    for limit, values in (("start", (8, 20)), ("finish", (1, 5)), ("stall", (15,)), ("deadline", (20, 60))):
        if chance.random() < 0.15:
            chosen = chance.choice(values)
            if limit != "start":  # gone; drawn all the same, so that a seed gives the jobs that it gave before
                timeouts[limit] = chosen
    spec = {"cluster": cluster, "command": ["train"], **fields, "restart": restart, "timeouts": timeouts}
    lost_host = random.Random(f"lost {json.dumps(spec)}").choice((0, 0, 10, 40, 900))
    rest = _spares_or_network(spec, is_far)
    return json.dumps({**spec, **rest, "timeouts": {**timeouts, "lost_host": lost_host}})


def _spares_or_network(spec: dict[str, Any], is_far: bool) -> dict[str, Any]:
    """Return the spare hosts, or the private network of a single host, that a job has now and then.

    They depend on the rest of the spec alone, so that a seed gives the jobs that it gave before there were spares.
    """
    chance = random.Random(json.dumps(spec))
    if not is_far:
        return {"network": "private"} if chance.random() < _SHARE_PRIVATE else {}
    if chance.random() > _SHARE_WITH_SPARES:
        return {}
    spares = chance.choice((["s"], ["s"], ["s", "t"]))
    hosts = {"s": {"env": {"DATA": "/s"}}} if chance.random() < 0.3 else {}
    preload = {"preload": ["tensorflow"]} if chance.random() < 0.5 else {}
    return {"spares": spares, "hosts": hosts, **preload}


def draw_script(chance: random.Random, plan: Plan) -> Script:
    tasks = [process.task for process in plan.processes()]
    troubles = [_trouble(chance, chance.choice(tasks)) for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 3)))]
    return Script(
        duration=chance.choice((1.0, 4.0, 12.0, 25.0)),
        starting=chance.choice((0.3, 1.0, 4.0)),
        term=chance.choice(("ignores", "ignores", "dies", "saves")),
        slow_share=chance.choice((0.0, 0.3)),
        hang_share=chance.choice((0.0, 0.0, 0.2)),
        evaluator=chance.choice(("ends", "follows", "runs on")),
        saved_code=chance.choice((42, 143)),
        lines=chance.choice((3, 8)),
        troubles=tuple(troubles + _deterministic(chance, plan)),
        epochs=chance.choice(("silent", "resumes", "from zero")),
    )


def _deterministic(chance: random.Random, plan: Plan) -> list[Trouble]:
    """Now and then a program raises the same exception in every attempt."""
    if chance.random() > 0.15:
        return []
    task = chance.choice([task.task for task in plan.tasks])
    return [Trouble(task, None, "raise", 1, chance.choice((1.0, 3.0, 8.0)) * chance.uniform(1, 2))]


def _trouble(chance: random.Random, task: str) -> Trouble:
    attempts: tuple[int, ...] | None = chance.choice(((0,), (0,), (0, 1), (1,), (0, 1, 2, 3)))
    if chance.random() < 0.1:
        attempts = None
    kind, number = chance.choice(
        (
            ("exit", chance.choice((1, 7, 3, 124, 125))),
            ("exit", chance.choice((42, 143))),
            ("signal", 9),
            ("signal", chance.choice((9, 11, 15))),
            ("preempt", 0),
            ("hang", 0),
            ("no start", chance.choice((126, 127))),
            ("child", 0),
        )
    )
    return Trouble(task, attempts, kind, number, chance.choice((0.05, 1.0, 3.0, 8.0)) * chance.uniform(0.2, 2))
