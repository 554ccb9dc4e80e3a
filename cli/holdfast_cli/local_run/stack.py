"""The processes of a local run: Redis, daemon, agent and guard, and what the guard has found."""

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import redis

from holdfast_cli.errors import CommandError
from holdfast_cli.local_run import command_lines
from holdfast_cli.local_run.component import Component, ComponentKeeper, ComponentSpec
from holdfast_cli.local_run.redis_server import UMASK, answers, find_server, server_command
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.local_run.store import connect, publish_run
from holdfast_cli.local_run.supervised_folder import SupervisedFolder
from holdfast_cli.run_folder.paths import empty_redis_data, set_aside_redis_data
from holdfast_cli.run_folder.sweep import MARKER
from holdfast_proto.endpoint import Endpoint, read_endpoint
from holdfast_proto.run_files import process_log, run_key
from holdfast_proto.run_key import RunKeyFile
from holdfast_proto.v1.store_pb2 import RunSpec

_SHOWN = 5
_LARGEST_READ_BYTES = 1 << 20


class GuardFindings:
    """Follows the log of a guard. Lines of an earlier run of the same name are left out."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        with suppress(OSError):
            self._offset = log.stat().st_size
        self._rest = b""
        self._newest: deque[str] = deque(maxlen=_SHOWN)

    def newest(self) -> list[str]:
        """Return the newest lines about checkpoints that are not good, oldest first."""
        with suppress(OSError), self._log.open("rb") as stream:
            if self._offset > os.fstat(stream.fileno()).st_size:  # a log that was too large is emptied, and begins anew
                self._offset, self._rest = 0, b""
            stream.seek(self._offset)
            data = stream.read(_LARGEST_READ_BYTES)
            self._offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._newest.extend(filter(None, map(_finding, lines)))
        return list(self._newest)


def _finding(line: bytes) -> str:
    """Return what a line of the log says about a checkpoint that is not good; else an empty text."""
    try:
        found = json.loads(line)
        return f"guard: {found['line']}" if found["outcome"] != "good" else ""
    except (ValueError, KeyError, TypeError, RecursionError):  # its own log messages are no JSON
        return ""


AGENT_PATIENCE_S = 150.0
"""Time in which the agent of an ended run commits the last checkpoint."""
START_PATIENCE_S = 60.0
FOREIGN_PATIENCE_S = 5.0
"""Longest wait for a Redis that --redis names: it should run already."""
_LOOK_S = 0.02


def never(_: int) -> bool:
    """Return False: the component is started again after any exit code."""
    return False


class LocalStack:
    """Brings the processes up in order and keeps them up.

    ``check`` is called while waiting. An exception from it ends the wait.
    """

    def __init__(self, options: LocalRunOptions, folder: SupervisedFolder, *, check: Callable[[], None]) -> None:
        self._options = options
        self._paths = folder.paths
        self._store_url = folder.store_url
        self._environment = {**_threads(options.ranks), **options.environment, MARKER: folder.instance}
        self._check = check
        self._keeper = ComponentKeeper()
        self._guard_findings = GuardFindings(process_log(folder.paths.directory, "guard"))

    def start(self, spec: RunSpec, *, is_agent_done: Callable[[int], bool]) -> None:
        """Start what is missing, publish ``spec``, and return when the daemon and the agent serve.

        Raises CommandError, with the log to read, if one does not come up.
        """
        if self._options.redis_url is None:
            paths = self._paths
            empty_redis_data(paths)  # an earlier run's state is useless: its ranks are gone
            command = server_command(find_server(), paths.redis_data, paths.redis_socket)
            self._add("redis", command, umask=UMASK, begin_anew=partial(set_aside_redis_data, paths))
        self.wait_for_redis()
        self._publish(spec)
        self.begin_daemon()
        self.begin_agent(is_agent_done)
        self.begin_guard()
        for name in ("daemon", "agent"):
            self.wait_for(name)

    def begin_daemon(self) -> None:
        """Start the daemon, and do not wait for it."""
        self._add("daemon", command_lines.daemon_command(self._paths, self._options, self._store_arguments))

    def begin_agent(self, is_agent_done: Callable[[int], bool]) -> None:
        """Start the agent, and do not wait for it."""
        command = command_lines.agent_command(self._paths, self._options, self._store_arguments)
        self._add("agent", command, is_agent_done, signal.SIGINT)  # after SIGTERM it would wait for a last checkpoint

    def begin_guard(self) -> None:
        """Start the guard of the checkpoints, if the settings name their folder, and do not wait for it."""
        if self._options.guard is not None:
            self._add("guard", command_lines.guard_command(self._paths, self._options.guard), is_vital=False)

    def wait_for(self, name: str) -> None:
        """Return when "daemon" or "agent" serves. Raises CommandError, with the log to read, if it does not come up."""
        self._wait_until(partial(self._has_served, name), f"the {name} does not come up", name)

    @property
    def _store_arguments(self) -> list[str]:
        return command_lines.store_arguments(self._store_url, self._options.redis_password_file)

    def component(self, name: str) -> Component:
        """Return "redis", "daemon", "agent" or "guard". Raises KeyError if it is not ours."""
        return self._keeper.components[name]

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints of the daemon, the agent and the guard that run now."""
        paths = self._paths
        files = {"daemon": paths.daemon_endpoint, "agent": paths.agent_endpoint, "guard": paths.guard_endpoint}
        found = {name: (self._keeper.components.get(name), read_endpoint(path)) for name, path in files.items()}
        return {
            name: endpoint
            for name, (component, endpoint) in found.items()
            if component is not None and endpoint is not None and component.pid == endpoint.pid
        }

    def pids(self) -> dict[str, int]:
        """Return component -> pid of those that are up."""
        return {name: component.pid for name, component in self._keeper.components.items() if component.pid}

    def notes(self) -> list[str]:
        """Return one line for each component that was started again or is down, and for each finding of the guard."""
        return [*self._keeper.notes(), *self._guard_findings.newest()]

    def raise_if_fatal(self) -> None:
        """Raise SettingsError if a component gave up."""
        self._keeper.raise_if_fatal()

    def close(self, patience_s: float) -> None:
        """End all processes, the newest first: with a signal, then with SIGKILL after ``patience_s``.

        An agent that saves the state of another launcher's ranks may take longer, to write the last checkpoint.
        """
        saves = self._options.restore and patience_s > 0
        self._keeper.close(patience_s, agent=AGENT_PATIENCE_S if saves else patience_s)

    def _has_served(self, name: str) -> bool:
        return name in self.endpoints() or self.component(name).done  # a very short run has ended by now

    def _add(
        self,
        name: str,
        command: list[str],
        is_final: Callable[[int], bool] = never,
        end_signal: signal.Signals = signal.SIGTERM,
        umask: int = -1,
        *,
        is_vital: bool = True,
        begin_anew: Callable[[], str] | None = None,
    ) -> None:
        self._keeper.add(
            ComponentSpec(
                name=name,
                command=command,
                log=process_log(self._paths.directory, name),
                environment=self._environment,
                is_final=is_final,
                end_signal=end_signal,
                umask=umask,
                is_vital=is_vital,
                begin_anew=begin_anew,
            )
        )

    def _publish(self, spec: RunSpec) -> None:
        client = connect(self._store_url, self._options.redis_password_file)
        try:
            key_file = RunKeyFile(run_key(self._paths.directory, spec.run), spec.run)
            publish_run(client, spec, key_file, key_file.replace)
        except redis.RedisError as error:
            raise CommandError(f"Redis at {self._store_url} refused the run: {error}") from None
        finally:
            client.close()

    def wait_for_redis(self) -> None:
        """Return when Redis answers. Raises CommandError, which names --redis, if it does not."""
        ours = self._options.redis_url is None
        self._wait_until(
            lambda: answers(self._store_url, self._options.redis_password_file),
            "our Redis does not come up" if ours else f"no Redis answers at {self._store_url}: check --redis",
            "redis" if ours else None,
            START_PATIENCE_S if ours else FOREIGN_PATIENCE_S,
        )

    def _wait_until(
        self,
        condition: Callable[[], bool],
        complaint: str,
        component: str | None,
        patience_s: float = START_PATIENCE_S,
    ) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            self._check()
            self.raise_if_fatal()
            if time.monotonic() > deadline:
                raise CommandError(complaint + (self._last_line(component) if component else ""))
            time.sleep(_LOOK_S)

    def _last_line(self, component: str) -> str:
        path = process_log(self._paths.directory, component)
        return f": {self.component(component).newest_line()} (see {path})"


def _threads(ranks: int) -> dict[str, str]:
    """Return what torchrun sets: by default, each of several ranks takes one core for OpenMP."""
    return {} if ranks <= 1 or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
