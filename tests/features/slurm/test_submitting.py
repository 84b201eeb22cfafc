"""`up --on slurm` that fails: no Slurm here, or a job that sbatch rejects."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.specs import MACHINE, made
from tflaunch.discovery import resolve
from tflaunch.features.slurm import containers
from tflaunch.plan import planner


def with_sbatch(launch: Launch, *said: str, code: int) -> None:
    """Have an sbatch that fails with this message, as Slurm 22.05 does."""
    lines = "\n".join(said)
    launch.install("sbatch", f"#!/bin/sh\ncat >&2 <<'EOF'\n{lines}\nEOF\nexit {code}\n")


def refused(launch: Launch, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the only sentence."""
    spec = launch.spec(cluster={"worker": 1}, command=["true"], strategy="none")
    ended = launch.up(spec, "--on", "slurm", *arguments)
    assert not list((launch.home / "runs").iterdir()), "there never was such a run"
    (sentence,) = ended.stderr.splitlines()
    return ended.returncode, sentence


def test_a_machine_without_slurm_is_one_sentence(launch: Launch) -> None:
    launch.env["PATH"] = str(Path(sys.executable).parent)
    code, sentence = refused(launch)
    assert code == 3
    assert "no command `sbatch` here; run this on a login node" in sentence


def test_an_option_that_sbatch_does_not_know_is_a_mistake_of_the_user(launch: Launch) -> None:
    with_sbatch(launch, "sbatch: unrecognized option '--nosuch=1'", 'Try "sbatch --help" for information', code=255)
    code, sentence = refused(launch, "--set", "slurm.nosuch=1")
    assert code == 2
    assert "Slurm does not take the job: unrecognized option '--nosuch=1'; correct" in sentence
    assert "Try" not in sentence


def test_a_job_that_slurm_refuses_has_both_its_reasons(launch: Launch) -> None:
    failed = "Batch job submission failed: Invalid partition name specified"
    with_sbatch(launch, "sbatch: error: invalid partition specified: nope", f"sbatch: error: {failed}", code=1)
    code, sentence = refused(launch, "--partition", "nope")
    assert code == 3
    assert f"invalid partition specified: nope; {failed}; correct" in sentence


def test_what_nodes_cannot_do_with_an_image_is_told_before_the_queue(launch: Launch) -> None:
    """Elsewhere `up` warns that nothing starts in it."""
    with_sbatch(launch, "sbatch: error: it was submitted", code=1)
    fields: dict[str, Any] = {"cluster": {"worker": 1}, "command": ["true"], "strategy": "none"}
    for container, says in (
        ({"image": "train.sif"}, f"container.image: there is no file {launch.directory}/train.sif"),
        ({"image": "train:1", "volumes": {"/data": "claim"}}, "container.volumes./data: 'claim' is a claim or volume"),
        ({"image": "train:1", "volumes": {"/data": "/a,b"}}, "'/a,b' cannot be mounted for its comma or colon"),
        ({"image": "train:1"}, "srun has no pyxis here, and there is no `apptainer` to get 'train:1' with"),
    ):
        ended = launch.up(launch.spec(**fields, container=container), "--on", "slurm")
        assert says in ended.stderr
        assert "it was submitted" not in ended.stderr
        assert not list((launch.home / "runs").glob("*"))
    ended = launch.succeed("up", launch.spec(**fields, container={"image": "train:1"}))
    assert "warning: container.image: is not used" in ended.stderr


def test_an_image_is_pulled_once(launch: Launch) -> None:
    """Apptainer is an impostor here; tests/slurm has the real one."""
    with_sbatch(launch, "sbatch: error: it was submitted", code=1)
    launch.install("apptainer", '#!/bin/sh\n[ "$5" ] && exit 9\necho "$1 $4" >>pulled; touch "$3"; exit ${FAILS:-0}\n')
    spec = launch.spec(cluster={"worker": 1}, command=["true"], container={"image": "ghcr.io/ann/train:1"})
    launch.env["FAILS"] = "3"
    ended = launch.up(spec, "--on", "slurm", code=3)
    assert re.search(r"container.image: `apptainer pull --force \S+ docker://ghcr.io/ann/train:1` failed", ended.stderr)
    launch.env["FAILS"] = "0"
    for _ in range(2):
        assert "it was submitted" in launch.up(spec, "--on", "slurm", code=3).stderr
    assert (launch.directory / "pulled").read_text() == "pull docker://ghcr.io/ann/train:1\n" * 2
    assert [path.name for path in (launch.home / "images").iterdir()] == ["ghcr.io%2Fann%2Ftrain%3A1.sif"]


def test_pyxis_gets_the_image_as_enroot_writes_it(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its srun is an impostor: pyxis is in no package."""
    launch.install("srun", "#!/bin/sh\necho '--container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'\n")
    monkeypatch.setenv("PATH", launch.env["PATH"])
    monkeypatch.setenv("TFLAUNCH_HOME", str(launch.home))
    (launch.directory / "train.sqsh").touch()
    for image, wanted in (
        ("ghcr.io/ann/train:1", "ghcr.io#ann/train:1"),
        ("localhost/train", "localhost#train"),
        ("ann/train:1", "ann/train:1"),
        ("train.sqsh", f"{launch.directory}/train.sqsh"),
    ):
        container = {"image": image, "volumes": {"/data": "/var/data"}}
        fields = {"cluster": {"worker": ["a"]}, "command": ["true"], "env": {"PATH": "/mine"}}
        spec = made({**fields, "container": container})
        spec = resolve.reached(spec, resolve.Pool(spec.cluster["worker"], "slurm:7", inherits=True))
        plan = containers.within_image(planner.make_plan(spec, launch.directory, MACHINE), spec, launch.directory)
        handle, *words = shlex.split(plan.hosts[0].engine or "")
        assert [handle, words[0]] == ["slurm:7", f"--container-image={wanted}"]
        assert f",{launch.directory}:{launch.directory}," in words[1]
        assert words[1].endswith(",/var/data:/data")
        assert (plan.tasks[0].env["PATH"], plan.timeouts.connect) == ("/mine", 600), "it is unpacked first"
