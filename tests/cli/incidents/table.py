"""30 incidents: how each comes about, what `ps --json` says first, and what a right answer consists of."""

from typing import NamedTuple

STEPS = """
import json, os, signal, sys, time

def report(step, **metrics):
    with open(os.environ["TFLAUNCH_PROGRESS"], "w") as progress:
        progress.write(json.dumps({"step": step, "metrics": metrics}) + "\\n")

task = os.environ["TFLAUNCH_TASK"]
for step in range(1, 9999):
    report(step, loss=float("nan") if "nan" in sys.argv else 1 / step)
    if step == 3 and task in sys.argv:
        if "stop" in sys.argv:
            os.kill(os.getpid(), signal.SIGSTOP)
        if "fail" in sys.argv:
            sys.exit(7)
        if "wait" in sys.argv:
            time.sleep(9999)
        if "break" in sys.argv:
            breakpoint()
    time.sleep(0.1)
"""
"""A program that reports steps; what its arguments name happens to a task after its third."""

DOCKER = """#!/bin/sh
test ! -e {here}/down || exit 1
shift 3
echo $$ >{here}/pid
exec "$@"
"""
"""A container that is a process on this machine, until a file says that it is down."""

RUN = "tflaunch run --set restart.max=0 --name job"
ALONE = f"{RUN} -n 2 --set strategy=none"
LEASED = "tflaunch run -n 2 --name job --set strategy=none --set timeouts.lease={} python steps.py"
LIVE = f"{ALONE} -d python steps.py"
UNTIL = "until tflaunch ps --json | grep -q '{}'; do :; done"
TRAINS = UNTIL.format('"trains": "yes"')
HANGS = UNTIL.format('"phase": "hanging"')
HANG = "TFLAUNCH_STALL_SCALE=600 tflaunch run --set timeouts.stall=0 --set strategy=none -d -n 2 --name job"
RAISE = f'{ALONE} python -c "{{}}"'
WHY = ("explain", "logs")


class Incident(NamedTuple):
    """``script`` prepares it; ``right`` are the verbs of a right answer, and ``says`` what it must have come to know.

    ``phase`` and ``trains`` are of the first answer, None where no run can be named. ``lives``: how many runs live
    then, and must not end. ``flaw``: why the answer is wrong, "" if it is right. ``asked``: the run, if it is named.
    """

    name: str
    script: str
    phase: str | None
    trains: str | None
    right: tuple[str, ...]
    says: str
    lives: int = 0
    flaw: str = ""
    asked: str = ""


