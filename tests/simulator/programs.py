"""Models of TensorFlow programs, as measured, and of their failures."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from simulator.world import World

if TYPE_CHECKING:
    from simulator.oracle import Oracle
    from simulator.processes import Process

EPOCHS = 20
"""A training that resumes at its last epoch is done after this many, over all its attempts."""

_SHARE_OF_LEAVERS = 0.3  # of the child processes that leave the session of their task
_SHARE_OF_PARENTS = 0.3  # of the child processes that have one of their own
_IGNORES, _DIES, _SAVES, _FINISHES = "ignores", "dies", "saves", "finishes"


class Trouble(NamedTuple):
    """A failure in a task, ``after`` a number of seconds in each of these ``attempts`` (None: all)."""

    task: str
    attempts: tuple[int, ...] | None
    kind: str
    number: int
    after: float


class Script(NamedTuple):
    """How the programs of a history behave; by default as simply as possible.

    ``term``: what a trainer does on TERM. ``slow_share`` and ``hang_share``: the shares of a failure's victims
    that notice it only after about ten seconds, or never. ``epochs``: whether trainers print epochs as
    Keras does, and whether they resume at the last one or start from zero in each attempt.
    """

    duration: float = 1.0
    starting: float = 0.3
    term: str = "ignores"
    slow_share: float = 0.0
    hang_share: float = 0.0
    evaluator: str = "ends"
    saved_code: int = 143
    lines: int = 3
    troubles: tuple[Trouble, ...] = ()
    epochs: str = "silent"


class Gang:
    """The tasks of one attempt that train together."""

    def __init__(self, world: World, strategy: str, size: int, script: Script) -> None:
        self.world = world
        self.strategy = strategy
        self.script = script
        self.members: dict[str, Program] = {}
        self.has_formed = False
        self.is_saving = False
        self.is_over = False
        self._size = size
        self._ready: set[str] = set()

    def is_ready(self, program: Program) -> None:
        """A member listens on its port."""
        self._ready.add(program.process.task)
        if not self.has_formed and len(self._ready) == self._size:
            self.has_formed = True
            for member in list(self.members.values()):
                member.formed()
        elif self.has_formed:
            program.formed()

    def ended(self, program: Program) -> None:
        process = program.process
        self._ready.discard(process.task)
        if process.status == 0:
            self.is_over = True
        if self.is_over or not self.has_formed or self.is_saving:
            return
        for member in list(self.members.values()):
            if member is not program and member.needs(process):
                member.misses(is_silent=not process.host.is_up)

    def hang(self) -> None:
        for member in self.members.values():
            member.is_hanging = True

    def save(self) -> None:
        """A member was preempted: all save together and exit, if all are present."""
        living = [member for member in self.members.values() if member.process.can_act and not member.is_hanging]
        if self.is_saving or not self.has_formed or len(living) < self._size:
            return
        self.is_saving = True
        saved = self.world.within(0.3, 1.5)
        for member in living:
            member.later(saved + self.world.within(0, 0.05), member.saved)


class Stage:
    def __init__(self, world: World, oracle: Oracle, script: Script, strategy: str) -> None:
        self.world = world
        self.script = script
        self.generation = 0
        self.epoch = 0  # of the checkpoint that all restore
        self._oracle = oracle
        self.strategy = strategy
        self._gang: tuple[int, Gang] | None = None
        self.watch: Callable[[int], None] = lambda _: None
        """Gets the attempt in which a task hangs."""

    def begin(self, process: Process) -> None:
        process.program = Program(self, process)

    def gang_of(self, process: Process) -> Gang | None:
        role = process.task.partition(":")[0]
        if role == "evaluator" or ":" not in process.task or self.strategy not in _FORMING:
            return None
        if self._gang is None or self._gang[0] != self.generation:
            cluster = json.loads(process.env["TF_CONFIG"])["cluster"]
            size = sum(len(addresses) for role, addresses in cluster.items() if role != "evaluator")
            self._gang = self.generation, Gang(self.world, self.strategy, size, self.script)
        return self._gang[1]

    def is_over(self) -> bool:
        return self._gang is not None and self._gang[1].is_over

    def cause(self, process: Process, code: int | None, number: int | None) -> None:
        """A task fails, and there is no other cause."""
        self._oracle.cause("task", process.task, process.host.name, code, number)

    def raises(self, process: Process) -> None:
        """A task fails as it does in every attempt."""
        self.cause(process, 1, None)
        self._oracle.raised(process.task)

    def trains(self, process: Process, epoch: int) -> None:
        self.epoch = max(epoch, self.epoch)
        self._oracle.trained(epoch)

    def hangs(self) -> None:
        """A task hangs: the run may not end by itself."""
        self._oracle.has_hung = True
        self.watch(self.generation)

    def not_started(self, process: Process, code: int) -> None:
        """A command cannot be executed."""
        self._oracle.cause("not_started", process.task, process.host.name, code, None)


_TRACEBACK = b"""Traceback (most recent call last):
  File "/home/ann/train.py", line 41, in <module>
    train()
