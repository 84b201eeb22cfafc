"""`init`, through the installed command: by options and by questions."""

from __future__ import annotations

import json
import os
import re

import pytest

from support.launch import Launch
from support.terminals import Terminal
from tflaunch.errors import EXIT_USAGE

pytestmark = pytest.mark.cli

COMMAND = ("--", "sh", "-c", "echo trained")


def test_a_first_spec_can_be_checked_and_run_as_it_is_told(launch: Launch) -> None:
    """One line says what to type next, and that works."""
    made = launch.run("init", "--worker", 2, *COMMAND)
    told = "tflaunch: wrote cluster.yaml; run it with: "
    assert (made.returncode, made.stdout, made.stderr) == (0, "", f"{told}tflaunch up cluster.yaml\n")
    assert launch.run("check", "cluster.yaml").stdout == "cluster.yaml: ok\n"
    ended = launch.run(*made.stderr.removeprefix(told).split()[1:])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("trained") == 2


def test_the_spec_goes_to_stdout_alone(launch: Launch) -> None:
    """And can be read from there; with hosts as `run` places them."""
    made = launch.run("init", "-", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", *COMMAND)
    assert (made.returncode, made.stderr) == (0, "")
    assert '\n  worker: ["h1", "h1", "h2"]\n' in made.stdout
    assert os.listdir(launch.directory) == []
    saved = json.loads(
        launch.run("run", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", "--save", *COMMAND).stdout
    )
    made = launch.run("init", "a b.json", "-H", "h1,h2", "-n", 3, "--ps", 1, "--chief", "--evaluator", *COMMAND)
    assert made.stderr.endswith("tflaunch up 'a b.json'\n")
    written = json.loads((launch.directory / "a b.json").read_text())
    assert written.pop("$schema").startswith("https://")
    assert written == saved


@pytest.mark.parametrize(
    ("program", "is_needed"),
    [("import tensorflow as tf\n", True), ("tf.distribute.Server(spec).join()\n", False), ("print 2", False)],
)
def test_servers_are_for_programs_that_start_none(launch: Launch, program: str, is_needed: bool) -> None:
    """Without one, worker and ps would run the chief's code, and the job would hang; every format can be checked."""
    (launch.directory / "train.py").write_text(program)
    for name in ("a.yaml", "b.toml", "c.json"):
        assert launch.run("init", name, "--ps", 1, "--", "python", "train.py").returncode == 0
        assert launch.run("check", name).returncode == 0
        tasks = json.loads(launch.run("plan", name, "--json").stdout)["tasks"]
        served = {task["task"].partition(":")[0] for task in tasks if task["argv"][-1].endswith("server.py")}
        assert served == ({"worker", "ps"} if is_needed else set())


SERVERS = {"worker": {"server": True}, "ps": {"server": True}}


@pytest.mark.parametrize(
    ("program", "said", "written"),
    [
        (
            "s = tf.distribute.ParameterServerStrategy(r)\n",
            "train.py:2 makes a ParameterServerStrategy, so the workers get a chief and a ps beside them, whose server "
            "tflaunch runs, as the program starts none",
            {"cluster": {"chief": 1, "worker": 2, "ps": 1}, "roles": SERVERS},
        ),
        (
            "tf.distribute.Server(x)\ns = tf.distribute.ParameterServerStrategy(r)\n",
            "train.py:3 makes a ParameterServerStrategy, so the workers get a chief and a ps beside them",
            {"cluster": {"chief": 1, "worker": 2, "ps": 1}},
        ),
        (
            "s = tf.distribute.MultiWorkerMirroredStrategy()\n",
            "train.py:2 makes a MultiWorkerMirroredStrategy, so there are workers only",
            {"cluster": {"worker": 2}},
        ),
        (
            "s = tf.distribute.MirroredStrategy()\n",
            "train.py:2 makes a MirroredStrategy, so one task is enough",
            {"cluster": {"worker": 1}, "strategy": "mirrored"},
        ),
        (
            "s = tf.distribute.MirroredStrategy() if x else tf.distribute.MultiWorkerMirroredStrategy()\n",
            "train.py knows MirroredStrategy and MultiWorkerMirroredStrategy; for parameter servers, give --ps 1",
            {"cluster": {"worker": 2}},
        ),
        (
            "import horovod\n",
            "train.py uses horovod, so its cluster may not be that of TF_CONFIG",
            {"cluster": {"worker": 2}},
        ),
        (
            "tf.estimator.train_and_evaluate(x)\n",
            "train.py uses tf.estimator, which TensorFlow 2.16 has removed",
            {"cluster": {"worker": 2}},
        ),
        (
            "r = tf.distribute.cluster_resolver.SimpleClusterResolver(json.loads(os.environ['TF_CONFIG'])['cluster'])\n"
            "s = tf.distribute.ParameterServerStrategy(r)\n",
            "train.py:3 makes a ParameterServerStrategy, so the workers get a chief and a ps beside them, whose server "
            "tflaunch runs, as the program starts none",
            {"cluster": {"chief": 1, "worker": 2, "ps": 1}, "roles": SERVERS},
        ),
        (
            "s = tf.distribute.MultiWorkerMirroredStrategy()\n"
            "if s.cluster_resolver.task_type == 'chief':\n    model.save('model')\n",
            "train.py:2 makes a MultiWorkerMirroredStrategy, so there are a chief, for which it asks, and workers",
            {"cluster": {"chief": 1, "worker": 2}},
        ),
        (
            "s = tf.distribute.MultiWorkerMirroredStrategy()\n"
            "if type is None or type == 'chief' or (type == 'worker' and not index):\n    model.save('model')\n",
            "train.py:2 makes a MultiWorkerMirroredStrategy, so there are workers only",
            {"cluster": {"worker": 2}},
        ),
        (
            "parser.add_argument('--data-dir')\nparser.add_argument('--logs')\nfrom ours import strategy\n",
            "train.py takes --data-dir, --logs; the command may have placeholders, such as --logs out/{run}",
            {"cluster": {"worker": 2}},
        ),
        (
            "print 'x'\n",
            "train.py cannot be read (line 2: Missing parentheses in call to 'print'. Did you mean print(...)?), so "
            "its strategy is not known",
            {"cluster": {"worker": 2}},
        ),
    ],
)
def test_the_spec_fits_the_program_that_is_here(
    launch: Launch, program: str, said: str, written: dict[str, object]
) -> None:
    """Nothing is asked where there is no terminal; one line says what was seen, and why the spec is so."""
    (launch.directory / "train.py").write_text(f"import tensorflow as tf\n{program}")
    made = launch.run("init", "a.json")
    assert made.stderr == f"tflaunch: {said}\ntflaunch: wrote a.json; run it with: tflaunch up a.json\n"
    spec = json.loads((launch.directory / "a.json").read_text())
    assert spec == {"$schema": spec["$schema"], "name": "train", "command": ["python", "train.py"], **written}
    assert launch.run("check", "a.json").stdout == "a.json: ok\n"


def test_a_program_that_trains_alone_is_told_how_to_train_in_all_workers(launch: Launch) -> None:
    """After the warning, which `check` repeats; where it is one task or does not train, nothing is missing."""
    (launch.directory / "train.py").write_text("import tensorflow as tf\nmodel.fit(x, epochs=2)\n")
    made = launch.run("init", "a.json")
    warning, *steps, wrote = made.stderr.splitlines()
    assert warning.startswith("tflaunch: a.json: warning: train.py:2: trains without a strategy of tf.distribute, so")
    assert steps[0].startswith(
        "tflaunch: for one model, add to train.py (documents: From a Keras script to a cluster):"
    )
    assert [re.sub(" +#.*", "", line) for line in steps[1:]] == [
        "tflaunch:   strategy = tf.distribute.MultiWorkerMirroredStrategy()",
        "tflaunch:   with strategy.scope():",
        "tflaunch:   batch_size = 64 * strategy.num_replicas_in_sync",
        "tflaunch:   model.save(path)",
    ]
    assert (wrote, made.returncode) == ("tflaunch: wrote a.json; run it with: tflaunch up a.json", 0)
    assert launch.run("check", "a.json").stdout.startswith("a.json: warning: train.py:2: trains without a strategy")
    alone = launch.run("init", "b.json", "-n", 1)
    assert alone.stderr == "tflaunch: wrote b.json; run it with: tflaunch up b.json\n"


def test_options_go_before_what_the_program_seems_to_need(launch: Launch) -> None:
    """And `check` says what will not work."""
    (launch.directory / "train.py").write_text("import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n")
    made = launch.run("init", "a.json", "-n", 3)
    assert "tflaunch: a.json: warning: train.py:2: MirroredStrategy has the devices of one process" in made.stderr
    assert json.loads((launch.directory / "a.json").read_text())["cluster"] == {"worker": 3}
    made = launch.run("init", "b.json", "--workers", 2, "--ps", 1)
    assert "tflaunch: a chief is added, which drives parameter servers and workers\n" in made.stderr
    assert json.loads((launch.directory / "b.json").read_text())["cluster"] == {"chief": 1, "worker": 2, "ps": 1}


def test_a_program_that_is_missing_is_missed_where_it_would_run(launch: Launch) -> None:
    """On other hosts it may be there."""
    for command, name in (
        (("python", "-u", "code/train.py", "--epochs", 2), "code/train.py"),
        (("./train",), "./train"),
    ):
        refused = launch.run("init", "--", *command)
        message = f"there is no program {name} here; give its path: tflaunch init -- python PATH"
        assert (refused.returncode, refused.stderr) == (EXIT_USAGE, f"tflaunch: {message}\n")
    assert os.listdir(launch.directory) == []
    assert launch.run("init", "-H", "h1,h2", "--", "python", "code/train.py").returncode == 0


def test_a_second_usual_spec_is_not_written_unasked(launch: Launch) -> None:
    """With two of them, `tflaunch up` would not know which is meant."""
    (launch.directory / "cluster.json").write_text("{}")
    for options in ([], ["--force"]):
        refused = launch.run("init", *options, *COMMAND)
        message = "cluster.json is here already; change it, or name the FILE of another spec"
        assert (refused.returncode, refused.stderr) == (EXIT_USAGE, f"tflaunch: {message}\n")
    assert os.listdir(launch.directory) == ["cluster.json"]
    assert launch.run("init", "cluster.yaml", *COMMAND).returncode == 0


def test_a_number_is_no_host(launch: Launch) -> None:
    """`-H 2` means `-n 2`."""
    refused = launch.run("init", "-H", "2", *COMMAND)
    assert refused.returncode == 2
    assert "for 2 workers here, write -n 2" in refused.stderr


def test_a_file_is_replaced_only_by_force(launch: Launch) -> None:
    """Also one that a link only names."""
    for path in (launch.directory / "cluster.yaml", launch.directory / "link.yaml"):
        if path.name == "link.yaml":
            path.symlink_to("nowhere.yaml")
        else:
            path.write_text("mine")
        refused = launch.run("init", path.name, *COMMAND)
        message = f"tflaunch: {path.name} exists; replace it with --force, or give another FILE\n"
        assert (refused.returncode, refused.stderr) == (EXIT_USAGE, message)
    assert (launch.directory / "cluster.yaml").read_text() == "mine"
    assert not (launch.directory / "nowhere.yaml").exists()
    assert launch.run("init", "--force", *COMMAND).returncode == 0
    assert launch.run("check", "cluster.yaml").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none/a.yaml", *COMMAND], "there is no directory none; create it, or give another FILE"),
        ([".", *COMMAND], ". does not have the extension of a spec; use one of .json, .yaml, .yml, .toml"),
        (["dir.yaml", *COMMAND], "dir.yaml is a directory; give the path of a file in it"),
        (["/proc/a.yaml", *COMMAND], "/proc/a.yaml cannot be written: No such file or directory; give another FILE"),
        (["a.txt", *COMMAND], "a.txt does not have the extension of a spec"),
        (["-H", "a_b!", *COMMAND], "cluster.worker[0]: 'a_b!' names no host"),
        (["--name", "a b", *COMMAND], "name: "),
        (["a.toml", "--", "echo", "{task.indx}"], "command[1]: {task.indx} is not a known placeholder"),
        (["-n", "0", *COMMAND], "-n 0 leaves nothing that trains"),
        (["-n", "-1", *COMMAND], "is not a whole number from 0 on"),
        (["-n", "2"], "Missing COMMAND: what the tasks run, after `--`: tflaunch init -- python train.py"),
        ([], "Missing COMMAND"),
        (["a.yaml", "python", "train.py"], "a COMMAND goes after `--`"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(launch: Launch, arguments: list[str], message: str) -> None:
    """And nothing is written."""
    (launch.directory / "dir.yaml").mkdir()
    refused = launch.run("init", *arguments)
    assert refused.returncode == EXIT_USAGE
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert os.listdir(launch.directory) == ["dir.yaml"]


def test_a_command_for_a_shell_is_warned_about(launch: Launch) -> None:
    """As `check` does; the spec is written."""
    (launch.directory / "train.py").touch()
    made = launch.run("init", "--", "python", "train.py", ">", "log")
    assert made.returncode == 0
    assert "tflaunch: cluster.yaml: warning: command: '>' is shell syntax" in made.stderr


def test_without_options_it_asks(launch: Launch) -> None:
    """What cannot be used is asked again; the defaults need only Enter."""
    (launch.directory / "fit.py").touch()
    terminal = Terminal(launch, "exec tflaunch init")
    terminal.answer(b"How many workers? [2] ", b"many\n")
    terminal.answer(b"How many workers? [2] ", b"3\n")
    terminal.answer(b"On which hosts, such as h1,h2? [this machine] ", b"2\n")
    terminal.answer(b"Error: 2 is a number, not a host", b"h 1\n")
    terminal.answer(b"On which hosts", b"h1:2\n")
    terminal.answer(b"is more workers than the 2 that -H has room for", b"h1:2,h2\n")
    terminal.answer(b"Which command trains? [python fit.py] ", b"python 'fit\n")
    terminal.answer(b"Which command trains? ", b"\n")
    terminal.answer(b"How many parameter servers? [0] ", b"1\n")
    said, code = terminal.read_to_end()
    assert code == 0
    assert "a chief is added" in said
    text = (launch.directory / "cluster.yaml").read_text()
    assert '\n  chief: ["h1"]\n  worker: ["h1", "h1", "h2"]\n  ps: ["h1"]\n' in text
    assert '\ncommand: ["python", "fit.py"]\n' in text
    assert launch.run("check", "cluster.yaml").stdout == "cluster.yaml: ok\n"


def test_only_defaults_are_two_workers_here(launch: Launch) -> None:
    """The spec on stdout has no question in it; a strategy without parameter servers leaves out one question."""
    program = "import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\n"
    (launch.directory / "train.py").write_text(program)
    terminal = Terminal(launch, "exec tflaunch init - > out.yaml")
    terminal.answer(b"[2] ", b"\n")
    terminal.answer(b"[this machine] ", b"\n")
    terminal.answer(b"[python train.py] ", b"\n")
    said, code = terminal.read_to_end()
    assert (said.strip(), code) == (
        "tflaunch: train.py:2 makes a MultiWorkerMirroredStrategy, so there are workers only",
        0,
    )
    assert "\ncluster:\n  worker: 2\n" in (launch.directory / "out.yaml").read_text()
    assert launch.run("check", "out.yaml").returncode == 0


def test_a_program_with_parameter_servers_gets_them(launch: Launch) -> None:
    """By default one; a program that is missing is asked for again, and none is proposed out of several."""
    program = "import tensorflow as tf\ns = tf.distribute.ParameterServerStrategy(r)\n"
    for name in ("a.py", "b.py"):
        (launch.directory / name).write_text(program)
    terminal = Terminal(launch, "exec tflaunch init")
    terminal.answer(b"[2] ", b"\n")
    terminal.answer(b"[this machine] ", b"\n")
    terminal.answer(b"Which command trains, such as python a.py? ", b"python c.py\n")
    terminal.answer(b"Error: there is no program c.py here\r\n", b"python b.py\n")
    terminal.answer(b"How many parameter servers? [1] ", b"2\n")
    said, code = terminal.read_to_end()
    assert code == 0
    assert "a chief is added" not in said
    text = (launch.directory / "cluster.yaml").read_text()
    assert "\n  chief: 1\n  worker: 2\n  ps: 2\n" in text
    assert "\nroles:\n  worker: {server: true}\n" in text


@pytest.mark.parametrize("answers", range(4))
@pytest.mark.parametrize("key", [b"\x03", b"\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_giving_up_at_a_question_writes_nothing(launch: Launch, key: bytes, answers: int) -> None:
    """And says so, in one line."""
    (launch.directory / "train.py").touch()
    terminal = Terminal(launch, "exec tflaunch init")
    for question in (b"[2] ", b"[this machine] ", b"[python train.py] ", b"[0] ")[:answers]:
        terminal.answer(question, b"\n")
    terminal.read_until((b"[2] ", b"[this machine] ", b"[python train.py] ", b"[0] ")[answers])
    said, code = terminal.read_to_end(key)
    assert (said.replace("^C", "").replace("^D", "").split("\r\n")[-2:], code) == (
        ["tflaunch: nothing was written", ""],
        130,
    )
    assert os.listdir(launch.directory) == ["train.py"]


def test_a_file_that_exists_is_refused_before_the_questions(launch: Launch) -> None:
    """Answers are not lost."""
    (launch.directory / "cluster.yaml").touch()
    said, code = Terminal(launch, "exec tflaunch init").read_to_end()
    assert (said.strip(), code) == (
        "tflaunch: cluster.yaml exists; replace it with --force, or give another FILE",
        EXIT_USAGE,
    )
