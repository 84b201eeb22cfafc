"""A real Kubernetes for the tests of this directory."""

from collections.abc import Iterator

import pytest

from support.kube_cluster import Kube, need_kubernetes, one_at_a_time
from support.launch import Launch


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """One node, for all tests."""
    need_kubernetes()
    with one_at_a_time(), Kube(tmp_path_factory.mktemp("kube")) as kube:
        yield kube


@pytest.fixture
def kube(cluster: Kube, launch: Launch) -> Iterator[Kube]:
    """Let tflaunch find the cluster; nothing of a run may be left in it."""
    launch.env |= cluster.env
    yield cluster
    launch.end()
    cluster.wait_until_empty()
