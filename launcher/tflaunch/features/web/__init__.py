"""Show runs in a browser."""

from tflaunch.feature import Feature, Option, Verb, Watching

FEATURE = Feature(
    needs=("explain", "hang", "records", "report"),
    options={
        "web": Option("Show the run in a browser, too: print a link to a page about it.", check=".command:check_start")
    },
    watchers=(Watching(".command:PageBeside", "web"),),
    verbs={"web": Verb(".command:web", "Look at runs", "Show runs in a browser.")},
)
