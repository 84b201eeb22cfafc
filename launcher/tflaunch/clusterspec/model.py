"""The model of a cluster spec: the only definition of its fields and defaults.

Rules across fields (which roles a strategy needs, ...) are in `lint`. Annotations are not deferred here, because
pydantic would compile each of them a second time.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, ConfigDict, Field, model_validator

from tflaunch.clusterspec import engine_fields
from tflaunch.clusterspec.part import Part
from tflaunch.clusterspec.validators import (
    Command,
    ContainerName,
    Count,
    Duration,
    Environment,
    Flag,
    HostKey,
    HostName,
    Internal,
    Members,
    Modules,
    Name,
    Omittable,
    SecretName,
    SetupCommands,
    SetupFiles,
    Source,
    SpareHosts,
    SshDestination,
    StallLimit,
    StopSignal,
    Text,
    list_of,
    not_a_number,
    object_of,
    omitted,
    secret_source,
)
from tflaunch.clusterspec.values import EVERY_HOST, LOCALHOST, OCCASIONS, Occasion, RoleName, Strategy

DISCOVER = "discover"
"""The key in ``hosts`` for the source of hosts; it is the field ``pool`` of `Spec`."""

TASK_FIELDS = ("cluster", "discover", "sidecars")

SERVED_BY_FEATURES = (
    "checkpoints", "collect", "kubernetes", "network: private", "notify", "preload", "retention", "setup",
    "setup_files", "slurm", "warm",
)  # fmt: skip
"""Fields, or values of them, that have an effect only with a feature that declares them."""


class Resources(Part):
    """What each task gets from the scheduler that `render` or `--on` addresses."""

    cpu: Omittable[engine_fields.Cores] = omitted("number of cores")
    memory: Omittable[engine_fields.Memory] = omitted("memory, in Mi or Gi")
    gpu: Omittable[Count] = omitted("number of GPUs, for tasks that train")
    features: Annotated[tuple[engine_fields.NodeFeature, ...], list_of('a list such as ["a100"]')] = Field(
        default=(), description="what its node must have: features of Slurm, labels of Kubernetes as name=value"
    )


class PodTemplate(Part):
    """What Kubernetes gets about pods, merged as `kubectl patch` does it."""

    pod: engine_fields.PodFields = Field(
        default={}, description="further fields of the pods' spec, as Kubernetes names them, such as nodeSelector"
    )
    container: engine_fields.ContainerFields = Field(
        default={}, description="further fields of the task's container in its pod, such as securityContext"
    )


class Role(Part):
    """What differs for the tasks of one role."""

    command: Omittable[Command] = omitted("command of the role's tasks, instead of the spec's")
    env: Environment = Field(default={}, description="environment variables, beside those of the spec")
    workdir: Omittable[Text] = omitted("working directory, relative to the spec's file")
    setup: Omittable[SetupCommands] = omitted(
        "what prepares hosts for these tasks, instead of the spec's; [] for nothing"
    )
    setup_files: Omittable[SetupFiles] = omitted("files on which that depends, instead of the spec's")
    gpus: Omittable[Count] = omitted("number of GPUs that each task sees")
    resources: Resources = Field(
        default_factory=Resources, description="what differs from the resources of the container"
    )
    kubernetes: PodTemplate = Field(
        default_factory=PodTemplate, description="what differs from `kubernetes` for the role's pods"
    )
    server: Flag = Field(default=False, description="run TensorFlow's standard server instead of a command")
    required: Flag = Field(default=False, description="the job fails when an evaluator fails for good")


class Sidecar(Part):
    """A process outside TF_CONFIG."""

    command: Command = Field(description="command of the process")
    host: HostName = Field(default=LOCALHOST, description="host on which it runs")
    env: Environment = Field(default={}, description="environment variables, beside those of the spec")
    required: Flag = Field(default=False, description="the job fails when the process fails for good")


class Secret(Part):
    """Where the launcher finds the value of a secret: in one of these places."""

    env: Omittable[SecretName] = omitted("variable of the launcher's environment")
    file: Omittable[Text] = omitted("path of a file, relative to the spec's file")


class Host(Part):
    """How to reach a host, and what differs there."""

    ssh: Omittable[SshDestination] = omitted("where ssh connects to, as user@address:port")
    docker: Omittable[ContainerName] = omitted("name or id of the container that the host is")
    address: Omittable[HostName] = omitted("name or address by which the other hosts reach it")
    identity_file: Omittable[Text] = omitted("path of the private key to log in with")
    python: Omittable[Text] = omitted("path of the interpreter that `python` means in a command")
    workdir: Omittable[Text] = omitted("working directory of the tasks there")
    setup: Omittable[SetupCommands] = omitted("what prepares this host, instead of the spec's; [] for nothing")
    setup_files: Omittable[SetupFiles] = omitted("files on which that depends, instead of the spec's")
    env: Environment = Field(default={}, description="environment variables of the tasks there")
    gpus: Omittable[Count] = omitted("number of GPUs that the tasks there share")
    engine: Internal[str | None] = Field(
        default=None, exclude=True, description="what has found the host and reaches it, as NAME:HANDLE (see `engines`)"
    )
    inherits: Internal[bool] = Field(
        default=False,
        exclude=True,
        description="whether tasks there have the environment and the files of this machine",
    )

    def only(self, *fields: str) -> "Host":
        """Return the host with only these settings."""
        return Host(**{field: getattr(self, field) for field in fields if field in self.model_fields_set})


class Sync(Part):
    """Which of the user's files are copied to hosts other than this machine."""

    paths: Annotated[tuple[Text, ...], list_of('a list of paths such as ["."]')] = Field(
        default=(".",), description="files and directories to copy, relative to the spec's file"
    )
    exclude: Annotated[tuple[Text, ...], list_of('a list such as ["*.pyc", "data"]')] = Field(
        default=(".git", ".venv", "__pycache__", "*.pyc"), description="names and paths to leave out, with * and ?"
    )


