"""A running agent: its jobs, the tick that publishes the node's state, and its planned end.

Only a planned end cleans up: the run has ended, or a signal ends the agent. An agent that ends in any other way leaves
its ranks, its warm parent, the snapshots and the record in place, and the next agent adopts them.
"""

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from holdfast_agent import session
from holdfast_agent.blocking.stall_watch import StallWatch
from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.checkpoints.restore_sources import LOOKERS
from holdfast_agent.commands.command_runner import CommandRunner
from holdfast_agent.commands.node_checks import NodeChecks
from holdfast_agent.departure import Departure
from holdfast_agent.devices.device_watch import DeviceWatch, has_driver
from holdfast_agent.log_limits import limit_evidence, limit_logs
from holdfast_agent.movement.tree_watch import TreeWatch
from holdfast_agent.node import Node
from holdfast_agent.observer import Observer
from holdfast_agent.processes.containment import keep_going
from holdfast_agent.processes.parent_client import WarmParentClient
from holdfast_agent.rank_messages import RankMessages
from holdfast_agent.rank_supervisor import RankSupervisor
from holdfast_agent.reports.leader_watch import LeaderWatch
from holdfast_agent.reports.store_link import StoreLink
from holdfast_base import processes, redis_client
from holdfast_proto.endpoint import write_endpoint
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

TICK_S = 0.1
QUIET_PAUSE_S = 1.0
"""Time between two states of a node on which all ranks train: most of a healthy run's traffic is in these."""
PROMPT_PAUSE_S = 0.2
"""The same while a rank starts, stands still or ends."""
PROMPT_STATES_PER_S = 2560
"""All nodes of a run together send no more: when one rank hangs, the ranks of all nodes soon stand still."""
DRAIN_PATIENCE_S = 120.0
LEAVE_PATIENCE_S = 2.0

TICK_PAUSE_S = 0.5
"""Longest pause after a failed tick: after almost four seconds without a state the node would count as lost."""


