"""What an agent watches of its tasks: whether they listen on their ports."""

import socket

from support.still_loop import StillLoop
from tflaunch_worker.agent.network.ports import PortWatch


def test_a_port_that_opens_late_is_reported_once() -> None:
    loop, opened = StillLoop(), list[tuple[str, int]]()
    watch = PortWatch(loop, lambda task, port: opened.append((task, port)))  # type: ignore[arg-type]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        watch.add("worker:0", port)
        for _ in range(3):
            loop.next()
        assert opened == []
        listener.listen()
        loop.next()
        assert opened == [("worker:0", port)]
    assert loop.timers == []