class Checkpoints(Part):
    """Where the program writes checkpoints, and how many copies go to other disks."""

    dir: Text = Field(description="directory of the program's checkpoints, relative to the working directory")
    copies: Count = Field(default=2, description="hosts that have the newest checkpoint, with the one that wrote it")
    keep: Count = Field(default=3, description="newest checkpoints whose copies are kept")


class Restart(Part):
    """How often a failed job is restarted."""

    max: Count = Field(default=3, description="most restarts within the window; 0 for none")
    window: Duration = Field(default=600.0, description="time after which a restart no longer counts")
    backoff: Annotated[tuple[Duration, Duration], list_of('two durations such as ["1s", "1m"]', size=2)] = Field(
        default=(1.0, 60.0), description="shortest and longest wait before a restart; it doubles each time"
    )


class Elastic(Part):
    """How small a job may become when hosts are lost."""

    min_workers: Count = Field(description="fewest workers with which the job goes on")
    retry: Duration = Field(default=300.0, description="how often lost hosts are tried again")


class Notify(Part):
    """The command that is run when something happens to the job."""

    exec: Command = Field(description="command, which gets the summary on stdin")
    on: Annotated[tuple[Occasion, ...], list_of('a list such as ["failed", "done"]')] = Field(
        default=OCCASIONS, description="when it is run"
    )


class Retention(Part):
    """Which runs of a job are removed from this machine when a later one has ended."""

    keep: Count = Field(default=10, description="newest runs of the job that stay, however old they are")
    older_than: Duration = Field(default=2592000.0, description="time for which every run stays after its end")


class Timeouts(Part):
    """Time limits. What is left out has no limit, unless a default is given."""

    connect: Duration = Field(default=10.0, description="limit for reaching a host")
    heartbeat: Duration = Field(default=5.0, description="silence after which a link is given up and made again")
    grace: Duration = Field(default=10.0, description="time that a task has to end after `stop_signal`, before KILL")
    lease: Omittable[Duration] = omitted(
        "time that tasks go on without a supervisor; default: 30s on other hosts, else 0"
    )
    finish: Omittable[Duration] = omitted("limit for the other tasks to end once the job has succeeded")
    setup: Duration = Field(default=1800.0, description="limit for `setup` on a host")
    lost_host: Duration = Field(
        default=900.0, description="time that a job waits for lost hosts without which it cannot go on; 0: not"
    )
    stall: StallLimit = Field(
        default="auto",
        validate_default=True,
        description='silence that ends a job that hangs: "auto", learned from its longest healthy one; 0: never',
    )
    deadline: Omittable[Duration] = omitted("limit for the whole job, restarts included")


