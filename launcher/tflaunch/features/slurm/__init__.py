"""Run jobs of Slurm, and on the nodes that Slurm has given."""

from tflaunch.feature import Engine, Feature, Location, Option, Verb, Watching

FEATURE = Feature(
    needs=("render",),
    fields=("slurm",),
    help={
        "up": """
With --on slurm, a Slurm batch job is submitted, which starts the tasks on its nodes; this terminal follows it,
unless -d is given. ps, logs, attach, wait and down work as usual, also while it is in the queue.
""",
        "run": """
With --on slurm it is a Slurm job.
  tflaunch run --on slurm -n 4 --gpus 1 python train.py
""",
        "check": "\n  tflaunch check --on slurm --partition gpu cluster.json\n",
        "ls": "\n  tflaunch ls --on slurm\n",
    },
    engines={
        "slurm": Engine(
            "as a Slurm job", submit=".submission:submit_spec", runs=".jobs:find_runs", check=".submission:check_spec"
        )
    },
    options={
        name: Option(f"{does} With --on slurm.", "VALUE", engine="slurm", setting=setting)
        for name, does, setting in (
            ("partition", "Submit to this partition.", "slurm.partition"),
            ("account", "Charge this account.", "slurm.account"),
            ("time", "Time limit, in the format of sbatch.", "slurm.time"),
            ("nodes", "Number of nodes to spread tasks given as a count over.", "slurm.nodes"),
            ("gpus_per_node", "Number of GPUs on each node.", "slurm.gpus-per-node"),
        )
    },
    problems=".allocation:find_warnings",
    locations=(Location(("slurm.json",), ".location:find_slurm_run"),),
    watchers=(Watching(".supervise:GraceTime", "explain_term"), Watching(".lives:PastLimit", "past_limit")),
    discover={"slurm": ".discovery:Slurm"},
    verbs={"supervise": Verb(".supervise:supervise")},
)
