"""`init`, through the installed command: by its options."""

import json
import os
import re
import subprocess

import pytest

from support.launch import Launch
from support.specs import tflaunch
from tflaunch.errors import EXIT_USAGE

COMMAND = ("--", "sh", "-c", "echo trained")
IMPORT = "import tensorflow as tf\n"


def run(launch: Launch, *arguments: object) -> subprocess.CompletedProcess[str]:
    return tflaunch(*map(str, arguments), home=launch.home, cwd=launch.directory)


def test_a_first_spec_can_be_checked_and_run_as_it_is_told(launch: Launch) -> None:
    made = run(launch, "init", "--worker", 2, *COMMAND)
    told = "tflaunch: wrote cluster.yaml; run it with: "
    assert (made.returncode, made.stdout, made.stderr) == (0, "", f"{told}tflaunch up cluster.yaml\n")
    assert run(launch, "check", "cluster.yaml").stdout == "cluster.yaml: ok\n"
    ended = run(launch, *made.stderr.removeprefix(told).split()[1:])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("trained") == 2


def test_the_spec_goes_to_stdout_alone(launch: Launch) -> None:
    """And can be read from there; with hosts as `run` places them."""
    made = run(launch, "init", "-", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", *COMMAND)
    assert (made.returncode, made.stderr) == (0, "")
    assert '\n  worker: ["h1", "h1", "h2"]\n' in made.stdout
    assert os.listdir(launch.directory) == []
    saved = json.loads(
        run(launch, "run", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", "--save", *COMMAND).stdout
    )
    made = run(launch, "init", "a b.json", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", *COMMAND)
    assert made.stderr.endswith("tflaunch up 'a b.json'\n")
    written = json.loads((launch.directory / "a b.json").read_text())
    assert written.pop("$schema").startswith("https://")
    assert written == saved


OF_SERVERS = "makes a ParameterServerStrategy, so the workers get a chief and a ps beside them"
OF_TFLAUNCH = f"{OF_SERVERS}, whose server tflaunch runs, as the program starts none"
WORKERS: dict[str, object] = {"cluster": {"worker": 2}}
WITH_SERVERS = {"cluster": {"chief": 1, "worker": 2, "ps": 1}}
SERVED = {**WITH_SERVERS, "roles": {"worker": {"server": True}, "ps": {"server": True}}}
ONLY_WORKERS = "train.py:2 makes a MultiWorkerMirroredStrategy, so there are workers only"
MIRRORED = "s = tf.distribute.MultiWorkerMirroredStrategy()\n"


@pytest.mark.parametrize(
    ("program", "said", "written"),
    [
        ("s = tf.distribute.ParameterServerStrategy(r)\n", f"train.py:2 {OF_TFLAUNCH}", SERVED),
        ("tf.distribute.Server(x)\ns = tf.distribute.ParameterServerStrategy(r)\n", f"train.py:3 {OF_SERVERS}",
         WITH_SERVERS),
        (MIRRORED, ONLY_WORKERS, WORKERS),
        ("s = tf.distribute.MirroredStrategy()\n", "train.py:2 makes a MirroredStrategy, so one task is enough",
         {"cluster": {"worker": 1}, "strategy": "mirrored"}),
        ("s = tf.distribute.MirroredStrategy() if x else tf.distribute.MultiWorkerMirroredStrategy()\n",
         "train.py knows MirroredStrategy and MultiWorkerMirroredStrategy; for parameter servers, give --ps 1",
         WORKERS),
        ("import horovod\n", "train.py uses horovod, so its cluster may not be that of TF_CONFIG", WORKERS),
        (f"{MIRRORED}if s.cluster_resolver.task_type == 'chief':\n    model.save('model')\n",
         "train.py:2 makes a MultiWorkerMirroredStrategy, so there are a chief, for which it asks, and workers",
         {"cluster": {"chief": 1, "worker": 2}}),
        (f"{MIRRORED}if type is None or type == 'chief' or (type == 'worker' and not index):\n    model.save('m')\n",
         ONLY_WORKERS, WORKERS),
        ("print 'x'\n", "train.py cannot be read (line 2: Missing parentheses in call to 'print'. Did you mean "
         "print(...)?), so its strategy is not known", WORKERS),
    ],
)  # fmt: skip
def test_the_spec_fits_the_program_here(launch: Launch, program: str, said: str, written: dict[str, object]) -> None:
    """Where there is no terminal, one line says what was seen, and why the spec is so; every format can be checked.

    A server that nobody runs would let worker and ps run the chief's code, and the job hang.
    """
    (launch.directory / "train.py").write_text(f"{IMPORT}{program}")
    made = run(launch, "init", "a.json")
    assert made.stderr == f"tflaunch: {said}\ntflaunch: wrote a.json; run it with: tflaunch up a.json\n"
    spec = json.loads((launch.directory / "a.json").read_text())
    assert spec == {"$schema": spec["$schema"], "name": "train", "command": ["python", "train.py"], **written}
    assert run(launch, "check", "a.json").stdout == "a.json: ok\n"
    for name in ("b.yaml", "c.toml") if "roles" in written else ():
        assert run(launch, "init", name, "--ps", 1, "--", "python", "train.py").returncode == 0
        assert run(launch, "check", name).returncode == 0


def test_a_program_that_trains_alone_is_told_how_to_train_in_all_workers(launch: Launch) -> None:
    (launch.directory / "train.py").write_text("import tensorflow as tf\nmodel.fit(x, epochs=2)\n")
    made = run(launch, "init", "a.json")
    warning, *steps, wrote = made.stderr.splitlines()
    assert warning.startswith("tflaunch: a.json: warning: train.py:2: trains without a strategy of tf.distribute, so")
    assert steps[0].startswith("tflaunch: for one model, add to train.py (documents: From a Keras script to a cluster)")
    assert [re.sub(" +#.*", "", line) for line in steps[1:]] == [
        "tflaunch:   strategy = tf.distribute.MultiWorkerMirroredStrategy()",
        "tflaunch:   with strategy.scope():",
        "tflaunch:   batch_size = 64 * strategy.num_replicas_in_sync",
        "tflaunch:   model.save(path)",
    ]
    assert (wrote, made.returncode) == ("tflaunch: wrote a.json; run it with: tflaunch up a.json", 0)
    assert run(launch, "check", "a.json").stdout.startswith("a.json: warning: train.py:2: trains without a strategy")
    alone = run(launch, "init", "b.json", "-n", 1)
    assert alone.stderr == "tflaunch: wrote b.json; run it with: tflaunch up b.json\n"


def test_options_go_before_what_the_program_seems_to_need(launch: Launch) -> None:
    (launch.directory / "train.py").write_text("import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n")
    made = run(launch, "init", "a.json", "-n", 3)
    assert "tflaunch: a.json: warning: train.py:2: MirroredStrategy has the devices of one process" in made.stderr
    assert json.loads((launch.directory / "a.json").read_text())["cluster"] == {"worker": 3}
    made = run(launch, "init", "b.json", "--workers", 2, "--ps", 1)
    assert "tflaunch: a chief is added, which drives parameter servers and workers\n" in made.stderr
    assert json.loads((launch.directory / "b.json").read_text())["cluster"] == {"chief": 1, "worker": 2, "ps": 1}


def test_a_program_that_is_missing_may_be_on_other_hosts(launch: Launch) -> None:
    refused = run(launch, "init", "--", "./train")
    message = "there is no program ./train here; give its path: tflaunch init -- python PATH"
    assert (refused.returncode, refused.stderr) == (EXIT_USAGE, f"tflaunch: {message}\n")
    assert os.listdir(launch.directory) == []
    assert run(launch, "init", "-H", "h1,h2", "--", "python", "code/train.py").returncode == 0


def test_a_file_is_replaced_only_by_force(launch: Launch) -> None:
    for path in (launch.directory / "cluster.yaml", launch.directory / "link.yaml"):
        if path.name == "link.yaml":
            path.symlink_to("nowhere.yaml")
        else:
            path.write_text("mine")
        refused = run(launch, "init", path.name, *COMMAND)
        message = f"tflaunch: {path.name} exists; replace it with --force, or give another FILE\n"
        assert (refused.returncode, refused.stderr) == (EXIT_USAGE, message)
    assert (launch.directory / "cluster.yaml").read_text() == "mine"
    assert not (launch.directory / "nowhere.yaml").exists()
    assert run(launch, "init", "--force", *COMMAND).returncode == 0
    assert run(launch, "check", "cluster.yaml").returncode == 0
    (launch.directory / "cluster.json").write_text("{}")
    assert run(launch, "init", "--force", *COMMAND).returncode == EXIT_USAGE, "which would `tflaunch up` take?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([".", *COMMAND], ". does not have the extension of a spec; use one of .json, .yaml, .yml, .toml"),
        (["dir.yaml", *COMMAND], "dir.yaml is a directory; give the path of a file in it"),
        (["-H", "a_b!", *COMMAND], "cluster.worker[0]: 'a_b!' names no host"),
        (["-H", "2", *COMMAND], "for 2 workers here, write -n 2"),
        (["--name", "a b", *COMMAND], "name: "),
        (["a.toml", "--", "echo", "{task.indx}"], "command[1]: {task.indx} is not a known placeholder"),
        (["-n", "0", *COMMAND], "-n 0 leaves nothing that trains"),
        (["-n", "-1", *COMMAND], "is not a whole number from 0 on"),
        (["a.yaml", "python", "train.py"], "a COMMAND goes after `--`"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(launch: Launch, arguments: list[str], message: str) -> None:
    (launch.directory / "dir.yaml").mkdir()
    refused = run(launch, "init", *arguments)
    assert refused.returncode == EXIT_USAGE
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert os.listdir(launch.directory) == ["dir.yaml"]
