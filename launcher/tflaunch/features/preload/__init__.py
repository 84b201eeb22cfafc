"""Fork tasks from processes that have imported their modules, also across runs."""

from tflaunch.feature import Feature, Option, Verb

_STARTER = ".preloading:Preloading"

FEATURE = Feature(
    fields=("preload", "warm"),
    problems=".preloading:find_problems",
    task_starters={"preload": _STARTER, "warm": _STARTER},
    help={
        "up": """
Python tasks of one host that begin with importing TensorFlow, Keras, JAX or torch are forked from a process that has
imported it, where that is safe. --no-preload starts each by itself; --preload says why one cannot be forked.
"""
    },
    options={
        "preload": Option(
            "Import tensorflow once per host, and say why if a task cannot be forked from that.",
            setting="preload",
            value='["tensorflow"]',
        ),
        "no_preload": Option("Have every task import by itself.", setting="preload", value="[]"),
    },
    verbs={
        "warm": Verb(
            ".command:warm",
            "More",
            "Start, list or end the processes that keep modules imported.",
            output=".warm_servers:WarmServers",
        )
    },
)
