"""The session with one agent: dispatches its frames (`_kinds`), and sends orders.

A session outlives its links: a lost link is replaced while the agent's lease runs. Commands are numbered and resent
until the agent has executed them; output continues at its byte offset.
"""

from collections.abc import Callable
from typing import Any

from tflaunch.agents import calls, output, replies
from tflaunch.agents.link_state import HostClock, LinkHealth, LinkState, Terms
from tflaunch.agents.reconnect import Reconnector
from tflaunch.core import event_records, events
from tflaunch.core.states import CODE, TOLD_BY_AGENTS
from tflaunch.mailbox import Mailbox
from tflaunch.records import read_record
from tflaunch.store.left_files import LeftFileStore
from tflaunch.store.log_sink import LogSink
from tflaunch.transport.base import AgentConnector, DelayTeller, Link
from tflaunch_worker import fields, wire
from tflaunch_worker.frames import Frames
from tflaunch_worker.readable import printable

_BEATS = 3  # keep-alives per heartbeat timeout: two may be late without harm
_LONGEST_REASON = 200
_MOST_MESSAGE = 4 * 1024 * 1024  # the longest message lists 50,000 files that a host lacks
_BEFORE_GREETING = ("superseded", "refused", "greeted")


class Session:
    """The session with the agent of one host."""

    def __init__(
        self,
        host: str,
        connector: AgentConnector,
        terms: Terms,
        mailbox: Mailbox,
        writer: LogSink,
        files: LeftFileStore,
        run_in_thread: Callable[[Callable[[], None]], object],
    ) -> None:
        """Prepare a session with the agent on ``host``, without connecting."""
        self.host = host
        self._connector = connector
        self._reconnector = Reconnector(connector, mailbox, run_in_thread, self._use)
        self._terms = terms
        self._mailbox = mailbox
        self._output = output.Output(writer, files, self._acknowledge_soon, self.ours, self._most_bytes)
        self._state = LinkState.CLOSED
        self._is_recalling = False
        """What an earlier supervisor did is replayed, without doing it again."""
        self._is_resuming = False
        """The agent of an earlier supervisor is looked for, and has not greeted yet."""
        self._is_leaving = False
        self._is_acknowledging = False
        self._link: Link
        self._frames: Frames | None = None
        self._code: calls.UserCode | None = None  # while it is sent
        self._stop_upload: Callable[[], None] = lambda: None
        self.calls = calls.Calls(self._send)
        self._kinds: dict[str, calls.Take] = {
            "superseded": lambda *_: mailbox.put(events.Superseded(host)),
            "refused": self._read_refusal,
            "greeted": self._read_greeting,
            "alive": self._read_pulse,
            **dict.fromkeys(output.KINDS, self._output.read),
            **dict.fromkeys(calls.KINDS, self.calls.take),
        }
        # It tells from the thread that connects, so its words go through the mailbox.
        if isinstance(connector, DelayTeller):
            connector.tell_delay(lambda *delay: mailbox.call(lambda: self._note_delay(*delay)))
        self._forget_agent()

    def _forget_agent(self) -> None:
        """Reset the state of one agent: the next one numbers from the start."""
        self._health = LinkHealth(self._terms.heartbeat, self._terms.lease)
        self._outbox = replies.CommandOutbox(self._terms.lease > 0)
        self._expected = replies.ExpectedReplies(self._mailbox.now())
        self._event_cursor = replies.EventCursor()
        self._end_upload()
        self._clock = HostClock()

    @property
    def is_open(self) -> bool:
        """Whether the agent is connected, or may be reconnected."""
        return self._state is not LinkState.CLOSED

    @property
    def is_linked(self) -> bool:
        """Whether there is a link to the agent."""
        return self._frames is not None

    @property
    def is_greeted(self) -> bool:
        """Whether the agent has greeted over the current link, so that it takes commands."""
        return self._state is LinkState.CONNECTED

    @property
    def silence(self) -> float | None:
        """Seconds since data last arrived from the agent, None without a link."""
        return None if self._frames is None else self._mailbox.now() - self._frames.heard_at

    # ---- reaching the agent

    def join(self, link: Link | None = None) -> None:
        """Start an agent, or use a link; `HostJoined` or `HostUnreachable` follows."""
        self._begin()
        if link is not None:
            self._use(link)
        elif not self._is_recalling:
            self._reconnector.start(self._unreachable)

    def _begin(self) -> None:
        self.abandon()
        self._forget_agent()
        self._state = LinkState.STARTING

    # ---- taking over from a supervisor that was killed

    def begin_recall(self) -> None:
        """Replay what an earlier supervisor did without doing it again, until `resume`."""
        self._is_recalling = True
        self._begin()

    def recall(self, event: events.Event) -> None:
        """Replay an event of this host that the earlier supervisor recorded."""
        match event:
            case events.HostJoined():
                self._state = LinkState.RECONNECTING
            case events.HostUnreachable() | events.HostLost():
                self._state = LinkState.CLOSED
            case events.HostPrepared(what=what) | events.HostRefused(what=what) if what not in TOLD_BY_AGENTS:
                pass  # a watcher has said it
            case _ if isinstance(event, events.AgentEvent) and self._state.has_joined:
                self._event_cursor.recall()

    def resume(self) -> None:
        """Reconnect to the agent of the earlier supervisor, if there should be one."""
        self._is_recalling, self._is_resuming = False, self.is_open
        if self._state is LinkState.RECONNECTING:
            self._seek("its supervisor was killed, and another one took over")
        elif self.is_open:  # the earlier supervisor may not have started it
            self._reconnector.find_or_start(self._unreachable)

    # ---- the link

    def _note_delay(self, reason: str, is_held: bool = False) -> None:
        if self._state in (LinkState.STARTING, LinkState.RECONNECTING):
            self._mailbox.put(events.HostDelayed(self.host, printable(reason), is_held))

    def _seek(self, lost: str) -> None:  # `lost`: why the link was lost
        self._mailbox.put(events.LinkLost(self.host, lost))
        self._reconnector.find(self._gone, lambda why: self._note_delay(f"{lost}; {why}"))

    def _unreachable(self, reason: str) -> None:
        self._state = LinkState.CLOSED
        self._mailbox.put(events.HostUnreachable(self.host, printable(reason)))

    def _gone(self, reason: str, is_faulty: bool = False) -> None:
        self._state = LinkState.CLOSED
        self._mailbox.put(events.HostLost(self.host, printable(reason) or "it ended unexpectedly", is_faulty))

    def _use(self, link: Link) -> None:
        self._link = link
        self._frames = Frames(link.socket, self._mailbox, self._read, self._lose, _MOST_MESSAGE)
        self._frames.violated = self._punish
        self._health.note_link(self._mailbox.now(), self._event_cursor.seen)
        terms = self._terms._asdict()
        del terms["heartbeat"], terms["clock"]
        self._say("hello", protocol=wire.PROTOCOL, seen=self._event_cursor.seen, **terms, **self._time())
        if self._terms.lease > 0:
            self._beat(self._frames)

    def _time(self) -> dict[str, object]:
        return {"clock": self._terms.clock, "sent": self._mailbox.now()}

    def _beat(self, frames: Frames) -> None:
        """Send a keep-alive and check for the agent's, repeatedly until this link is lost."""
        if self._frames is frames:
            frames.look()  # if we were busy, its messages may have arrived but not been read
        if self._frames is not frames:
            return
        now = self._mailbox.now()
        reason = self._health.why_lost(now, frames.heard_at, self._state.has_joined)
        if reason:
            self._lose(reason)
            return
        if self.is_greeted:
            self._health.asked_at = now
            self._say("keep_alive", **self._time())
        self._mailbox.call_at(now + self._terms.heartbeat / _BEATS, lambda: self._beat(frames))

    def _lose(self, reason: str) -> None:
        """Close this link and reconnect, as the agent may be alive."""
        self._health.note_loss(self._mailbox.now(), self._event_cursor.seen, self.is_greeted)
        self._hang_up()
        if self._is_leaving:  # the agent closes the link as its last act: nothing is to be restored
            self._connector.end()
            self._state = LinkState.CLOSED
        elif given_up := self._health.why_given_up(reason):
            self._gone(given_up)
        elif self._state.has_joined:
            self._seek(printable(reason))
        else:
            self._reconnector.explain(reason, self._unreachable)

    def _punish(self, reason: str) -> None:
        """Give up the link after a violation of the protocol, the host after several.

        A host given up is not waited for: a correct agent never breaks the protocol, and its tasks end with the lease.
        Another agent starts on that host only when the lock there is free.
        """
        too_many = self._health.note_violation()
        reason = f"its agent broke the protocol: {reason}"
        if self._state.has_joined and not self._is_leaving and too_many:
            self._reconnector.stop()
            self._hang_up()
            self._gone(f"{reason}; it did that {too_many} times", is_faulty=True)
        else:
            self._lose(reason)

    # ---- sending

    def order(self, kind: str, body: bytes = b"", /, **about: Any) -> None:
        """Send a command, which the agent executes exactly once, whatever links are lost."""
        self._expected.note(kind, about)
        frame = self._outbox.add(kind, body, **about)
        if self.is_greeted:
            self._send(frame)

    def order_if_new(self, kind: str, body: bytes) -> None:
        """Send a command with a body, such as addresses, unless the agent has the same."""
        if body != self._outbox.last_bodies.get(kind):
            self.order(kind, body)

    def request(self, kind: str, **about: Any) -> None:
        """Send an order once, without an answer, if the agent is connected."""
        if self.is_greeted:
            self._say(kind, **about)

    def send_files(self, code: calls.UserCode) -> None:
        """Send the user's code to the host; `HostPrepared` or `HostRefused` will follow."""
        self._expected.has_offered_files = True
        if self._code is None:
            self._code = code
            if self.is_greeted:
                self._stop_upload = code.upload(self.calls.begin, self._refuse_files)

    def leave(self) -> None:
        """Ask the agent to stop its tasks and exit; the session closes when it has."""
        self._is_leaving = True
        if self._frames is None and not self._is_resuming:
            self.abandon()
        elif self.is_greeted:
            self._say("leave", grace=0)

    def abandon(self) -> None:
        """Stop without waiting: the agent has exited, or will when its lease expires."""
        self._reconnector.stop()  # a thread may be connecting: its link is closed when it comes
        self._outbox.forget()
        self._hang_up()
        self._state = LinkState.CLOSED

    def _hang_up(self) -> None:
        if self._frames is not None:
            self._frames.close()
            self._link.close()
        self._frames = None
        if self.is_greeted:
            self._state = LinkState.RECONNECTING
        self.calls.lose()  # calls, unlike orders, are answered over their link or not at all

    def _say(self, kind: str, **about: object) -> None:
        self._send((wire.encode({"kind": kind, **about}),))

    def _send(self, frame: calls.Frame) -> None:
        if self._frames is not None:
            self._frames.send(*frame)

    # ---- receiving

    def _read(self, message: dict[str, Any], body: bytes) -> None:
        kind = message["kind"]
        if not self.is_greeted and kind not in _BEFORE_GREETING:
            raise ValueError(f"{kind[:40]!r} came before its greeting")
        self._kinds.get(kind, self._read_event)(message, body)

    def _read_refusal(self, message: dict[str, Any], body: bytes) -> None:
        raise ValueError(f"it refused a command: {str(message.get('reason'))[:_LONGEST_REASON]}")

    def _read_event(self, message: dict[str, Any], body: bytes) -> None:
        number = fields.integer(message, "seq", 1)
        event = event_records.from_agent(self.host, message)
        self._expected.check(event)
        # Sent again over a new link, because our acknowledgement was lost with the old one. Checked all the same: a
        # message that was refused once must not be accepted because it comes again.
        if number <= self._event_cursor.seen:
            return
        self._expected.count_event(self._mailbox.now())
        if isinstance(event, events.TaskStarted | events.TaskExited):
            event = event._replace(at=self._clock.ours(event.at))
        elif isinstance(event, events.HostPrepared | events.HostRefused) and event.what == CODE:
            self._end_upload()
        # Counted here, acknowledged when the journal has it (`recorded`): in between, a supervisor that dies leaves it
        # to the agent, which sends it to the next one.
        self._event_cursor.note(event, number)
        self._mailbox.put(event)

    @property
    def started_attempts(self) -> list[tuple[str, int]]:
        """The task and number of each attempt that this agent was asked to start."""
        return list(self._outbox.starts)

    def _most_bytes(self, source: str, attempt: int) -> float:
        return self._expected.most_bytes(source, attempt)  # of the present agent

    def has_started(self, task: str, attempt: int) -> bool:
        """Return whether the agent was asked to start an attempt, and may report about it."""
        return self._expected.has_started(task, attempt)

    def _read_greeting(self, message: dict[str, Any], body: bytes) -> None:
        pulse, greeting = self._pulse_in(message), read_record(replies.Greeting, message)
        if self.is_greeted:
            raise ValueError("it greeted twice")
        if self._state.has_joined:
            self._mailbox.put(events.LinkRestored(self.host, greeting.is_leaving))
        else:
            self._mailbox.put(events.HostJoined(self.host, greeting.addresses, greeting.no_way_out, greeting.gpus))
        self._state = LinkState.CONNECTED
        self._is_resuming = False
        # If the agent has no stream of an attempt, it never started it, or its output is acknowledged to the end.
        for task, attempt in self._outbox.silent_attempts(pulse.obeyed, greeting.streams):
            self._output.end(task, attempt)
        if not self._event_cursor.seen:
            self._say("keep_alive", **self._time())  # a starting agent answers late, which makes a poor clock sample
        self._take_pulse(pulse)
        # Orders before calls: a call may be about a task that an order starts.
        for frame in self._outbox.begin_link():
            self._send(frame)
        self.calls.open()
        if self._code is not None:
            self._stop_upload = self._code.upload(self.calls.begin, self._refuse_files)
        if self._is_leaving:
            self._say("leave", grace=0)

    def _refuse_files(self, reason: str) -> None:
        self._end_upload()
        self._mailbox.put(events.HostRefused(self.host, CODE, printable(reason)))

    def _end_upload(self) -> None:
        self._stop_upload()
        self._code = None

    def _read_pulse(self, message: dict[str, Any], body: bytes) -> None:
        self._health.note_pulse()
        self._take_pulse(self._pulse_in(message))

    def _pulse_in(self, message: dict[str, Any]) -> replies.Pulse:
        return replies.read_pulse(message, self._outbox.last, self._mailbox.now())

    def _take_pulse(self, pulse: replies.Pulse) -> None:
        """Discard the commands that were executed, and compare the clocks."""
        self._health.note_answer(pulse.sent)
        self._clock.compare(pulse.sent, pulse.time, self._mailbox.now())
        self._outbox.forget(pulse.obeyed)

    def ours(self, theirs: float) -> float:
        """Convert a time of the agent's clock to ours."""
        return self._clock.ours(theirs)

    def recorded(self, event: events.Event) -> None:
        """Note that an event is in the journal, so that its agent may discard it."""
        if self._event_cursor.record(event):
            self._acknowledge_soon()

    def _acknowledge_soon(self) -> None:
        """Send one acknowledgement for everything read in one round of the loop."""
        if not self._is_acknowledging:
            self._is_acknowledging = True
            self._mailbox.call(self._acknowledge)

    def _acknowledge(self) -> None:
        self._is_acknowledging = False
        if not self.is_greeted:
            return  # acknowledged over the next link instead
        self._say("acknowledge", seen=self._event_cursor.recorded, streams=self._output.take_notes())
