"""What the rendezvous takes from torchrun's arguments, and what it refuses."""

import dataclasses
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousParameters

from holdfast_torchrun import node_companion
from holdfast_torchrun.node_companion import NodeCompanion, observe_command
from holdfast_torchrun.rendezvous_settings import RendezvousSettings, find_address, read_settings
from tests.support.run_keys import SECRET, write_key


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(
    run: str = "r", endpoint: str = "redis://store:6379", least: int = 2, most: int = 3, **conf: str
) -> RendezvousSettings:
    return read_settings(RendezvousParameters("holdfast", endpoint, run, least, most, **conf))


def test_what_is_given_counts() -> None:
    found = settings(node="n7", join_timeout="30", redis_password_file="p")
    assert (found.run, found.nodes, found.node, found.join_timeout_s) == ("r", 2, "n7", 30.0)
    assert (found.password_file, found.is_alone, found.key) == (Path("p"), False, None)
    assert (found.shrink_to, found.resize_after_s) == (2, 60.0)


def test_a_job_that_may_have_fewer_nodes_has_spares_once_a_lost_one_is_back() -> None:
    found = settings(least=3, most=3, shrink_to="2", resize_after="0")
    assert (found.nodes, found.shrink_to, found.resize_after_s, found.has_spares) == (3, 2, 0.0, True)
    assert not settings(least=3, most=3).has_spares
    assert found.flags == {}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"run": "none"}, r"--rdzv-id is missing"),
        ({"run": "a/b"}, r"--rdzv-id: run name 'a/b'"),
        ({"endpoint": ""}, r"--rdzv-endpoint :"),
        ({"endpoint": "host:29400"}, r"--rdzv-endpoint .*redis://host:port"),
        ({"endpoint": "redis://:secret@host"}, r"--rdzv-endpoint: .* redis_password_file=FILE"),
        ({"node": "a b"}, r"--rdzv-conf node=a b"),
        ({"join_timeout": "soon"}, r"--rdzv-conf join_timeout=soon"),
        ({"join_timeout": "0"}, r"--rdzv-conf join_timeout=0: a number of seconds"),
        ({"resize_after": "-1"}, r"--rdzv-conf resize_after=-1: a number of seconds"),
        ({"shrink_to": "half"}, r"--rdzv-conf shrink_to=half: use a number from 1 to 1"),
        ({"shrink_to": "0"}, r"--rdzv-conf shrink_to=0: use a number from 1 to 1"),
        ({"shrink_to": "2"}, r"--rdzv-conf shrink_to=2: use a number from 1 to 1, fewer than the 2 nodes of --nnodes"),
        ({"shrink_to": "1", "least": 1}, r"--rdzv-conf shrink_to=1: a job of one node cannot have fewer"),
        ({"Checkpoint Every": "5"}, r"--rdzv-conf Checkpoint Every: NAME=VALUE"),
        ({"run_key_file": "absent"}, r"there is no key of run r at absent"),
    ],
)
def test_what_is_refused_names_the_argument(change: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        settings(**change)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_what_is_neither_ours_nor_torchs_is_a_flag_of_observe() -> None:
    found = settings(timeout="900", last_call_timeout="5", node="a", snapshot_every="5", console="false")
    assert found.flags == {"--snapshot-every": "5", "--console": "false"}
    words = observe_command(found)
    assert words[-3:] == ["--snapshot-every", "5", "--no-console"]
    assert words[words.index("--node") + 1] == "a"
    assert "--replica-address" not in words


@pytest.mark.parametrize(("local", "shown"), [("10.0.0.7", "10.0.0.7"), ("fd00::7", "[fd00::7]")])
def test_the_address_of_a_node_is_also_that_of_its_replica_snapshots(local: str, shown: str) -> None:
    words = observe_command(dataclasses.replace(settings(), local_address=local))
    assert words[words.index("--replica-address") + 1] == shown


def test_a_refusal_is_seen_although_the_output_ends_before_the_exit_code_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuses = "import os, sys, time; os.close(1); time.sleep(0.5); os._exit(2)"
    monkeypatch.setattr(node_companion, "observe_command", lambda _: [sys.executable, "-c", refuses])
    companion = NodeCompanion(settings(run="none", endpoint="", least=1, most=1))
    with pytest.raises(RendezvousError, match="Holdfast refuses a setting"):
        companion.enter_world()
    companion.end(1)


def test_one_node_needs_neither_a_name_nor_a_server() -> None:
    found = settings(run="none", endpoint="", least=1, most=1)
    assert found.is_alone
    assert found.run.startswith("torchrun-")  # a second start of `holdfast observe` must find the same run


def test_the_name_of_a_host_becomes_the_name_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "_gpu node-7.cluster")
    assert settings().node == "gpu-node-7.cluster"


def test_the_key_is_where_a_run_puts_it() -> None:
    Path("holdfast-runs").mkdir()
    path = write_key(Path("holdfast-runs"), "r")
    assert settings().key is not None
    path.chmod(0o644)
    with pytest.raises(ValueError, match="others can use this key"):
        settings()


def test_without_a_secret_key_all_nodes_have_the_same() -> None:
    Path("k").write_text(f"{SECRET}\n")
    Path("k").chmod(0o600)
    sealed = [one.meeting_key.seal.close("place", b"") for one in (settings(), settings(), settings(run_key_file="k"))]
    assert sealed[0] == sealed[1] != sealed[2]


def test_a_node_whose_name_is_unknown_has_the_address_towards_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "no-such-host.invalid")
    assert find_address(settings(endpoint="redis://127.0.0.1:1")) == "127.0.0.1"
    assert find_address(settings(endpoint="unix:///tmp/s")) == "localhost"
    monkeypatch.setattr("socket.getfqdn", lambda: "localhost")
    assert find_address(settings()) == "localhost"
