"""Run agents and tasks in containers, by pyxis if srun has it, or by Apptainer."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from tflaunch import private_files
from tflaunch.clusterspec.model import Spec
from tflaunch.errors import EXIT_PREFLIGHT, Problem, TflaunchError
from tflaunch.features.slurm import jobs
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.store.run_dir import home

_PROGRAM = "apptainer"
_OPTION = "--container-image"
_UNPACKED_WITHIN = 600.0  # seconds: pyxis gets and unpacks an image, of many GB, before anything starts in it
_FILES = (".sif", ".sqsh")
_REGISTRY = re.compile(r"([^/]*[.:][^/]*|localhost)/")
_AS_ENROOT = r"\1#"
_SEPARATORS = re.compile("[,:]")  # of mounts, in both programs


def find_problems(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Yield what nodes cannot do with the image and the volumes of a spec."""
    if spec.container.image is None:
        return
    file = _file_of(spec.container.image, directory)
    if file is not None and not file.exists():
        yield Problem.error("container.image", f"there is no file {file}", "correct the path")
    if _is_to_pull(spec.container.image, directory) and shutil.which(_PROGRAM) is None:
        message = f"srun has no pyxis here, and there is no `{_PROGRAM}` to get {spec.container.image!r} with"
        yield Problem.error("container.image", message, "install one of them, or write the path of a file")
    for path, source in spec.container.volumes.items():
        if not source.startswith("/"):
            message = f"{source!r} is a claim or volume, and nodes of Slurm have directories"
            yield Problem.error(f"container.volumes.{path}", message, 'write a path such as "/data"')
    for text in (*spec.container.volumes, *spec.container.volumes.values(), str(home()), str(directory)):
        if _SEPARATORS.search(text):
            yield Problem.error("container", f"{text!r} cannot be mounted for its comma or colon", "rename it")


def without_image(spec: Spec) -> Spec:
    """Return the spec for the general checks, which allow images for pods only."""
    return spec.model_copy(update={"container": spec.container.model_copy(update={"image": None})})


def pull_image(spec: Spec, directory: Path) -> None:
    """Let Apptainer make a missing image file; nodes often cannot reach a registry.

    Raises:
        TflaunchError: it cannot.
    """
    image = spec.container.image
    if image is None:
        return
    file = _pulled(image)
    if not _is_to_pull(image, directory):
        with suppress(OSError):  # for `prune`
            os.utime(file)
        return
    private_files.make_directories(file.parent)
    part = file.with_name(f".{os.getpid()}-{file.name}")
    command = [_PROGRAM, "pull", "--force", str(part), f"docker://{image}"]
    try:
        # no limit: it shows its progress, and Ctrl-C ends it
        if subprocess.run(command, check=False).returncode != 0:
            raise TflaunchError(f"container.image: `{shlex.join(command)}` failed, as it says above", EXIT_PREFLIGHT)
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)


def within_image(plan: Plan, spec: Spec, directory: Path) -> Plan:
    """Return the plan with nodes reached in their container, whose PATH tasks have."""
    if spec.container.image is None:
        return plan
    words = shlex.join(_words(spec, directory, [process.workdir for process in plan.processes()]))
    hosts = tuple(host._replace(engine=f"{host.engine} {words}") for host in plan.hosts)
    given = (spec.env, *(host.env for host in spec.hosts.values()), *(role.env for role in spec.roles.values()))
    written = [env.get("PATH") for env in given]

    def in_container(process: TaskPlan) -> TaskPlan:
        env = {name: value for name, value in process.env.items() if name != "PATH" or value in written}
        return process._replace(env=env)

    limit = max(plan.timeouts.connect, _UNPACKED_WITHIN) if _has_pyxis() else plan.timeouts.connect
    timeouts = plan.timeouts._replace(connect=limit)
    return plan._replace(hosts=hosts, timeouts=timeouts).with_processes(in_container)


def _words(spec: Spec, directory: Path, workdirs: Sequence[str]) -> list[str]:
    """Return the words after srun's options; directories keep their paths of the node."""
    image = spec.container.image
    assert image is not None
    there = [path for path in ("/tmp", str(Path.home()), str(home()), str(directory), *workdirs) if Path(path).is_dir()]  # noqa: S108
    volumes = [f"{source}:{path}" for path, source in spec.container.volumes.items()]
    mounts = ",".join([*(f"{path}:{path}" for path in dict.fromkeys(there)), *volumes])
    file = _file_of(image, directory)
    if _has_pyxis():
        return [f"{_OPTION}={file or _REGISTRY.sub(_AS_ENROOT, image, count=1)}", f"--container-mounts={mounts}"]
    gpus = ["--nv"] if any(host.gpus for host in spec.hosts.values()) else []
    return [_PROGRAM, "exec", *gpus, "--bind", mounts, str(file or _pulled(image))]


def _file_of(image: str, directory: Path) -> Path | None:
    return (directory / image).absolute() if image.startswith("/") or image.endswith(_FILES) else None


def _is_to_pull(image: str, directory: Path) -> bool:
    return _file_of(image, directory) is None and not _has_pyxis() and not _pulled(image).exists()


def _pulled(image: str) -> Path:
    return home() / "images" / f"{quote(image, safe='')}.sif"


def _has_pyxis() -> bool:
    try:
        return _OPTION in jobs.run_command("srun", "--help")
    except jobs.SlurmError:
        return False
