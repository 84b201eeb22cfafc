"""Options of other tools, and what does their work here."""

import difflib
import re

import click

_SPECS = "up check plan render env doctor bench"
_TABLE = """
up run | --scale --replicas | Write: `--set cluster.worker=N`
up run | --build --pull --no-build --no-cache | Leave it out: programs run as they are
up run | --force-recreate --no-recreate --remove-orphans -V --rm --no-deps | Leave it out: each run is a new one
up run | --abort-on-container-exit --exit-code-from --use_env | Leave it out: the first task that fails ends the run
up run | --attach --follow --no-detach --foreground | Leave it out: without -d the run stays in this terminal
up run | --dry-run --dryrun --test-only | `tflaunch plan SPEC` shows what would run
up run | --project-name -p --job-name --job_name -J --run-name --run_name | Write: `--name NAME`
up run | --wait --timestamps --no-log-prefix --no-color | `tflaunch logs` shows the output in other ways
up run | --watch -w --monitor | `tflaunch ps --watch` shows the tasks
up run | --cpus --cpus-per-task -c | Write: `--set container.resources.cpu=4`, or `--set slurm.cpus-per-task=4`
up run | --mem --memory -m | Write: `--set container.resources.memory=4Gi`, or `--set slurm.mem=4G`
up run | --output -o --error --redirects --tee -r | Write: `--log-dir DIR`
up run | --max-restarts --max_restarts --retries --backoff-limit | Write: `--set restart.max=N`
up run | --oversubscribe --allow-run-as-root --bind-to --map-by --mca --mpi --no_python | Leave it out
up | -e --env-file | Write: `--set env.NAME=VALUE`
up | --gpus | Write: `--set roles.worker.gpus=N`
up | --timeout | Write: `--set timeouts.deadline=1h`
up | -H --hosts --hostfile -hostfile --host --host-file | A spec has the hosts: `--set 'cluster.worker=["h1"]'`
run | -x --export --genv | Write: `-e NAME`
run | -f --file | `tflaunch up SPEC` runs a spec
run | -t -i -it -ti --tty --interactive --pty | Tasks have no terminal: `tflaunch exec TASK` opens one beside them
run | --hostfile -hostfile --machinefile --host-file --host --nnodes | Write: `-H HOST1,HOST2`
run | --volume --mount --publish --network --entrypoint | Leave it out: programs run on the hosts, in no container
run | --np --nproc --nproc-per-node --nproc_per_node --num-workers --num_processes --ntasks -N | Write: `-n N`
down | -v --volumes --rmi --remove-orphans --purge | `tflaunch prune` removes the files of runs that have ended
down | -f --force --now -9 --kill --grace-period | Write: `-t 0`
ps | -o --output --format -q --quiet --filter -l --services --status | Write: `--json`, and choose there
logs | -p --previous | Write: `--attempt N`
logs | -c --container --index -l --selector | Write the task: `tflaunch logs worker:1`
logs | --until | `tflaunch logs -t` shows when each line was written
logs | --grep --search | Write: `tflaunch logs | grep WORD`
ls | -q --quiet --format -o --output | Write: `--json`
ls | -f --filter --status | Write: `--state failed`, or `--since 24h`
kill | --all -a | Write the tasks: `tflaunch kill worker`; `tflaunch down --all` ends all runs
prune | -a --all | `tflaunch prune --keep 0 --older-than 0s` removes all runs that have ended
prune | --filter --until | Write: `--older-than 30d`
web | --host --bind -b --bind_all --listen --address --ip | Leave it out: it prints the command that reaches it over SSH
web tensorboard | -p | Write: `--port N`
rerun | --set --name -e --env --image --gpus -n | It changes nothing: `tflaunch up SPEC --set PATH=VALUE` does
profile | -d --duration -t --time | Write: `--for 10s`
exec | -u --user -w --workdir -c --container | Leave it out: it has user and directory of the task
exec | -e --env | Write: `tflaunch exec TASK -- env NAME=VALUE COMMAND`
up run rerun | --background --bg --daemon -D | Write: `-d`
SPECS | -n -np --np --nproc --num-workers --ntasks | A spec has the number of workers: `--set cluster.worker=N`
SPECS | --env | Write: `--set env.NAME=VALUE`
run SPECS | --restart | Write: `--set restart.max=N`
run SPECS | --sync | Write: `--set 'sync.paths=["."]'`
run SPECS | --workdir --chdir --cwd -C --project-directory | Write: `--set workdir=DIR`
SPECS | --nnodes --machines | A spec has the hosts, and so has `tflaunch run -H HOST1,HOST2`
""".replace("SPECS", _SPECS)
ANSWERS = {
    (verb, option): answer
    for verbs, options, answer in (line.split(" | ", 2) for line in reversed(_TABLE.strip().splitlines()))
    for verb in verbs.split()
    for option in options.split()
}
"""Verb and option to what does its work here: a sentence without its full stop."""

_OF_CLUSTERS = re.compile(
    r"--(rdzv|master|node|local|machine)[-_](backend|endpoint|id|conf|addr|port|rank)|--standalone"
)
"""Options of other tools that describe the cluster."""
_NAMED = re.compile(r"`tflaunch ([a-z]+)")
_SIMILAR = 0.75  # of an option that is proposed: most of its letters


def answer_option(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an unknown option, with its counterpart here."""
    verb = (error.ctx.info_name if error.ctx is not None else None) or ""
    answer = ANSWERS.get((verb, error.option_name))
    root = None if error.ctx is None else error.ctx.find_root()
    if answer and root and isinstance(root.command, click.Group):
        there = root.command.list_commands(root)
        if not all(named in there for named in _NAMED.findall(answer)):
            answer = None  # what does it belongs to a feature that is missing here
    if answer is None and _OF_CLUSTERS.fullmatch(error.option_name):
        answer = "Leave it out: tflaunch tells tasks their place in the cluster"
    if answer is not None:
        return click.UsageError(f"No such option {error.option_name!r}. {answer}.", error.ctx)
    near = difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=_SIMILAR)
    return click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
