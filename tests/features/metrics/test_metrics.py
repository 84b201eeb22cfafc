"""What Prometheus is told of a job."""

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.core.events import HostJoined, PortOpened, PortsHeld, TaskStarted, TimePassed
from tflaunch.features.metrics import metrics

EPOCH = 1_000_000.0


def test_metrics_say_who_listens_and_how_long_a_cluster_has_not_formed() -> None:
    history = History(clustered({"worker": 2})).happens(HostJoined(HERE))
    history.happens(PortsHeld(HERE, {"worker:0": 20000, "worker:1": 20001}))
    history.happens(*(TaskStarted(HERE, name, 0, 1, 0.0) for name in ("worker:0", "worker:1")))
    history.happens(PortOpened(HERE, "worker:0", 0))
    history.now += 75
    history.happens(TimePassed())
    samples = {
        (sample.name, sample.labels.get("task")): sample.value
        for family in metrics.families(history.status(EPOCH), history.now + EPOCH)
        for sample in family.samples
    }
    assert samples["tflaunch_cluster_waiting_seconds", None] == 75
    assert samples["tflaunch_task_listening", "worker:0"] == 1
    assert samples["tflaunch_task_listening", "worker:1"] == 0
    assert samples["tflaunch_task_up", "worker:1"] == 1
