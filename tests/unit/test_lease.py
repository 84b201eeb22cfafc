"""A lease ends when the supervisor assumes it, whatever the network does to its messages."""

from __future__ import annotations

import pytest

from tflaunch_worker.agent.lease import Lease

pytestmark = pytest.mark.unit

AHEAD = 5000.0  # of the supervisor's clock


class Clock:
    """A host's clock."""

    time = 100.0

    def now(self) -> float:
        """Return the time."""
        return self.time


@pytest.fixture
def clock() -> Clock:
    """The clock of the host."""
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    """A lease of 30 s, whose first message took 0.1 s."""
    lease = Lease(clock)  # type: ignore[arg-type]
    lease.begin(30.0, "boot", clock.time + AHEAD - 0.1)
    return lease


def test_a_launcher_on_a_busy_machine_may_be_slow_to_say_hello(clock: Clock) -> None:
    """For longer than `timeouts.connect` is where it is raised; one that has vanished is not waited for without end."""
    lease = Lease(clock)  # type: ignore[arg-type]
    clock.time += 300.0
    assert not lease.is_over
    clock.time += 600.0
    assert lease.is_over


def test_a_message_renews_it_from_when_it_was_sent(clock: Clock, lease: Lease) -> None:
    """Not from when it came: it may have waited while the network was cut."""
    sent = clock.time + 10.0
    clock.time += 25.0
    lease.renew(sent + AHEAD)
    assert sent + 30.0 <= lease.ends_at <= sent + 30.2


def test_a_delayed_message_does_not_shorten_it(clock: Clock, lease: Lease) -> None:
    """Messages of two links may come in another order."""
    clock.time += 10.0
    lease.renew(clock.time + AHEAD)
    ends_at = lease.ends_at
    lease.renew(clock.time + AHEAD - 9.0)
    assert lease.ends_at == ends_at


def test_another_supervisor_has_another_clock(clock: Clock, lease: Lease) -> None:
    """Which may be behind that of the first one."""
    clock.time += 20.0
    lease.begin(30.0, "another boot", 7.0)
    assert lease.ends_at == clock.time + 30.0


def test_it_is_over_in_the_end(clock: Clock, lease: Lease) -> None:
    """Without a message."""
    clock.time += 29.8
    assert not lease.is_over
    clock.time += 0.3
    assert lease.is_over
