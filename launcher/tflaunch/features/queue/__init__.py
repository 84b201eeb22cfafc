"""Let runs wait until their hosts are free."""

from tflaunch.feature import Feature, Location, Option, Verb

FEATURE = Feature(
    help={
        "up": """
With --queue the run waits until no other run of yours holds its hosts, or enough of their GPUs are free; see
`tflaunch queue`. Ctrl-C takes it out of the queue; with -d it begins without this terminal. --matrix lr=0.1,0.01
queues a run for each value, which replaces {matrix.lr} in command, env and workdir; `tflaunch ls` compares them.
  tflaunch up -d cluster.json --matrix lr=0.1,0.01 --matrix batch=32,64
""",
        "ls": """
If some were made by --matrix, their values and the last metrics of all runs are columns, too; a terminal shows
those that fit, a pipe all.
""",
        "down": """
A run that waits in the queue of `up --queue` is taken out of it, and --all empties that queue, too.
""",
    },
    options={
        "queue": Option(
            "Begin when no other run of this user holds the hosts and GPUs (`tflaunch queue`).",
            check=".starter:check_start",
            start=".starter:submit",
        ),
        "matrix": Option(
            "Queue a run for each value of {matrix.NAME}; with several --matrix, for each combination.",
            "NAME=V1,V2",
            is_repeated=True,
            check=".starter:check_start",
            start=".starter:submit",
        ),
    },
    locations=(Location(("queued.json", "begins.json", "refused.json"), ".location:QueuedRun"),),
    verbs={
        "queue": Verb(
            ".command:queue", "Act on runs", "Show the runs that wait for hosts and GPUs.", output=".location:Waiting"
        )
    },
)
