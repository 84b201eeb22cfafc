"""Show runs in a browser."""

from tflaunch.feature import Feature, Option, Verb, Watching

FEATURE = Feature(
    needs=("explain", "hang", "records", "report"),
    options={
        "web": Option(
            "Show the run in a browser, too: print a link to a page about it.",
            check="tflaunch.features.web.command:check_start",
        )
    },
    watchers=(Watching("tflaunch.features.web.command:PageBeside", "web"),),
    verbs={"web": Verb("tflaunch.features.web.command:web", "Look at runs", "Show runs in a browser.")},
)