@dataclass(frozen=True)
class Agent:
    """Runs the jobs of an agent, which share its parts."""

    node: Node
    link: StoreLink
    checkpoints: NodeCheckpoints
    supervisor: RankSupervisor

    async def run(self, metrics_port: int, on_serving: Callable[[], None], *, takes_over: bool) -> ExitCode:
        """Serve ranks and carry out commands until the run ends or a signal ends the agent; then clean up.

        ``on_serving`` is called once ranks can connect. ``takes_over``: an earlier agent of this start of the run
        was on this node. Raises OSError if the session socket or the endpoint file cannot be created.
        """
        node, options = self.node, self.node.options
        departure = Departure(node, options.preemption_grace_s, options.preemption_warnings)
        departure.listen()
        is_due = asyncio.create_task(departure.due.wait())
        node_checks = NodeChecks(node, self.link.now_ns)
        # If another launcher starts the ranks, it may do so at any time.
        is_free = not takes_over if node.observes else node.stopped
        check = node_checks.begin() if node.spec.checks_nodes and is_free else None
        if check is not None and node.observes:  # their launcher waits for this agent, and then starts ranks
            await asyncio.wait([check, is_due], return_when=asyncio.FIRST_COMPLETED)
        admit = Observer(node, self.supervisor).admit if node.observes else node.admit
        messages = RankMessages(node, self.checkpoints, self.link.emit)
        server = await session.serve(messages, node.errors, options.session_socket, admit)
        commands = CommandRunner(
            node,
            self.supervisor,
            self.checkpoints,
            self.link.emit,
            node_checks=node_checks,
            on_state=messages.give_start,
        )
        write_endpoint(options.endpoint_file, metrics_port)
        on_serving()
        tasks = [asyncio.create_task(job) for job in self._jobs(commands, check)]
        ends: list[asyncio.Future[Any]] = [is_due, commands.finished]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finish = commands.finished.result() if commands.finished.done() else store.FinishRun(outcome="terminated")
        log.info("ending: %s", finish.outcome)
        messages.refuse_start(finish.outcome)
        await commands.end_moves()
        await self._end(finish, departure.hurried)
        for job_or_end in (*tasks, *ends):
            await redis_client.end(job_or_end)
        await server.stop(grace=None)
        options.session_socket.unlink(missing_ok=True)
        options.endpoint_file.unlink(missing_ok=True)
        return ExitCode.SUCCESS if finish.succeeded else ExitCode.FAILED

    def _jobs(self, commands: CommandRunner, check: "asyncio.Task[None] | None") -> list[Coroutine[None, None, None]]:
        """Return the jobs that an agent does until it ends. An error in one ends no other.

        ``check``: the check of the node, before which no rank can be forked; None: there is none.
        """
        node, supervisor, link = self.node, self.supervisor, self.link

        async def fork_ranks() -> None:
            if check is not None:
                await asyncio.wait([check])  # the import of torch would slow it down
            await supervisor.parent.run(list(node.spec.command))

        def receive() -> Awaitable[None]:
            return link.receive_commands(supervisor.record.last_command, commands.handle, commands.refuse_entry)

        keep = functools.partial(keep_going, node.errors)
        jobs = [
            keep("events", link.send_events),
            keep("commands", receive),
            keep("tick", self.tick, longest_pause_s=TICK_PAUSE_S),
            keep("checkpoints", self._watch_checkpoints),
            keep("process_trees", TreeWatch(node).run),
            keep("stalls", StallWatch(node).run),
            keep("evidence", lambda: limit_evidence(node)),
        ]
        if node.spec.notify.HasField("heartbeat"):
            jobs.append(keep("heartbeat", LeaderWatch(node, link).run))
        if has_driver(node.options.system_root):
            watch = DeviceWatch(
                node.devices, node.errors, node.options.system_root, lambda _: supervisor.exits.explain_later()
            )
            jobs.append(keep("devices", watch.run))
        if node.observes:
            log.info("put this before the launcher: %s", node.options.observed_node(node.spec).shell_line())
        else:
            jobs.append(keep("rank_logs", lambda: limit_logs(node)))
            jobs.append(keep("warm_parent", fork_ranks))
        return jobs

    async def tick(self) -> None:
        """Let time pass for the ranks and publish the node's state, immediately if something has changed."""
        node, supervisor = self.node, self.supervisor
        last = time.monotonic()
        published_s, was_quiet = -math.inf, False
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(node.changed.wait(), TICK_S)
            now = time.monotonic()
            # While this agent was paused, the reports of its ranks waited. That time must not count as their stall.
            node.pass_time(min(now - last, 2 * TICK_S))
            last = now
            is_quiet = node.is_quiet
            # The first state after a trouble must not be late either: it says that the trouble is over.
            # After an outage of the store, a node that waits a second would seem gone for that long.
            is_calm = is_quiet and was_quiet and self.link.holds_state
            pause_s = QUIET_PAUSE_S if is_calm else prompt_pause_s(node.spec.nodes)
            if node.changed.is_set() or now - published_s > pause_s - TICK_S / 2:
                published_s, was_quiet = now, is_quiet
                node.changed.clear()
                supervisor.exits.note_cgroups()
                supervisor.record.save_if_due()
                await self.link.publish_state(node.state(ready=supervisor.parent.is_ready))

    async def _watch_checkpoints(self) -> None:
        inventory, saver = self.checkpoints.inventory, self.checkpoints.saver
        await inventory.refresh(saver.report_loss, lambda: self.node.must_look(LOOKERS))

    async def _end(self, finish: store.FinishRun, hurried: asyncio.Event) -> None:
        """Leave nothing behind: end the ranks, finish the checkpoints, remove the slots, dismiss the warm parent."""
        node, supervisor, link = self.node, self.supervisor, self.link
        patience_s = finish.patience_s or DRAIN_PATIENCE_S

        async def note_bad_loss() -> None:
            if finish.HasField("bad_loss") and node.saves:
                await self.checkpoints.saver.note_bad_loss(finish.bad_loss)

        async def drain() -> None:
            written = asyncio.create_task(self.checkpoints.saver.drain(patience_s))
            hurry = asyncio.create_task(hurried.wait())
            await asyncio.wait([written, hurry], return_when=asyncio.FIRST_COMPLETED)
            for task in (written, hurry):
                await redis_client.end(task)
            if not written.cancelled():
                written.result()

        async def remove() -> None:
            if self.checkpoints.replicas is not None:
                self.checkpoints.replicas.close()
            self.checkpoints.remove_snapshots()

        steps: list[Callable[[], Awaitable[None]]] = [
            supervisor.stop,
            note_bad_loss,
            drain,
            lambda: link.flush(patience_s=2.0),
            remove,
            lambda: _dismiss(supervisor.parent),
            link.withdraw,
        ]
        for step in steps:
            with node.errors.contained("end"):  # a step that fails must not prevent the next ones
                await step()
        node.options.parent_socket.unlink(missing_ok=True)
        node.options.record.unlink(missing_ok=True)


def prompt_pause_s(nodes: int) -> float:
    """Return the time between two states of a node that is not quiet, in a run of ``nodes``."""
    return min(QUIET_PAUSE_S, max(PROMPT_PAUSE_S, nodes / PROMPT_STATES_PER_S))


async def _dismiss(parent: WarmParentClient) -> None:
    """End the warm parent, by a request if it listens. While it imports it does not, and is killed."""
    pid, ticks = parent.pid, parent.start_ticks
    deadline = time.monotonic() + (LEAVE_PATIENCE_S if parent.is_ready else 0.0)
    with contextlib.suppress(OSError):
        await parent.leave()
    while processes.is_alive(pid, ticks) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    processes.kill_session(pid, ticks)
