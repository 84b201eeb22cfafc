"""What a profile of TensorFlow says about a task: read without TensorFlow, each moment counted once."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from support.xspace import plane, xspace
from tflaunch.explain.profile_shares import Shares, shares_of
from tflaunch.explain.xspace import read_planes

pytestmark = pytest.mark.unit

STEP = "EagerLocalExecute: __inference_one_step_42"
RUN = "KernelAndDeviceFunc::Run"


def shares(*planes: bytes) -> Shares:
    found = shares_of(xspace(*planes))
    assert found is not None
    return found


def host(**lines: list[tuple[str, int, int]]) -> bytes:
    return plane("/host:CPU", lines)


def test_each_moment_counts_once() -> None:
    """Compute before communication before input; a step that does nothing waits for others; the rest is the host's."""
    found = shares(
        host(
            python=[(STEP, 0, 100), (RUN, 5, 100), (STEP, 100, 200), (RUN, 105, 200), ("MatMul:MatMul", 150, 160)],
            pool=[("dense/MatMul:MatMul", 10, 40), ("ExecutorState::Process#id=7#", 0, 45), ("MatMul:MatMul", 35, 50)],
            collective_ops=[("CollectiveReduceV2:CollectiveReduceV2", 45, 70)],
            tf_data_iterator_get_next=[("IteratorGetNextOp::DoCompute", 65, 80), ("Resize:ResizeBilinear", 0, 200)],
        )
    )
    assert found == Shares(
        pytest.approx(0.25),
        pytest.approx(0.10 + 0.525),
        pytest.approx(0.05),
        pytest.approx(0.075),
        2e-10,
        2,
        "one_step",
    )
    assert sum(found[:4]) == pytest.approx(1)
    assert found.sentence() == "2 steps of 0.0 ms (one_step): 62% communication, 25% compute, 8% host, 5% input"


def test_what_is_outside_of_the_steps_does_not_count() -> None:
    """Steps of the function in which most time is spent; a task without any is judged by all that it recorded."""
    other = "EagerLocalExecute: __inference_test_step_7"
    found = shares(host(python=[(other, 0, 40), (STEP, 50, 150), ("MatMul:MatMul", 0, 100)]))
    assert (found.steps, found.function, found.compute) == (1, "one_step", pytest.approx(0.5))
    server = shares(host(pool=[("AssignAddVariableOp:AssignAddVariableOp", 0, 10), ("FunctionRun", 30, 40)]))
    assert (server.steps, server.compute, server.host) == (0, 0.25, 0.75)
    assert server.sentence() == "no step in 0.0 s: 75% host, 25% compute, 0% input, 0% communication"


def test_ops_that_wait_for_others_do_not_compute() -> None:
    """Nor do threads that receive requests, and ops of tf.data."""
    waiting = ["while:While", "StatefulPartitionedCall:StatefulPartitionedCall", "EagerService:Enqueue"]
    found = shares(
        host(
            python=[(STEP, 0, 100), *((name, 0, 100) for name in waiting)],
            tf_data_private_threadpool=[("MatMul:MatMul", 0, 100)],
            grpc_worker_service=[("MatMul:MatMul", 0, 100)],
            pool=[("Mul:Mul", 0, 10), ("x/_3:_Recv", 20, 30), ("Iterator::Root::Map:Map", 40, 50)],
        )
    )
    assert (found.compute, found.communication) == (0.1, 0.1)


def test_with_a_device_its_kernels_are_what_computes() -> None:
    """Ops of the host only launch them; collectives there are communication."""
    found = shares(
        host(python=[(STEP, 0, 100), ("MatMul:MatMul", 0, 100)]),
        plane(
            "/device:GPU:0",
            {"Stream #13": [("gemm", 0, 40), ("ncclDevKernel_AllReduce", 40, 60), ("MemcpyH2D", 60, 70)]},
        ),
    )
    assert (found.compute, found.communication, found.host) == (
        pytest.approx(0.4),
        pytest.approx(0.2),
        pytest.approx(0.4),
    )


def test_nothing_recorded() -> None:
    """That is neither an error nor a share."""
    assert shares_of(b"") is None
    assert shares_of(xspace(plane("/host:CPU", {}))) is None


def test_anything_else_is_refused() -> None:
    """Whatever the bytes are; a prefix of a profile may be one."""
    profile = xspace(host(python=[(STEP, 0, 100)], pool=[("MatMul:MatMul", 3, 50)]))
    chance = random.Random(1)
    for number in range(2000):
        broken = bytearray(profile)
        for _ in range(number % 3 + 1):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        for data in (bytes(broken), profile[: chance.randrange(len(profile))]):
            with suppress(ValueError):
                shares_of(data)
    with pytest.raises(ValueError, match="profile"):
        shares_of(b"\x0f")


def test_lines_that_are_not_wanted_are_not_read() -> None:
    """They can be the largest part of a profile."""
    data = xspace(plane("/host:CPU", {"a": [("x", 0, 1)], "b": [("y", 2, 3)]}))
    (found,) = read_planes(data, lambda _, line: line == "b")
    assert [line.name for line in found.lines] == ["b"]
    assert [(found.names[number], end - begin) for number, begin, end in found.lines[0].events] == [("y", 1)]
