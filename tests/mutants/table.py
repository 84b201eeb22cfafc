"""The planted bugs: at least one in every module of `tflaunch.core`, `tflaunch.agents` and `tflaunch_worker.agent`.

Where the simulator runs the code, an invariant finds the bug, which shows that the invariant can fail. The other
modules use real files, sockets, namespaces or programs; there a file of tests does.
"""

from collections.abc import Mapping

from mutants.edits import Edit, Invariant, Suite

MUTANTS: Mapping[str, Edit] = {
    # ---- core: which tasks live, and when they are restarted
    "a restart before the old attempt is gone": Edit(
        "core.policy.gang_alive", "_living(job, _GANG) > 0", "False", Invariant("I1", 1)
    ),
    "a single living task counts as none": Edit(
        "core.policy.gang_alive", "_living(job, _GANG) > 0", "_living(job, _GANG) > 1", Invariant("protocol", 1)
    ),
    "a job is given up although another task has trained": Edit(
        "core.restart_rules.is_start_failure",
        "any(each.step or each.epoch for each in reached)",
        "False",
        Suite("unit/test_diagnosis.py"),
    ),
    "a fence that is too short": Edit(
        "core.policy.fence", "plan.lease + plan.timeouts.grace + _FENCE_MARGIN", "plan.lease / 2", Invariant("I1", 17)
    ),
    "the fence is kept when the link is back": Edit(
        "core.hosts.on_link_restored",
        "phase=HostPhase.CONNECTED, fence_at=None",
        "phase=HostPhase.CONNECTED",
        Suite("unit/test_host_events.py"),
    ),
    "the fence begins with the first loss of the link": Edit(
        "core.hosts.on_link_lost",
        "fence_at=now + policy.fence(job.plan)",
        "fence_at=host.fence_at or now + policy.fence(job.plan)",
        Suite("unit/test_host_events.py"),
    ),
    "tasks of a lost host count as alive": Edit(
        "core.hosts.give_up",
        "task._replace(phase=TaskPhase.GONE, since=now",
        "task._replace(since=now",
        Invariant("I5", 3),
    ),
    "a spare host is in two places": Edit(
        "core.spares._swap",
        'state._replace(stands_for="", retry_at=retry_at',
        "state._replace(retry_at=retry_at",
        Invariant("I11", 46),
    ),
    "an attempt keeps the number of the one before": Edit(
        "core.phases._backing_off",
        "1 + max(task.attempt for task in job.tasks.values())",
        "job.attempt",
        Invariant("protocol", 1),
    ),
    "an elastic job does without its chief": Edit(
        "core.lost_hosts.can_do_without",
        'any(task.role != "worker" for task in lost)',
        "False",
        Suite("unit/test_smaller_gangs.py"),
    ),
    "a host of an elastic job is retried at once, however often it was lost": Edit(
        "core.lost_hosts.rest_after", "if failures <= 1:", "if failures:", Suite("unit/test_smaller_gangs.py")
    ),
    "a lost host is tried every half minute from the start": Edit(
        "core.lost_hosts.try_later", "max(pause, _SHORTEST_PAUSE)", "_LONGEST_PAUSE", Suite("unit/test_host_events.py")
    ),
    "a gang grows the moment a host is back": Edit(
        "core.lost_hosts.grows_at",
        "job.attempt_started_at + job.plan.elastic.retry",
        "job.attempt_started_at",
        Suite("unit/test_smaller_gangs.py"),
    ),
    # ---- core: the culprit and the exit code
    "the last failure is the culprit": Edit(
        "core.step._reconsider", "event.host == culprit.host or event.at >= culprit.time", "False", Invariant("I3", 91)
    ),
    "a late word about an early exit": Edit(
        "core.step._reconsider", "job._replace(culprit=earlier, exit_code=code)", "job", Invariant("I3", 86)
    ),
    "a later failure elsewhere takes the blame": Edit(
        "core.step._reconsider", "event.at >= culprit.time", "event.at < culprit.time", Invariant("I3", 86)
    ),
    "a lost host is blamed for an earlier failure of a task": Edit(
        "core.hosts._accuse_instead",
        "accused.host == culprit.host or since > job.failed_at + policy.BLAME_WINDOW",
        "accused.host == culprit.host",
        Suite("unit/test_host_events.py"),
    ),
    "a lost host is never blamed for what failed with it": Edit(
        "core.hosts._accuse_instead", "since > job.failed_at + policy.BLAME_WINDOW", "True", Invariant("I3", 180)
    ),
    "the exit code of a task ended by a signal lacks 128": Edit(
        "core.restart_rules.exit_code", "128 + culprit.signal", "culprit.signal", Invariant("I3", 8)
    ),
    "a program's exit code 124 looks like a limit": Edit(
        "core.restart_rules.exit_code",
        "1 if culprit.code in (EXIT_TIMEOUT, EXIT_INTERNAL) else culprit.code",
        "culprit.code",
        Invariant("I3", 83),
    ),
    "one task that succeeds is enough": Edit(
        "core.policy.has_succeeded", "are_enough and all(job.tasks[name]", "any(job.tasks[name]", Invariant("I3", 3)
    ),
    "a job that has succeeded exits with 1": Edit(
        "core.phases._drain", "exit_code=0", "exit_code=1", Invariant("I3", 1)
    ),
    # ---- core: budgets
    "one restart too many": Edit(
        "core.restart_budget.decide_restart", "else restart.max):", "else restart.max + 1):", Invariant("I4", 8)
    ),
    "failures alike are not counted": Edit(
        "core.restart_budget._count_alike", "budget.alike + 1 if is_same else 1", "1", Invariant("I4", 277)
    ),
    "progress is not seen": Edit(
        "core.restart_budget.Reached.is_beyond", "any(mine > theirs for", "any(False for", Invariant("I4", 194)
    ),
    "a preempted task is charged": Edit(
        "core.restart_rules.is_preemption",
        "code in _PREEMPTED or number == _TERM",
        "False",
        Suite("unit/test_supervisor.py"),
    ),
    # ---- core: the job goes on
    "TimePassed is not scheduled": Edit(
        "core.time_limits.next_deadline",
        "case Phase.BACKING_OFF if policy.are_hosts_settled(job)",
        "case Phase.BACKING_OFF if False",
        Invariant("I5", 200),
    ),
    "a spare host with a flaw takes over": Edit(
        "core.states.HostState.can_take_over", "is_whole and not self.flaw", "is_whole", Suite("unit/test_spares.py")
    ),
    "a host that was replaced keeps its tasks": Edit(
        "core.job_state.Job.places", 'if host.stands_for not in ("", name)', "if False", Suite("unit/test_spares.py")
    ),
    "fences are not scheduled": Edit(
        "core.time_limits.next_deadline", "*(host.fence_at for host in job.timed_hosts()), ", "", Invariant("I5", 10)
    ),
    "a task whose children live counts as gone": Edit(
        "core.states.TaskState.is_alive", "self.phase in LIVING", "self.phase in LIVING[:2]", Invariant("protocol", 55)
    ),
    "a job that is to end does not stop": Edit(
        "core.step._end",
        "job._replace(phase=Phase.STOPPING, deadlines=job.deadlines._replace(resume_at=None))",
        "job._replace(deadlines=job.deadlines._replace(resume_at=None))",
        Invariant("I5", 28),
    ),
    "survivors are never killed": Edit(
        "core.policy.stop_grace", "return survivor_grace(plan)", "return 1e6", Invariant("I14", 8)
    ),
    "tasks that have just started are not stopped": Edit(
        "core.phases.stop", "if task.is_alive:", "if task.phase is TaskPhase.RUNNING:", Invariant("I14", 56)
    ),
    "an answer of the preflight is not noted": Edit(
        "core.preparation._has_answered", "state.awaits - {what}", "state.awaits", Invariant("I14", 8)
    ),
    "only the last host's ports are known": Edit(
        "core.preparation.on_ports_held", "{**job.ports, **event.ports}", "{**event.ports}", Invariant("I14", 8)
    ),
    "a state that is replaced is counted on": Edit(
        "core.job_state.StateTable.replaced", "if name in self", "if False", Invariant("I5", 5777)
    ),
    # ---- core: what enters, and what is replayed
    "an agent tells of what only a supervisor can know": Edit(
        "core.event_records.from_agent", "not in FROM_AGENTS", "not in _BY_KIND", Suite("unit/test_hostile_agents.py")
    ),
    "a field of 0 is taken for a missing one": Edit(
        "records.read_record", "data.get(name))", "data.get(name) or None)", Invariant("protocol", 25)
    ),
    "replayed steps have the time of the start": Edit(
        "core.replay.transitions",
        "step.step(job, event, now)",
        "step.step(job, event, job.started_at)",
        Invariant("I7", 26),
    ),
    "an event is not journaled": Edit(
        "store.journal.Journal.record",
        'entries = [{"kind": kind_of(type(event)), "now": now, **event._asdict()}]',
        'entries = [{"kind": kind_of(type(event)), "now": now, **event._asdict()}]\n'
        '    entries = [] if entries[0]["kind"] == "port_opened" else entries',
        Invariant("I7", 0),
    ),
    "times are rounded in the journal": Edit(
        "store.journal.Journal.record", '"now": now', '"now": round(now, 3)', Invariant("I7", 0)
    ),
    "a fence lacks hosts whose link is lost": Edit(
        "core.port_fence.admitted",
        "host.phase not in (HostPhase.DOWN, HostPhase.JOINING)",
        "host.phase is HostPhase.CONNECTED",
        Suite("unit/test_fence.py"),
    ),
    "a fence lacks the first of a host's addresses": Edit(
        "core.port_fence.admitted",
        "for address in host.addresses.split()}",
        "for address in host.addresses.split()[:1]}",
        Invariant("I10", 0),
    ),
    # ---- core: what the simulator does not see
    "whatever is stopped shows its stacks": Edit(
        "core.actions.StopTask",
        "with_stacks: bool = False",
        "with_stacks: bool = True",
        Suite("unit/test_supervisor.py::test_ctrl_c_gives_grace_a_second_one_kills_and_the_third_waits_for_nothing"),
    ),
    "an attempt starts before its checkpoint is in place": Edit(
        "core.phases._await_checkpoints",
        "job.hosts[host].awaits | {CHECKPOINT}",
        "job.hosts[host].awaits",
        Suite("features/checkpoints/test_checkpoint_copies.py"),
    ),
    "a training that began again from the start counts as resumed": Edit(
        "features.drill.verdict._Judgement._places",
        "elif first.first.step > first.began.step:",
        "elif first.first.step >= first.began.step:",
        Suite("features/drill/test_verdict.py"),
    ),
    "a reason may have any length": Edit(
        "core.events",
        "Reason = Annotated[str, Line(1000)]",
        "Reason = Annotated[str, Line(10**9)]",
        Suite("unit/test_hostile_agents.py"),
    ),
    "the lines of a stack are lost on their way to a terminal": Edit(
        "features.hang.evidence.Frame.write_json", "list(self)", "list(self)[:1]", Suite("features/hang/test_hang.py")
    ),
    "all but the first metric of a program are lost": Edit(
        "core.events.read_metrics", "metrics[:MOST_METRICS]", "metrics[:1]", Suite("unit/test_measuring.py")
    ),
    "what tasks use is lost": Edit(
        "core.states.read_measures", "return measures", "return {}", Suite("unit/test_measuring.py")
    ),
    "a command that cannot be executed is tried again": Edit(
        "core.step._on_not_started", "may_retry=False", "may_retry=True", Invariant("I4", 30)
    ),
    "a backoff lasts a hundred times as long": Edit(
        "core.phases._judge", "now + answer.wait", "now + 100 * answer.wait", Invariant("I14", 42)
    ),
    "the screen tells of the job before the step": Edit(
        "runtime.loop.Run._tell",
        "messages_about(before, event, self.job",
        "messages_about(before, event, before",
        Invariant("I13", 10),
    ),
    "the reason of a failed start names the environment": Edit(
        "tflaunch_worker.spawn.describe_start_failure",
        'f"command not found: {name!r}{remedy}"',
        'f"command not found: {name!r} in {command.env}{remedy}"',
        Invariant("I12", 51),
    ),
    "a process that has left its session is not found": Edit(
        "tflaunch_worker.agent.task_processes.TaskProcesses.look",
        "place.session == self.leader or self._marks <= procfs.environment_of(pid)",
        "place.session == self.leader",
        Invariant("I1", 81),
    ),
    "a command beside a task counts as the task": Edit(
        "tflaunch_worker.features.background.be_keeper",
        "linux.adopt_orphans()",
        "pass",
        Suite("features/exec/test_exec.py::test_a_command_does_not_count_as_the_task"),
    ),
    "a process in a session of its own is not told to end": Edit(
        "tflaunch_worker.agent.task_processes.TaskProcesses.signal_others",
        "linux.kill(pid, None, number)",
        "pass",
        Suite("agent/test_task_processes.py::test_each_process_gets_a_signal_once"),
    ),
    "helpers that clean up are killed with the others": Edit(
        "tflaunch_worker.process_ends.is_cleaner",
        "return bool(",
        "return False and bool(",
        Suite("agent/test_task_processes.py::test_a_helper_cleans_up_after_its_program"),
    ),
    "127.0.1.1 is taken for a way to another host": Edit(
        "core.preflight.name_problems",
        "is_loopback(address)",
        'address == "127.0.0.1"',
        Suite("unit/test_host_events.py"),
    ),
    "a machine takes one run more than it has slots": Edit(
        "features.queue.queue_order._room",
        "len(others) >= slots",
        "len(others) > slots",
        Suite("features/queue/test_queue_order.py"),
    ),
    "a record may be missing": Edit(
        "core.replay._check", "integer(number, number)", "integer(0, number)", Suite("unit/test_journal.py")
    ),
    "the memory of an earlier attempt counts": Edit(
        "core.annotations.Annotations.growth_of",
        "growth.attempt == task.attempt",
        "growth.attempt >= 0",
        Suite("features/memory/test_vitals.py"),
    ),
    "a hang at one place is tried as often as another failure": Edit(
        "core.restart_rules.failure_of_gang", "most=_HANGS", "most=ALIKE", Invariant("I4", 443)
    ),
    "a hang of an earlier attempt ends this one": Edit(
        "core.step._on_hung", "event.attempt != job.attempt or ", "", Invariant("I3", 298)
    ),
    "looks count that have seen a task only once": Edit(
        "features.hang.silence_watch.SilenceWatch._have_agreed",
        "and all(each.evidence.keys() == seen for each in last)",
        "",
        Suite("features/hang/test_silence.py"),
    ),
    "a job stalls while a task is debugged": Edit(
        "core.step._on_hung", " or policy.is_debugged(job)", "", Suite("unit/test_supervisor.py")
    ),
    # ---- agents
    "a terminal hears of the debugger of another task": Edit(
        "agents.calls.Calls.begin", "self._last += 1", "self._last = 1", Suite("features/debug/test_breakpoints.py")
    ),
    "an agent may say that its link is lost": Edit(
        "features.debug.debugger_relay.Debugging._left",
        "not in REASONS",
        "not in (*REASONS, LINK_LOST)",
        Suite("features/debug/test_breakpoints.py"),
    ),
    "a command gets input for which there is no room": Edit(
        "features.exec.command_relay._Command.tell",
        "self._unread + len(body) > WINDOW",
        "False",
        Suite("features/exec/test_command_relay.py"),
    ),
    "a file that a task leaves may have any size": Edit(
        "agents.output.Output.read",
        "offset + len(body) > self._most_bytes(task, attempt)",
        "self._most_bytes(task, attempt) < 0",
        Suite("unit/test_left_files.py"),
    ),
    "an answer without its fields is taken": Edit(
        "features.profile.profiler.profile",
        'fields.text(message, "problem")',
        'str(message["problem"])',
        Suite("features/profile/test_profiles.py"),
    ),
    "code is sent twice": Edit(
        "features.uploads.read_wanted", "len(wanted) < len(rests) or ", "", Suite("features/code/test_code.py")
    ),
    "output is taken twice": Edit(
        "agents.output.Output._read_bytes",
        "known = self._known(task, attempt, offset)",
        "known = offset",
        Invariant("I6", 58),
    ),
    "acknowledged before written": Edit(
        "agents.output.Output._read_bytes",
        "self._sink(task).write(task, attempt, body[known - offset :], since_known, written)",
        "self._note(task, attempt, end)\n"
        "        data, mailbox = body[known - offset :], self._words.mailbox\n"
        "        write = lambda: self._sink(task).write(task, attempt, data, since_known, lambda: None)\n"
        "        mailbox.call_at(mailbox.now() + 0.2, write)",
        Invariant("I6", 0),
    ),
    "an heir does not know what was kept": Edit(
        "agents.output.Output._known", "self._sink(task).kept(task, attempt) or 0", "0", Invariant("I6", 26)
    ),
    "an agent may tell of tasks that it was not asked for": Edit(
        "agents.replies.ExpectedReplies._check_names", "if unknown:", "if False:", Suite("unit/test_hostile_agents.py")
    ),
    "orders are not sent again over a new link": Edit(
        "agents.session.Session._read_greeting", "in self._outbox.begin_link()", "in ()", Invariant("I5", 1306)
    ),
    "orders that were not obeyed are forgotten": Edit(
        "agents.replies.CommandOutbox.forget", "self._waiting[0][0] <= obeyed", "True", Suite("unit/test_calls.py")
    ),
    "a host that cannot be reached counts as dead": Edit(
        "agents.reconnect.Reconnector._look_at",
        "if isinstance(error, AgentGoneError):",
        "if True:",
        Invariant("I1", 46),
    ),
    "a link that only delivers counts as sound": Edit(
        "agents.link_state.LinkHealth.why_lost", "unanswered >= self._lease / 2", "False", Suite("unit/test_stall.py")
    ),
    "a link over which messages come counts as silent": Edit(
        "tflaunch_worker.frames.Frames.look", "self.heard_at = self._loop.now()", "pass", Invariant("I1", 47)
    ),
    "hosts' clocks are taken for ours": Edit(
        "agents.link_state.HostClock.ours", "theirs - (most + least) / 2", "theirs", Invariant("I6", 0)
    ),
    "a part of a file counts as all of it": Edit(
        "store.left_files.LeftFileStore.lose",
        "self._incomplete.add(self._path_of(source, attempt))",
        "pass",
        Suite("unit/test_left_files.py"),
    ),
    "files are sent without waiting for receipts": Edit(
        "features.uploads.Upload._send_more", "self._room and", "", Suite("features/code/test_code.py")
    ),
    "a file of which a part has arrived is sent from its beginning": Edit(
        "features.uploads.pieces_of", "stream.seek(offset)", "pass", Suite("features/code/test_code.py")
    ),
    "a file of a checkpoint may lie below another": Edit(
        "features.checkpoints.checkpoint_link._read_checkpoint",
        "or any(leads_through(path, paths) for path in paths)",
        "",
        Suite("features/checkpoints/test_checkpoint_copies.py"),
    ),
    "an agent may say any number of things it was not asked": Edit(
        "features.rpc.AgentRpc._read", "len(self._heard) > _MOST_UNASKED", "False", Suite("unit/test_hostile_agents.py")
    ),
    "an earlier attempt's usage is shown": Edit(
        "runtime.usage_sampler.measure",
        "if session.has_started(task, one.attempt)",
        "",
        Suite("unit/test_hostile_agents.py"),
    ),
    "any part of a file counts as the one that was requested": Edit(
        "features.checkpoints.checkpoint_link.CheckpointLink._fetch_rest",
        "len(body) not in (0, min(PART, left))",
        "False",
        Suite("features/checkpoints/test_checkpoint_copies.py"),
    ),
    "an agent that answers slowly is waited for without end": Edit(
        "agents.snapshot._answer",
        "end = time.monotonic() + _PATIENCE",
        "end = time.monotonic() + 1e6",
        Suite("unit/test_hostile_agents.py"),
    ),
    "a pattern excludes only whole paths": Edit(
        "features.code.user_code._is_excluded",
        " or fnmatch.fnmatchcase(name, pattern)",
        "",
        Suite("features/code/test_code.py"),
    ),
    "a file that was edited before it was copied counts as the one that was offered": Edit(
        "features.code.user_code._copy", "[1] == file.sha256", '[1] != ""', Suite("features/code/test_code.py")
    ),
    # ---- agent: leases, links and orders
    "a lease that is never over": Edit(
        "tflaunch_worker.agent.lease.Lease.ends_at",
        "self._heard + self.seconds",
        "self._heard + 1e9",
        Invariant("I2", 46),
    ),
    "a message that was delayed renews the lease": Edit(
        "tflaunch_worker.agent.lease.Lease.renew",
        "max(self._heard, sent + self._ahead)",
        "self._loop.now()",
        Suite("unit/test_acceptor.py"),
    ),
    "an agent that outlives its client": Edit(
        "tflaunch_worker.agent.agent.Agent._link_lost",
        "self._lease.seconds == 0 or not self._lease.has_begun",
        "False",
        Invariant("I2", 72),
    ),
    "an agent does not wait for an heir": Edit(
        "tflaunch_worker.agent.agent.Agent._link_lost",
        "self._lease.seconds == 0 or not self._lease.has_begun",
        "True",
        Suite("agent/test_files.py::test_it_waits_for_another_link"),
    ),
    "a drained agent keeps a task that is ordered late": Edit(
        "tflaunch_worker.agent.agent.Agent._start_task",
        "if self._is_leaving:",
        "if False:",
        Suite("agent/test_agent.py::test_a_drained_agent_starts_no_further_task"),
    ),
    "orders are obeyed twice": Edit(
        "tflaunch_worker.agent.agent.Agent._is_new",
        "self._obeyed = max(number, self._obeyed)",
        "pass",
        Invariant("protocol", 26),
    ),
    "the first message of a connection is not checked": Edit(
        "tflaunch_worker.agent.daemon.Acceptor._open",
        "if kind in orders.FIELDS:",
        "if False:",
        Suite("unit/test_acceptor.py"),
    ),
    "events that a lost link has swallowed are not sent again": Edit(
        "tflaunch_worker.agent.supervisor_link.SupervisorLink.greet",
        "for _, frame in self._unseen)",
        "for _, frame in ())",
        Invariant("I5", 838),
    ),
    # ---- agent: tasks
    "a ladder without KILL": Edit(
        "tflaunch_worker.agent.task.Task._kill",
        "self._kill_members(self._processes.look()[0])",
        "pass",
        Invariant("I2", 28),
    ),
    "a task is gone while its children live": Edit(
        "tflaunch_worker.agent.task.Task._settle", "if not members:\n", "if True:\n", Invariant("I1", 9)
    ),
    "orphans are not looked for beside an attempt": Edit(
        "tflaunch_worker.orphans.kill_once", "return found, unknown", "return [], set()", Invariant("I1", 35)
    ),
    "orphans are not killed": Edit(
        "tflaunch_worker.orphans._kill",
        "return _is_orphan(pid, agent, is_held) and",
        "return False and",
        Invariant("I2", 25),
    ),
    "what was on its way is not sent again": Edit(
        "tflaunch_worker.agent.task_output.Stream.rewind",
        "self._sent = self._spool.released",
        "pass",
        Invariant("protocol", 95),
    ),
    "a gap in the output is not told": Edit(
        "tflaunch_worker.agent.task_output.Spool._drop", "self.end += size", "pass", Suite("unit/test_spool.py")
    ),
    "a file is left behind": Edit(
        "tflaunch_worker.agent.left_files.LeftFiles.bring",
        "        if not left:\n            stored()\n",
        "        stored()\n",
        Suite("agent/test_files.py::test_it_waits_for_another_link"),
    ),
    "a task does not know its directory": Edit(
        "tflaunch_worker.agent.task_env.TaskEnvironments.command",
        'env["TFLAUNCH_TASK_DIR"] = directory',
        "pass",
        Suite("agent/test_agent.py::test_a_task_has_a_clean_start"),
    ),
    "a port that is open is not reported": Edit(
        "tflaunch_worker.agent.network.ports.PortWatch._look",
        "self._schedule()",
        "pass",
        Suite("agent/test_fence.py::test_a_fence_does_not_count_as_a_task_that_listens"),
    ),
    "usage is reported for the first attempt": Edit(
        "tflaunch_worker.agent.agent.Agent._answer_measures",
        '"attempt": self._tasks[name].attempt',
        '"attempt": 0',
        Suite("agent/test_usage.py::test_only_what_lives_is_measured"),
    ),
    "a failure is known by the outermost frame": Edit(
        "tflaunch_worker.failures.innermost", "found[-1]", "found[0]", Suite("unit/test_failures.py")
    ),
    "an epoch that has drawn no bar yet has no step": Edit(
        "tflaunch_worker.agent.last_output._with_epoch",
        "epoch != shown.epoch + 1",
        "True",
        Suite("unit/test_failures.py"),
    ),
    "a bar of an evaluation goes on with the training": Edit(
        "tflaunch_worker.agent.last_output._with_bar",
        "return shown._replace(is_over=True)",
        "return shown",
        Suite("unit/test_failures.py"),
    ),
    "a crash counts as an exception that every task raises": Edit(
        "tflaunch_worker.failures.failure_signature",
        "failure is not None and failure.kind",
        "failure is not None",
        Suite("unit/test_failures.py"),
    ),
    "the speed of a training spans a restored checkpoint": Edit(
        "tflaunch_worker.agent.progress.ProgressStats._step",
        "self._moments.clear()",
        "pass",
        Suite("unit/test_progress_stats.py"),
    ),
    "a kill of another process explains a death": Edit(
        "tflaunch_worker.features.memory.oom.OomWatch._evidence",
        "self._kills <= len(self._named)",
        "not self._kills",
        Suite("features/memory/test_oom.py"),
    ),
    "output that nobody takes is taken for its end": Edit(
        "tflaunch_worker.features.exec.running_command.RunningCommand._read",
        "if self._untaken == WINDOW",
        "if False",
        Suite("features/exec/test_exec.py::test_a_slow_reader_delays_nobody"),
    ),
    "a task that waits at a breakpoint is not told to save": Edit(
        "tflaunch_worker.features.debug.breakpoints.HostBreakpoints._close",
        "self._tasks.pop(about).close(reason)",
        "self._tasks.pop(about)",
        Suite("agent/test_breakpoints.py"),
    ),
    "a feature forgets between two calls": Edit(
        "tflaunch_worker.agent.services.Services._find",
        "if name not in self._made and name in self._features:",
        "if name in self._features:",
        Suite("unit/test_services.py"),
    ),
    # ---- agent: its process and its host
    "an agent outlives its guard": Edit(
        "tflaunch_worker.agent.daemon._watch_signals",
        "if not ENDING.isdisjoint(os.read(reader, 4096)):",
        'if os.read(reader, 4096) == b"":',
        Suite("agent/test_task_processes.py::test_nothing_of_a_family_survives"),
    ),
    "an argument in an order may contain a NUL": Edit(
        "tflaunch_worker.agent.orders.word", "in value:", 'in "":', Suite("unit/test_hostile_agents.py")
    ),
    "the fence's own socket counts as a task's": Edit(
        "tflaunch_worker.agent.host.Host.watch_ports",
        ", self.fence.inodes)",
        ")",
        Suite("agent/test_fence.py::test_a_fence_does_not_count_as_a_task_that_listens"),
    ),
    "a process that executes another program is taken for a stranger": Edit(
        "tflaunch_worker.procfs.environment_of",
        'set(filter(None, file.read().split(b"\\0")))',
        'set(file.read().split(b"\\0"))',
        Suite("agent/test_task_processes.py::test_a_process_that_executes_another_program_may_belong_to_anybody"),
    ),
    "a child that the kernel does not list is missed": Edit(
        "tflaunch_worker.procfs.descendants",
        "if found == before:",
        "if True:",
        Suite("agent/test_task_processes.py::test_a_child_that_the_kernel_hides_once_is_found"),
    ),
    # ---- agent: ports and networks
    "ports that other programs have count as held": Edit(
        "tflaunch_worker.agent.task_ports.TaskPorts.hold", "if refused:", "if False:", Invariant("I14", 145)
    ),
    "a port is held so that TensorFlow cannot bind it": Edit(
        "tflaunch_worker.agent.network.ports._bind",
        "holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)",
        "pass",
        Suite("agent/test_fence.py::test_without_addresses_everybody_is_let_in"),
    ),
    "a fence admits the neighbours of an address": Edit(
        "tflaunch_worker.agent.network.fence._match_any",
        "value == ranges[-1][1] + 1",
        "value <= ranges[-1][1] + 2",
        Suite("unit/test_fence.py"),
    ),
    "a host knows only its loopback addresses": Edit(
        "tflaunch_worker.agent.network.netlink.interface_addresses",
        "found.add(address)",
        "pass",
        Suite("agent/test_fence.py::test_the_greeting_has_the_addresses_of_the_interfaces"),
    ),
    "an ordinary user's fence lets peers in before the task listens": Edit(
        "tflaunch_worker.agent.network.fence._drop",
        "_set_lowest_ttl(holder, _HIGHEST_TTL)",
        "pass",
        Suite("agent/test_fence.py::test_an_ordinary_user_fences_ports_on_new_kernels"),
    ),
    "a fence listens before it drops connections": Edit(
        "tflaunch_worker.agent.network.fence.Fence.guard",
        """            _drop(holder, self._program)  # first: tasks on other hosts may try to connect already
            holder.listen(_BACKLOG)""",
        """            holder.listen(_BACKLOG)
            _drop(holder, self._program)""",
        Suite("agent/test_fence.py::test_a_peer_that_connects_at_once_does_not_reach_the_holder"),
    ),
    "our own sockets count as listeners": Edit(
        "tflaunch_worker.agent.network.listening_sockets.ports",
        " if found.inode not in without",
        "",
        Suite("agent/test_fence.py"),
    ),
    "whoever calls counts as a peer": Edit(
        "tflaunch_worker.agent.network.peers.Listeners._hear",
        "heard == proof",
        "heard",
        Suite("agent/test_fence.py::test_a_peer_from_an_unknown_address_proves_that_it_belongs_to_the_run"),
    ),
    "tasks in a private network stay in that of the host": Edit(
        "tflaunch_worker.features.private_network.namespaces._make_namespaces",
        'linux.call_c("unshare", _NEW_NETWORK)',
        "pass",
        Suite("agent/test_private_network.py::test_only_tasks_reach_tasks"),
    ),
    "a network without a route counts as connected": Edit(
        "tflaunch_worker.features.private_network.pasta._is_connected",
        'if any(route.split()[1] == "00000000" for route in routes):',
        "if True:",
        Suite("agent/test_private_network.py::test_pasta_that_does_not_connect_is_ended"),
    ),
    # ---- agent: files and checkpoints
    "a file that has changed on its way is accepted": Edit(
        "tflaunch_worker.features.file_parts.ArrivingFiles.take",
        "is_last and file.sha256.hexdigest() != digest",
        "False",
        Suite("features/code/test_received_code.py"),
    ),
    "a file that arrives is not hashed": Edit(
        "tflaunch_worker.features.file_parts.ArrivingFile.append",
        "self.sha256.update(data[:written])",
        "pass",
        Suite("features/code/test_received_code.py"),
    ),
    "a listed file may lie behind a symbolic link": Edit(
        "tflaunch_worker.features.file_parts.open_inside",
        "os.open(parent, _DIRECTORY, dir_fd=inside)",
        "os.open(parent, _DIRECTORY & ~os.O_NOFOLLOW, dir_fd=inside)",
        Suite("features/files/test_collect.py"),
    ),
    "a pattern with two stars needs a directory": Edit(
        "tflaunch_worker.features.files.listed_files._with_shorter",
        "while rest and rest[0] == _ANY_DEPTH:",
        "while False:",
        Suite("features/files/test_collect.py"),
    ),
    "a checkpoint of an earlier attempt counts as new": Edit(
        "tflaunch_worker.agent.checkpoint_progress.newest",
        " and entry.stat().st_mtime >= since",
        "",
        Suite("features/checkpoints/test_checkpoint_orders.py"),
    ),
    "a checkpoint that TensorFlow has not finished is copied": Edit(
        "tflaunch_worker.features.checkpoints.saved_checkpoints._parts",
        "_STATE in names and _latest(directory) != prefix",
        "False",
        Suite("features/checkpoints/test_checkpoint_copies.py"),
    ),
    "a part of a checkpoint that cannot be stored is acknowledged": Edit(
        "tflaunch_worker.features.checkpoints.checkpoint_copies.CheckpointCopies.write_checkpoint",
        "problem = str(error)",
        "pass",
        Suite("features/checkpoints/test_checkpoint_orders.py"),
    ),
    "an agent answers a call of an earlier link": Edit(
        "tflaunch_worker.agent.calls.Call.is_open",
        "self._calls.open.get(self._number) is self",
        "True",
        Suite("unit/test_calls.py"),
    ),
    "a profile goes on when its link is lost": Edit(
        "tflaunch_worker.features.profile.profiles.HostProfiles.profile_task",
        "call.when_ended = cancel",
        "pass",
        Suite("features/profile/test_profiles.py"),
    ),
    # ---- store and tui: what the logs and the screen have of it
    "a line of ours continues one that a task has begun": Edit(
        "store.log_writer.TaskLog._open",
        'os.pread(file, 1, max(size - 1, 0)) in (b"", b"\\n")',
        "True",
        Suite("unit/test_task_log.py"),
    ),
    "nothing is known of output that was acknowledged and not stored": Edit(
        "store.log_sink.LogSink.kept", "0 if self._marks.has_earlier else None", "None", Suite("unit/test_measuring.py")
    ),
    "a full disk is not stated in the log": Edit(
        "store.log_writer.TaskLog._miss", "self._gap += size", "pass", Invariant("I6", 223)
    ),
    "later output of a task is shown before earlier output": Edit(
        "tui.backlog.Backlog.add", "elif not self._stored and (", "elif (", Invariant("I16", 163)
    ),
    # ---- the user's code
    "files that were edited before another supervisor came are asked for": Edit(
        "tflaunch_worker.features.code.received_code.Offer.offer_files",
        "(is_other and not files.is_being_placed)",
        "False",
        Suite("agent/test_files.py"),
    ),
    "files that were refused are never offered again": Edit(
        "tflaunch_worker.features.code.received_code.Offer.offer_files",
        "files.has_failed or",
        "",
        Invariant("I5", 5777),
    ),
    "tasks do not wait for the code": Edit(
        "core.policy.awaited_at_first", "plan.sync is not None and", "False and", Invariant("I15", 2)
    ),
}
