import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_agent import main
from holdfast_agent.main import Startup
from holdfast_agent.processes import agent_record
from holdfast_base import processes
from holdfast_base.processes import AgentError
from holdfast_proto import keys
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.agent_record_pb2 import AgentRecord, RankRecord
from tests.support.coroutines import PATIENCE_S
from tests.support.nodes import NODE, RUN, agent_options
from tests.support.run_keys import sealed_spec, write_key
from tests.support.store_server import StoreServer


def agent(folder: Path, server: StoreServer, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run an agent to its end."""
    (folder / "shm").mkdir(exist_ok=True)
    (folder / "run").mkdir(exist_ok=True)
    write_key(folder / "run", RUN)
    options = f"--run {RUN} --node {NODE} --redis {server.url} --directory {folder}/run"
    places = f"--runtime-directory {folder}/sockets --shm-directory {folder}/shm"
    command = [sys.executable, "-m", "holdfast_cli", "agent", *options.split(), *places.split(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S)


def publish(server: StoreServer, folder: Path, *command: str) -> store.RunSpec:
    spec = store.RunSpec(run=RUN, nodes=1, ranks_per_node=1, instance="i", checkpoints_kept=2)
    spec.command.extend(command or ["true"])
    spec.checkpoint_directory = f"{folder}/checkpoints"
    with server.client() as client:
        client.set(keys.spec(RUN), sealed_spec(spec))
    return spec


def port_in_use() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def line_of(done: "subprocess.CompletedProcess[str]") -> str:
    [line] = [line for line in done.stderr.splitlines() if line.startswith("holdfast")]
    assert "Traceback" not in done.stderr
    return line


def test_squatted_runtime_folder_is_refused_in_one_line(folder: Path, store_server: StoreServer) -> None:
    (folder / "sockets").mkdir()
    (folder / "sockets").chmod(0o777)
    done = agent(folder, store_server)
    assert done.returncode == ExitCode.CONFIGURATION
    assert line_of(done).endswith("with --runtime-directory")


def test_wrong_setting_is_one_while_no_rank_is_there(folder: Path, store_server: StoreServer) -> None:
    publish(store_server, folder)
    with port_in_use() as taken:
        done = agent(folder, store_server, "--metrics-port", str(taken.getsockname()[1]))
    assert done.returncode == ExitCode.CONFIGURATION
    assert "--metrics-port" in line_of(done)


def test_a_command_that_this_node_cannot_start_is_refused_before_a_rank_exists(
    folder: Path, store_server: StoreServer
) -> None:
    publish(store_server, folder, "python", f"{folder}/missing.py")
    done = agent(folder, store_server)
    assert done.returncode == ExitCode.CONFIGURATION
    assert line_of(done).startswith(
        f"holdfast agent: node {NODE} cannot train: {folder}/missing.py cannot be started: no such file"
    )
    assert not (folder / "checkpoints").exists()


def test_with_ranks_of_an_earlier_agent_the_same_failure_is_none_and_leaves_all_in_place(
    folder: Path, store_server: StoreServer
) -> None:
    spec = publish(store_server, folder)
    path = folder / "run" / f"node-{NODE}" / "record.pb"
    path.parent.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as rank, port_in_use() as taken:
        try:
            ranks = [RankRecord(rank=0, pid=rank.pid, start_ticks=processes.start_ticks(rank.pid))]
            start = store.StartGeneration(ranks=1, world_size=1, source=store.SOURCE_SEED)
            saved = AgentRecord(run=RUN, node=NODE, instance="i", generation=1, ranks=ranks, spec=spec, start=start)
            agent_record.save(path, saved)
            done = agent(folder, store_server, "--metrics-port", str(taken.getsockname()[1]))
            assert done.returncode == ExitCode.FAILED
            assert "--metrics-port" in line_of(done)
            assert rank.poll() is None
            assert agent_record.load(path) == saved
        finally:
            os.killpg(rank.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("error", "is_alone", "code"),
    [
        (AgentError("no such run"), True, ExitCode.CONFIGURATION),
        (AgentError("no such run"), False, ExitCode.FAILED),
        (OSError(24, "Too many open files"), True, ExitCode.FAILED),
    ],
)
def test_only_an_error_that_another_start_cannot_fix_prevents_another_start(
    error: Exception, is_alone: bool, code: int
) -> None:
    startup = Startup()
    startup.is_alone = is_alone
    assert startup.exit_code(error) == code


@pytest.mark.parametrize(("key", "problem"), [(None, "there is no key of run"), ("other" * 9, "cannot be trusted")])
async def test_an_agent_without_the_key_of_its_run_says_so_and_starts_nothing(
    folder: Path, store_server: StoreServer, monkeypatch: pytest.MonkeyPatch, key: str | None, problem: str
) -> None:
    monkeypatch.setattr(main, "SPEC_PATIENCE_S", 0.3)
    publish(store_server, folder)
    options = agent_options(folder / "run", folder, store_server.url)
    if key is not None:
        options.run_key.parent.mkdir()
        options.run_key.write_text(key)
        options.run_key.chmod(0o600)
    with pytest.raises(AgentError, match=problem) as caught:
        await main._find_spec(main._link(options), None, options)
    assert str(options.run_key) in str(caught.value)


async def test_an_agent_says_once_what_it_waits_for_and_in_the_end_what_to_do(
    folder: Path, store_server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main, "SPEC_PATIENCE_S", 1.0)
    options = agent_options(folder / "run", folder, store_server.url)
    with pytest.raises(AgentError, match="publish it with `holdfast publish`, or correct --run"):
        await main._find_spec(main._link(options), None, options)
    assert caplog.messages == [f"Redis at {store_server.url} knows no run {RUN} yet: the agent waits for it"]
    store_server.kill()
    caplog.clear()
    with pytest.raises(AgentError, match="start it, or correct --redis"):
        await main._find_spec(main._link(options), None, options)
    [line] = caplog.messages
    assert line.startswith(f"Redis at {store_server.url} cannot be used (")
    assert line.endswith("the agent tries again; ranks that train continue")
