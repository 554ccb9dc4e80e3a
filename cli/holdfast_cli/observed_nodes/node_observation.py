"""One node of an observed run, from the first process to the last trace of it."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import redis

from holdfast_cli.checkpoints.location import primary_location
from holdfast_cli.control import has_ended
from holdfast_cli.errors import CommandError
from holdfast_cli.interruption import Interruption
from holdfast_cli.local_run.local_run import END_PATIENCE_S, TERM_PATIENCE_S
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.run_spec import run_spec
from holdfast_cli.local_run.stack import LocalStack
from holdfast_cli.local_run.store import connect
from holdfast_cli.local_run.supervised_folder import SupervisedFolder
from holdfast_cli.observed_nodes.membership import Membership
from holdfast_cli.observed_nodes.store_view import StoreView
from holdfast_cli.run_folder.ended import outcome_of
from holdfast_cli.run_folder.paths import RunPaths, node_folder
from holdfast_proto.run_files import run_key
from holdfast_proto.run_key import RunKeyFile
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import Incident, RunSpec

DAEMONS = 3
"""Nodes of a run that have a daemon: one leads, and two stand by."""
LOOK_S = 0.3
RENEW_S = 1.0
SILENCE_S = 60.0
"""Time from the first hello on this node after which nodes without ranks are named."""
ANNOUNCEMENT_PATIENCE_S = 0.5
"""Longest time by which an unreachable Redis holds up a signal to the launcher, or the end after it."""
STORE_TIMEOUT_S = 3.0
NO_CHECKPOINTS = "checkpoints"
"""Folder of checkpoints, relative to that of each node. Without --restore it stays empty."""

log = logging.getLogger(__name__)


class NodeObservation:
    """The agent of this node, and a daemon if few other nodes have one. Use it with ``with``.

    Entering it raises SettingsError for a setting that cannot work, InterruptionError after a signal, CommandError
    for anything else that a user can act on. After that nothing raises, except :meth:`look`.
    """

    folder: SupervisedFolder
    """What this node has on disk. Like the next one, it exists once the observation is entered."""
    stack: LocalStack
    """The processes of the agent and the daemon."""

    def __init__(
        self,
        options: LocalRunOptions,
        node: str,
        interruption: Interruption,
        runtime: Path | None = None,
        *,
        say: Callable[[str], None],
    ) -> None:
        """Prepare the observation. ``runtime``: folder for sockets; None: one that no other process knows.

        ``say`` prints a line for the user, when Redis is lost and when it is back. Another thread calls it.
        """
        assert options.redis_url is not None
        key_path = (options.run_key_file or run_key(options.directory, options.run)).absolute()
        self.options = replace(options, run_key_file=key_path)
        self._key_file = RunKeyFile(key_path, options.run)
        self.node = node
        self._interruption = interruption
        self._runtime = runtime
        self._say = say
        self._is_cut_off = False
        self._client = connect(options.redis_url, options.redis_password_file, timeout_s=STORE_TIMEOUT_S)
        self._membership = Membership(self._client, options.run, node, self._key_file)
        self._view: StoreView
        self._status: RunStatus | None = None
        self._last_status: RunStatus | None = None
        self._notes: list[str] = []
        self._has_daemon = False
        self._has_guard = False
        self._begun_s = time.monotonic()
        self._heard_s: float | None = None
        self._has_named_silent = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)

    def __enter__(self) -> "NodeObservation":
        options = self.options
        name = node_folder(options.run, self.node)
        self.folder = SupervisedFolder(options, node=self.node, name=name, runtime=self._runtime)
        self.stack = LocalStack(options, self.folder, check=self._interruption.check)
        try:
            self.stack.wait_for_redis()
            self._join()
            self.stack.begin_agent(self._is_agent_done)
            self._thread.start()
            self.stack.wait_for("agent")
        except redis.RedisError as error:
            self._close()
            raise CommandError(f"Redis at {options.redis_url} refused the run: {error}") from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def paths(self) -> RunPaths:
        """Paths of this node's part of the run."""
        return self.folder.paths

    def look(self) -> RunStatus | None:
        """Return the run as this node saw it last, or None while Redis is unreachable.

        Raises CommandError if a component gave up.
        """
        self.stack.raise_if_fatal()
        self.folder.note(self.stack.pids(), self.stack.endpoints())
        return self._status

    def notes(self) -> list[str]:
        """Return one line for each thing that a user should know."""
        return [*self.stack.notes(), *self._notes]

    def expect_end(self) -> None:
        """Announce the end of the ranks, so that it is no incident."""
        self._announce(partial(self._view.announce_end, END_PATIENCE_S))

    def launcher_ended(self, code: int) -> None:
        """Report that the launcher of this node has ended. ``code``: its exit code as in a shell."""
        self._announce(partial(self._view.tell_launcher_end, code))

    @property
    def last_status(self) -> RunStatus | None:
        """The run as this node saw it last, also while Redis is unreachable; None if it has never seen it."""
        return self._last_status

    def incidents(self) -> list[Incident]:
        """Return all incidents of the run, oldest first. Raises CommandError if Redis is unreachable."""
        try:
            return self._view.incidents()
        except redis.RedisError as error:
            raise CommandError(f"Redis at {self.options.redis_url} is unreachable: {error}") from None

    def _announce(self, publish: Callable[[], None]) -> None:
        """Publish an event, and give up soon if Redis is unreachable: nobody judges the run then."""

        def work() -> None:
            with suppress(redis.RedisError):
                publish()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(ANNOUNCEMENT_PATIENCE_S)

    def _join(self) -> None:
        folder = self.folder
        own = run_spec(
            self.options,
            nodes=self.options.nodes,
            checkpoints=self._checkpoints(),
            created_unix_s=folder.created_unix_s,
            instance=folder.instance,
        )
        spec = self._membership.join(own, self._interruption.check)
        self._view = StoreView(self._client, self.options.run, self.node, self._key_file.read().seal_of(spec.instance))
        if _settings_of(spec) != _settings_of(own):
            self._notes.append("the settings of this node differ from those of the first node, which count for the run")

    def _checkpoints(self) -> str:
        """Return the place of the run's checkpoints, which all nodes share."""
        options = self.options
        if not options.restore:
            return NO_CHECKPOINTS
        shared = options.directory.absolute() / options.run / "checkpoints"
        return primary_location(options.checkpoint_directory or str(shared))

    def _is_agent_done(self, code: int) -> bool:
        return code == 0 or (self._status is not None and has_ended(self._status))

    def _watch(self) -> None:
        """Renew the lease, look at the run, and start a daemon when it is this node's turn, until the end."""
        renew_at_s = 0.0
        while not self._ending.wait(LOOK_S):
            try:
                if time.monotonic() >= renew_at_s:
                    renew_at_s = time.monotonic() + RENEW_S
                    self._serve_run(self._membership.renew())
                self._status = self._view.status()
                self._last_status = self._status or self._last_status
                self._note_outage("")
            except redis.RedisError as error:
                self._note_outage(str(error))
                self._status = None
            except Exception:  # whatever it is, the launcher must continue, and the agent with it
                log.exception("unexpected error")

    def _note_outage(self, error: str) -> None:
        """Say once that Redis is lost, and once that it is back. ``error``: why it is unreachable; empty: it is not."""
        if bool(error) == self._is_cut_off:
            return
        self._is_cut_off = bool(error)
        if error:
            log.warning("Redis is unreachable: %s", error)
            self._say(
                f"Redis at {self.options.redis_url} is unreachable: the ranks of this node train on, and nothing is"
                " judged until it is back"
            )
        else:
            self._say("Redis is reachable again")

    def _serve_run(self, observing: list[str]) -> None:
        if not self._has_daemon and self.node in observing[:DAEMONS]:
            self._has_daemon = True
            self.stack.begin_daemon()
        if not self._has_guard and observing[:1] == [self.node] and self._knows_others(observing):
            self._has_guard = True
            self.stack.begin_guard()
        status = self._status
        if status is None or not status.ranks or status.generation:
            return
        self._heard_s = self._heard_s or time.monotonic()
        if time.monotonic() - self._heard_s > SILENCE_S and not self._has_named_silent:
            self._has_named_silent = True
            self._notes.append(silence_line(self.options.nodes, observing, self._view.silent_nodes(observing)))

    def _knows_others(self, observing: list[str]) -> bool:
        """Return whether this node knows all others, as far as they come. One guard is enough for all nodes."""
        return len(observing) >= self.options.nodes or time.monotonic() - self._begun_s > SILENCE_S

    def _close(self) -> None:
        """End what this node has started. Safe to call after a part of the start."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.stack.close(0.0 if self._interruption.count > 1 else TERM_PATIENCE_S)
        with suppress(redis.RedisError):
            self._membership.leave()
        self._client.close()
        self.folder.leave(outcome_of(self._last_status), self._last_status)


def silence_line(nodes: int, observing: list[str], silent: list[str]) -> str:
    """Return the line that says for what the run waits.

    ``nodes``: how many it has; ``observing``: names of those that observe it; ``silent``: those of them without a rank.
    """
    waits = f"no verdict is possible yet: {SILENCE_S:.0f} s after the first ranks, "
    if len(observing) < nodes:
        return f"{waits}{len(observing)} of {nodes} nodes run `holdfast observe`: {', '.join(observing)}"
    if silent:
        return f"{waits}no rank of {', '.join(silent)} has said hello: does the script call attach() there?"
    return f"{waits}some ranks have not said hello: does the script call attach() in every rank?"


def _settings_of(spec: RunSpec) -> RunSpec:
    """Return a spec without what always differs between nodes."""
    settings = RunSpec()
    settings.CopyFrom(spec)
    for field in ("created_unix_s", "instance", "checkpoint_directory", "versions"):
        settings.ClearField(field)
    return settings