ValueError: the last batch is empty
"""
_FORMING = ("multi_worker_mirrored", "parameter_server")


class Program:
    def __init__(self, stage: Stage, process: Process) -> None:
        self.stage = stage
        self.process = process
        self.world = stage.world
        self.role = process.task.partition(":")[0] if ":" in process.task else "sidecar"
        self.gang = stage.gang_of(process)
        self.is_hanging = False
        self._is_server = stage.strategy == "parameter_server" and self.role in ("worker", "ps")
        self._line = 0
        self._epoch = stage.epoch if stage.script.epochs == "resumes" else 0
        self._child: Process | None = None
        if self.gang is not None:
            self.gang.members[process.task] = self
        mine = [trouble for trouble in stage.script.troubles if trouble.task == process.task]
        self._troubles = [entry for entry in mine if entry.attempts is None or process.attempt in entry.attempts]
        self.later(self.world.within(0.001, 0.02), self._execute)

    def later(self, seconds: float, call: object) -> None:
        self.world.after(seconds, lambda: call() if self.process.can_act else None)  # type: ignore[operator]

    # ---- life cycle

    def _execute(self) -> None:
        failure = next((trouble for trouble in self._troubles if trouble.kind == "no start"), None)
        if failure is not None:
            self.stage.not_started(self.process, failure.number)
            self.world.fault(f"cannot start: {failure.number}", self.process)
            self.process.report_start(b"command 2" if failure.number == 127 else b"command 8")
            self.process.die(code=failure.number)
            return
        self.process.report_start(b"")
        self._say()
        for trouble in self._troubles:
            self.later(trouble.after, lambda trouble=trouble: self._suffer(trouble))
        self.later(self.world.within(0.5, 1) * self.stage.script.starting, self._ready)

    def _ready(self) -> None:
        port = int(self.process.env["SIM_PORT"])
        if port:
            self.process.host.open_ports.add(port)
        script = self.stage.script
        self._speak()
        if self.gang is not None:
            self.gang.is_ready(self)
        elif self.role == "evaluator":
            if script.evaluator == "ends":
                self.later(self.world.within(0.5, 1.5) * script.duration, self._finish)
            elif script.evaluator == "follows":
                self._follow()
        elif self.role != "sidecar":
            self.later(self.world.within(0.5, 1) * script.duration, self._finish)

    def formed(self) -> None:
        """All members that it needs are present."""
        if not self._is_server:
            self.later(self.stage.script.duration + self.world.within(0, 0.3), self._finish)

    def _follow(self) -> None:
        if self.stage.is_over():
            self.later(0.5, self._finish)
        else:
            self.later(1.0, self._follow)

    def _finish(self) -> None:
        if not self.is_hanging:
            self._say()
            self.process.die()

    # ---- peers

    def needs(self, peer: Process) -> bool:
        """Whether it cannot continue without this peer."""
        if not self.process.is_alive:
            return False
        return not self._is_server and (self.stage.strategy == "multi_worker_mirrored" or peer.task.startswith("ps"))

    def misses(self, is_silent: bool) -> None:
        """A peer is gone; ``is_silent``: its host's kernel cannot report that."""
        script, draw = self.stage.script, self.world.random.random()
        if draw < script.hang_share:
            self.is_hanging = True
            return
        is_slow = is_silent or draw < script.hang_share + script.slow_share
        wait = self.world.within(8, 12) if is_slow else self.world.within(0.005, 0.05)
        self.later(wait, self._fail)

    def _fail(self) -> None:
        if not self.is_hanging:
            self._say()
            if self.world.chance(0.2):
                self.process.die(signal=signal.SIGABRT)
            else:
                self.process.die(code=1)

    def saved(self) -> None:
        """The checkpoint is written: exit with the code that requests a restart."""
        self._say()
        code = self.stage.script.saved_code
        if not self.process.is_told:
            self.stage.cause(self.process, code, None)
        self.process.die(code=code)

    def ended(self) -> None:
        self.process.host.open_ports.discard(int(self.process.env["SIM_PORT"]))
        if self.gang is not None:
            self.gang.ended(self)

    # ---- output

    def _say(self) -> None:
        self._line += 1
        random = self.world.random
        size = random.randrange(100) if random.random() < 0.95 else random.randrange(30000)
        about = f"{self.process.task} attempt {self.process.attempt} line {self._line} "
        self.process.say(about.encode() + b"." * size + b"\n")

    def _speak(self) -> None:
        if not self.is_hanging:
            self._say()
            self._train()
            self.later(self.world.within(0.1, 2) * self.stage.script.duration / self.stage.script.lines, self._speak)

    def _train(self) -> None:
        """Begin an epoch, and print it as Keras does."""
        has_gang = self.gang is not None and self.gang.has_formed and not self._is_server
        if has_gang and self.stage.script.epochs != "silent" and not self.process.is_told:
            self._epoch += 1
            self.stage.trains(self.process, self._epoch)
            self.process.say(f"Epoch {self._epoch}/{EPOCHS}\n".encode())
            if self.stage.script.epochs == "resumes" and self._epoch >= EPOCHS:
                self.later(0, self._finish)

    # ---- failures

    def _suffer(self, trouble: Trouble) -> None:
        number = trouble.number
        if self.process.is_told and trouble.kind != "child":
            return
        match trouble.kind:
            case "exit":
                self.world.fault(f"exit {number}" if number in (42, 143) else "exit", self.process)
                self.stage.cause(self.process, number, None)
                self.process.die(code=number)
            case "raise":
                self.world.fault("raises", self.process)
                self.stage.raises(self.process)
                self.process.say(_TRACEBACK)
                self.process.die(code=1)
            case "signal":
                self.world.fault(f"signal {number}", self.process)
                self.stage.cause(self.process, None, number)
                self.process.die(signal=number)
            case "hang":
                self.world.fault("hang", self.process)
                self.stage.hangs()
                self.is_hanging = True
                if self.gang is not None and not self._is_server:
                    self.gang.hang()
            case "preempt":
                self.world.fault("preempted", self.process)
                if self.gang is not None:
                    self.gang.save()
            case "child":
                self.world.fault("child left behind", self.process)
                self.leave_child()

    def leave_child(self) -> None:
        """Start a child process that survives the task."""
        self._child = Child(self.stage, self.process).process

    def on_signal(self, number: int) -> None:
        """A signal that can be caught arrives."""
        if number != signal.SIGTERM:
            self.later(0.01, lambda: self.process.die(signal=number))
            return
        way = self.stage.script.term
        if self.gang is None or self._is_server:
            way = _DIES if self.world.chance(0.9) else _IGNORES
        if way == _DIES:
            self.later(0.002, lambda: self.process.die(signal=number))
        elif way == _SAVES and self.gang is not None:
            self.gang.save()
        elif way == _FINISHES:
            self.later(0.002, self._finish)


class Child:
    """A child process of a task; it survives the task."""

    def __init__(self, stage: Stage, parent: Process) -> None:
        from simulator.processes import Process

        self.process = Process(parent.host, parent.env, parent)
        self.process.program = self  # type: ignore[assignment]
        self._stage = stage
        self._dies = stage.world.chance(0.5)
        self._line = 0
        kin = random.Random(f"{parent.pid} {stage.world.now}")  # apart from the world's, as most children are as before
        if kin.random() < _SHARE_OF_LEAVERS:
            self.process.session = self.process.pid  # as after setsid: signals to the task's session do not reach it
        self._speak()
        if parent.parent is None and kin.random() < _SHARE_OF_PARENTS:
            Child(stage, self.process)

    def _speak(self) -> None:
        if self.process.can_act and self._line < 5:
            self._line += 1
            self.process.say(f"a child of {self.process.task} line {self._line}\n".encode())
            self._stage.world.after(self._stage.world.within(0.05, 3), self._speak)

    def on_signal(self, number: int) -> None:
        """A signal that can be caught arrives."""
        if self._dies:
            self._stage.world.after(0.001, lambda: self.process.die(signal=number))

    def ended(self) -> None:
        """The process has exited."""