class Container(Part):
    """Containers of tasks in pods, in Slurm jobs and in rendered files."""

    image: Omittable[engine_fields.Image] = omitted("name of the image; for Slurm also its file")
    resources: Resources = Field(default_factory=Resources, description="resources of each task")
    volumes: Annotated[
        Mapping[engine_fields.MountPath, engine_fields.Volume], object_of('an object such as {"/data": "claim"}')
    ] = Field(default={}, description="paths in the container, to paths of the host or names of claims or volumes")


class Kubernetes(PodTemplate):
    """Where and how pods are made, one for each task."""

    context: Omittable[Text] = omitted("context of kubectl; default: its current one")
    namespace: Omittable[Text] = omitted("namespace; default: that of the context")
    labels: Annotated[Mapping[Text, Text], object_of('an object such as {"team": "vision"}')] = Field(
        default={}, description="labels of the pods, and of what makes them"
    )
    annotations: Annotated[Mapping[Text, Text], object_of('an object such as {"owner": "ann"}')] = Field(
        default={}, description="annotations of the pods, and of what makes them"
    )
    pending: Duration = Field(default=600.0, description="limit for a pod to run")
    launcher_image: Omittable[Text] = omitted(
        "image with tflaunch and kubectl for the supervisor of `up -d`; default: that of the tasks"
    )
    launcher: PodTemplate = Field(
        default_factory=PodTemplate, description="what differs for the pod of the supervisor of `up -d`"
    )
    run_volume: Omittable[engine_fields.Claim] = omitted(
        "PersistentVolumeClaim on which the supervisor of `up -d` has the run directory"
    )
    keep: Duration = Field(
        default=3600.0, description="how long the supervisor of `up -d` keeps the directory of a run that has ended"
    )