INCIDENTS = (
    # ---- runs that have failed
    Incident("a failed import", RAISE.format("import nothing"), "ended", "no", WHY, "No module named 'nothing'"),
    Incident(
        "a package that the tasks' Python lacks",
        f"echo 'import absent_package' >helper.py; {ALONE} python -c 'import helper'",
        *("ended", "no", WHY, "No module named 'absent_package'"),
    ),
    Incident(
        "a full disk",
        RAISE.format("open('/dev/full', 'w').write('x' * 99999)"),
        *("ended", "no", WHY, "No space left on device"),
    ),
    Incident(
        "a port in use",
        'python -c \'import socket, time; s = socket.create_server(("", 0)); print(s.getsockname()[1], flush=True);'
        " time.sleep(9999)' >port & until test -s port; do :; done; "
        'echo "{\\"name\\": \\"job\\", \\"cluster\\": {\\"worker\\": [\\"localhost:$(cat port)\\"]},'
        ' \\"command\\": [\\"true\\"]}" >job.json; tflaunch up job.json; kill $!',
        *("ended", "no", WHY[:1], "is in use by pid"),
    ),
    Incident("no memory", RAISE.format("bytearray(10 ** 15)"), "ended", "no", WHY, "MemoryError"),
    Incident(
        "wrong shapes",
        RAISE.format("raise ValueError('Shapes (None, 4) and (None, 5) are incompatible')"),
        *("ended", "no", WHY, "(None, 4) and (None, 5)"),
    ),
    Incident("a missing program", f"{ALONE} python trian.py", "ended", "no", WHY, "trian.py"),
    Incident("a wrong data path", RAISE.format("open('/data/shard-7')"), "ended", "no", WHY, "/data/shard-7"),
    Incident(
        "no checkpoint",
        RAISE.format("raise FileNotFoundError('no checkpoint in state')"),
        *("ended", "no", WHY, "no checkpoint in state"),
    ),
    Incident("a signal", f"{ALONE} sh -c 'kill -SEGV $$'", "ended", "no", WHY, "SIGSEGV"),
    Incident(
        "a budget that is used up",
        'tflaunch run --set strategy=none --set \'restart={"max": 1, "backoff": [0, 0]}\' -n 2 --name job'
        " python steps.py worker:1 fail",
        *("ended", "no", WHY, "exited with code 7"),
    ),
    Incident("a time limit", f"{ALONE} --timeout 1s sleep 9999", "ended", "no", WHY[:1], "deadline"),
    Incident(
        "a host that cannot be reached",
        f'{RUN} -n 1 --set \'hosts={{"h1": {{"ssh": "127.0.0.1:1"}}}}\' -H h1 true',
        *("ended", "no", WHY[:1], "h1"),
    ),
    Incident(
        "a parameter server that fails",
        f"{RUN} -n 1 --ps 1 --chief sh -c 'test $TFLAUNCH_TASK != ps:0 || exit 9; sleep 9999'",
        *("ended", "no", WHY, "ps:0 exited with code 9"),
    ),
    # ---- runs that live, and do not train
    Incident(
        "a hang", f"{HANG} python steps.py worker:0 worker:1 wait; {HANGS}", "hanging", "no", ("stacks",), "sleep", 1
    ),
    Incident(
        "a stopped task",
        f"{HANG} sh -c 'test $TFLAUNCH_TASK = worker:0 && kill -STOP $$; sleep 9999'; {HANGS}",
        *("hanging", "no", ("stacks",), "kill -s CONT worker:0", 1),
    ),
    Incident(
        "a breakpoint",
        f"{ALONE} -d python steps.py worker:0 break; until tflaunch ps --json | grep -q 'waits at a b'; do :; done",
        *("training", "no", ("debug",), "steps.py, line 20", 1),
    ),
    Incident(
        "a lost host",
        'tflaunch run -d -n 2 --set strategy=none --name job --set \'hosts={"h1": {"docker": "h1"}}\' -H h1 sleep 9999;'
        ' touch down; kill -9 $(cat pid); until tflaunch ps --json | grep -q \'"phase": "waiting\'; do :; done',
        *("waiting for hosts", "unknown", (), "h1", 1),
    ),
    Incident(
        "a program that does not use its cluster",
        f"{RUN} -d -n 2 python steps.py; until tflaunch ps --json | grep -q 'by itself'; do :; done",
        *("training", "unknown", ("stacks",), "each trains by itself", 1),
    ),
    Incident(
        "a run that waits for its turn",
        'echo \'{"cluster": {"worker": 1}, "command": ["sleep", "9999"], "strategy": "none"}\' >job.json;'
        " for name in first second; do tflaunch up -d --queue --name $name job.json; done",
        *("queued", "no", ("queue",), "first", 2),
        asked="second",
    ),
    # ---- runs whose supervisor was killed
    Incident(
        "a killed supervisor",
        f"{LEASED.format(30)} & {TRAINS}; kill -9 $!; wait",
        *("ending", "unknown", ("up",), "was killed", 1),
    ),
    Incident(
        "a run of last night that lost its supervisor",
        f"{LEASED.format(1)} & {TRAINS}; kill -9 $!; wait; {UNTIL.format('have ended')}",
        *("ended", "no", ("up",), "and its tasks have ended", 1),
    ),
    # ---- nothing to do
    Incident("a live run that trains", f"{LIVE}; {TRAINS}", "training", "yes", (), "reported", 1),
    Incident(
        "a loss that is not a number",
        f"{LIVE} nan; {TRAINS}",
        *("training", "yes", (), "loss is not a number", 1),
        flaw="a report keeps only metrics that are numbers, so that nobody hears of it",
    ),
    Incident(
        "an evaluator that fails beside a training",
        f'{RUN} -d -n 1 --evaluator --set strategy=none --set \'roles.evaluator={{"command": ["false"]}}\''
        f" python steps.py; {TRAINS}",
        *("training", "yes", (), "reported", 1),
    ),
    Incident("a run of last night that is done", f"{ALONE} true", "ended", "no", (), "done: 2 tasks"),
    Incident(
        "a failed run, and another of its name that trains",
        f"{ALONE} false; {LIVE}; {TRAINS}",
        *("training", "yes", (), "reported", 1),
    ),
    Incident("two live runs of one name", f"{LIVE}; {LIVE}", None, None, (), "several runs are live", 2),
    Incident("no run at all", "true", None, None, (), "there are no runs"),
    Incident(
        "a typo in a spec",
        'echo \'{"clustr": {"worker": 2}, "command": ["true"]}\' >job.json; tflaunch up job.json',
        *(None, None, ("check",), "did you mean 'cluster'"),
        flaw="there is no run yet: `tflaunch up` has said it, and only `tflaunch check` says it again",
    ),
)
