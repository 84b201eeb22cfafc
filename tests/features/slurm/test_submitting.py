"""`up --on slurm` that fails: no Slurm here, or a job that sbatch rejects."""

import sys
from pathlib import Path

from support.launch import Launch


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


def test_an_image_is_refused(launch: Launch) -> None:
    """Before anything is submitted: tasks would run outside it. Elsewhere `up` warns."""
    spec = launch.spec(cluster={"worker": 1}, command=["true"], strategy="none", container={"image": "train:1"})
    ended = launch.up(spec, "--on", "slurm", code=2)
    assert "container.image: tasks of `up --on slurm` run on the nodes themselves" in ended.stderr
    ended = launch.succeed("up", spec)
    assert "warning: container.image: is not used" in ended.stderr