class Spec(Part):
    """A cluster spec: what a job runs, where, and what happens when something fails."""

    model_config = ConfigDict(title="tflaunch cluster spec")

    name: Name = Field(default="job", description="name of the job; default: the stem of the file's name")
    strategy: Omittable[Strategy] = omitted(
        "tf.distribute strategy of the program; default: the one that the roles ask for"
    )
    cluster: Annotated[Mapping[Text, Members], object_of('an object such as {"worker": 2}')] = Field(
        description="tasks of each role: a number of local ones, or their addresses"
    )
    discover: Annotated[Mapping[RoleName, Source], object_of('an object such as {"worker": "dns:worker"}')] = Field(
        default={}, description="where the addresses of a role are found when the job starts"
    )
    command: Omittable[Command] = omitted("command of every task, as a list of words or as text")
    roles: Annotated[Mapping[Text, Role], object_of('an object such as {"worker": {"gpus": 1}}')] = Field(
        default={}, description="settings of single roles"
    )
    sidecars: Annotated[
        Mapping[Name, Sidecar], object_of('an object such as {"name": {"command": ["sh", "run.sh"]}}')
    ] = Field(default={}, description="processes outside TF_CONFIG, by their names")
    tensorboard: Omittable[Text] = omitted(
        "directory of event files that TensorBoard shows, relative to the chief's workdir"
    )
    hosts: Annotated[Mapping[HostKey, Host], object_of('an object such as {"h1": {"gpus": 4}}', apart=DISCOVER)] = (
        Field(
            default={},
            description='settings of single hosts, and of all under "*"; "discover" says where hosts are found',
        )
    )
    env: Environment = Field(default={}, description="environment variables of every task")
    secrets: Annotated[
        Mapping[SecretName, Annotated[Secret, secret_source]], object_of('an object such as {"KEY": {"file": "key"}}')
    ] = Field(default={}, description="environment variables of every task whose values are kept nowhere")
    workdir: Omittable[Text] = omitted("working directory, relative to the spec's file")
    restart: Restart = Field(default_factory=Restart, description="how often a failed job is restarted")
    timeouts: Timeouts = Field(default_factory=Timeouts, description="time limits")
    stop_signal: StopSignal = Field(
        default="TERM", description="signal that tasks get first when they are to end", examples=["INT"]
    )
    retention: Retention = Field(
        default_factory=Retention, description="which earlier runs of the job are removed when a run has ended"
    )
    notify: Omittable[Notify] = omitted("command that is run when something happens")
    success: Omittable[Literal["chief", "all"]] = omitted(
        "whose success ends the job: that of the chief or of all; default: as the strategy needs"
    )
    legacy_keras: Annotated[Literal["auto", True, False], not_a_number] = Field(
        default="auto", description="whether tf.keras is Keras 2 (tf_keras)"
    )
    sync: Omittable[Sync] = omitted("files that are copied to other hosts")
    setup: Omittable[SetupCommands] = omitted('commands that prepare each host once, such as "uv sync --frozen"')
    setup_files: Omittable[SetupFiles] = omitted("files on which `setup` depends, beside those that it names")
    collect: Annotated[tuple[Text, ...], list_of('a list of paths such as ["outputs/**"]')] = Field(
        default=(), description="files below the working directories that are fetched when the job ends, with *, ?, **"
    )
    checkpoints: Omittable[Checkpoints] = omitted(
        "copy finished checkpoints to other disks, and put the newest where tasks start"
    )
    elastic: Omittable[Elastic] = omitted("whether the job goes on with fewer workers")
    spares: SpareHosts = Field(
        default=0, description="hosts that take the place of lost ones: their names, or how many of the last hosts"
    )
    preload: Modules = Field(
        default="auto",
        validate_default=True,
        description='modules that each host imports once for all its tasks; "auto": what their programs import first',
    )
    warm: Omittable[Duration] = omitted(
        'how long a process with these modules (default: ["tensorflow"]) stays unused for later runs'
    )
    network: Literal["fenced", "fenced-or-fail", "private", "open"] = Field(
        default="fenced",
        description="who may connect to tasks: the run's hosts (fenced), its tasks (private, one host), or all (open)",
    )
    container: Container = Field(default_factory=Container, description="how tasks run in containers")
    slurm: Annotated[
        Mapping[engine_fields.OptionName, engine_fields.OptionValue],
        object_of('an object such as {"partition": "gpu"}'),
    ] = Field(default={}, description="long options of sbatch; true for one without a value")
    kubernetes: Omittable[Kubernetes] = omitted("run each task in a pod of its own in this Kubernetes cluster")
    pool: Omittable[Source] = Field(
        default=None,
        exclude=True,
        validation_alias=AliasPath("hosts", DISCOVER),
        description="where the hosts are found over which tasks without a host are spread",
    )
    origins: Internal[Mapping[str, str]] = Field(
        default={}, exclude=True, description="places of values from files of defaults, to the names of those files"
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_schema(cls, data: Any) -> Any:
        """Drop ``$schema``, for editors; allow discovery or sidecars instead of a cluster."""
        if not isinstance(data, dict):
            return data
        data = {key: item for key, item in data.items() if key != "$schema"}
        return {"cluster": {}, **data} if data.keys() & set(TASK_FIELDS) else data

    def as_data(self) -> dict[str, Any]:
        """Return the spec as plain data, without fields that were not set."""
        data = self.model_dump(mode="json", exclude_unset=True)
        if self.slurm:
            data["slurm"] = {option: value or True for option, value in self.slurm.items()}
        if self.pool is not None:
            data["hosts"] = {**data.get("hosts", {}), DISCOVER: self.pool}
        return data

    def host(self, name: str) -> Host:
        """Return the settings of a host: its own, completed by those of `EVERY_HOST`."""
        own, common = self.hosts.get(name), self.hosts.get(EVERY_HOST)
        if own is None or common is None:
            return own or common or Host.model_construct()  # there is nothing to validate
        given = {field: getattr(own, field) for field in own.model_fields_set}
        return common.model_copy(update={**given, "env": {**common.env, **own.env}})

    def resources(self, role: str) -> Resources:
        """Return the resources of a role's tasks: its own, completed by the container's."""
        common, own = self.container.resources, (self.roles.get(role) or Role()).resources
        return common.model_copy(update={field: getattr(own, field) for field in own.model_fields_set})

    def effective_strategy(self) -> str:
        """Return the strategy; by default, the one that the roles imply."""
        if self.strategy is not None:
            return self.strategy
        if not self.cluster and not self.discover and self.sidecars:
            return "none"
        return "parameter_server" if "ps" in self.cluster else "multi_worker_mirrored"


def written_fields(model: type[BaseModel]) -> list[str]:
    """Return the fields of a part of a spec that a user may write."""
    return [name for name, field in model.model_fields.items() if not field.exclude]
