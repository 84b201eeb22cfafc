"""Run each task in a pod of its own."""

from tflaunch.feature import Engine, Feature, Location, Option, Verb, Watching

FEATURE = Feature(
    needs=("commands",),
    uses=("records",),
    fields=("kubernetes",),
    help={
        "up": """
With --on kubernetes, or "kubernetes" in the spec, each task gets a pod of its own, which is reached through
kubectl. The pods are deleted when the run has ended. With -d the supervisor has a pod, too.
""",
        "run": """
With --on kubernetes it runs in pods of --image: if COMMAND names a file here, the directory is copied to them.
""",
    },
    # The setting makes the object, without changing what the spec has in it: keys that begin with x- are ignored.
    engines={
        "kubernetes": Engine(
            "in Kubernetes pods",
            ("kubernetes.x-on=true",),
            runs=".cluster_runs:find_runs",
            check=".cluster_launch:problems_on_cluster",
            is_elsewhere=True,
            field="kubernetes",
            host_maker=".cluster_objects:PodHosts",
            detach=".cluster_launch:start_in_cluster",
        )
    },
    options={
        name: Option(f"{does} With --on kubernetes.", "NAME", engine="kubernetes", setting=setting, is_for_ls=is_place)
        for name, does, setting, is_place in (
            ("namespace", "Namespace of the pods.", "kubernetes.namespace", True),
            ("context", "Use this kubectl context.", "kubernetes.context", True),
            ("image", "Run the tasks in this image.", "container.image", False),
        )
    },
    locations=(Location(("launcher.json",), ".location:find_kubernetes_run"),),
    watchers=(Watching(".pod_state:PodEnds", "kubernetes"),),
    verbs={"launcher": Verb(".launcher_pod:launcher")},
)
