"""Logs of ranks over HTTP: of any generation, and within bounds."""

import json
import urllib.error
from pathlib import Path

import pytest

from holdfast_daemon.console.ranks.generation_logs import read_end
from holdfast_proto import run_files
from holdfast_proto.run_files import GENERATIONS_LOGGED
from tests.support.console_server import SimulatedConsole

LOG = "/api/runs/llama-7b/ranks/3/log"


def write(folder: Path, generation: int, text: str, rank: int = 3) -> Path:
    path = run_files.rank_log(folder, generation, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def restart(console: SimulatedConsole) -> None:
    """Let rank 3 die, and all ranks begin the next generation."""

    def change() -> None:
        console.run.judge(3)
        console.run.recover()
        console.run.begin_generation()
        console.run.advance(1.0)

    console.on_loop(change)


def test_the_log_of_an_older_generation_tells_how_a_rank_died(console: SimulatedConsole, tmp_path: Path) -> None:
    write(tmp_path, 1, "ValueError: the reason\n")
    restart(console)
    write(tmp_path, 2, "again\n")
    write(tmp_path, 3, "of an earlier start of the run\n")
    newest = console.get(LOG)
    assert (newest["text"], newest["generation"], newest["newest_generation"]) == ("again\n", 2, 2)
    named = [name for name, incident in console.run.incidents.items() if incident.generation == 1]
    assert newest["generations"] == [
        {"generation": 2, "incidents": []},
        {"generation": 1, "incidents": sorted(named, reverse=True)},
    ]
    older = console.get(f"{LOG}?generation=1")
    assert (older["text"], older["generation"]) == ("ValueError: the reason\n", 1)
    assert older["path"] == str(run_files.rank_log(tmp_path, 1, 3))
    story = console.get(f"/api/runs/llama-7b/incidents/{named[-1]}")
    assert (story["generation"], story["culprits"]) == (1, [3])


def test_a_rank_that_has_not_reported_yet_has_its_older_logs(console: SimulatedConsole) -> None:
    console.on_loop(console.run.begin_generation)
    answer = console.get(LOG)
    assert answer["text"].endswith("rank 3: step 1999 done\n")
    assert (answer["generation"], answer["newest_generation"]) == (1, 2)


@pytest.mark.parametrize("generation", ["0", "2", "-1", "999999999999"])
def test_a_generation_that_has_not_begun_is_refused(console: SimulatedConsole, generation: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        console.request(f"{LOG}?generation={generation}")
    assert raised.value.code == 404
    error = json.loads(raised.value.read())["error"]
    assert error == f"run llama-7b has no generation {generation}: the newest is 1"


def test_a_log_that_another_node_kept_is_not_invented(console: SimulatedConsole, tmp_path: Path) -> None:
    restart(console)
    run_files.rank_log(tmp_path, 1, 3).unlink()
    answer = console.get(f"{LOG}?generation=1")
    assert answer["text"] == ""
    assert "`holdfast logs --rank 3 --generation 1`" in answer["note"]


def test_an_older_log_is_no_link_to_elsewhere(console: SimulatedConsole, tmp_path: Path) -> None:
    restart(console)
    (tmp_path / "secret").write_text("secret")
    log = run_files.rank_log(tmp_path, 1, 3)
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    assert console.get(f"{LOG}?generation=1")["text"] == ""
    assert [one["generation"] for one in console.get(LOG)["generations"]] == [2]


def test_only_the_newest_generations_are_offered(console: SimulatedConsole, tmp_path: Path) -> None:
    def begin_many() -> None:
        for _ in range(GENERATIONS_LOGGED + 10):
            console.run.begin_generation()
        console.run.advance(1.0)

    console.on_loop(begin_many)
    for generation in range(1, GENERATIONS_LOGGED + 11):
        write(tmp_path, generation, "x")
    offered = [one["generation"] for one in console.get(LOG)["generations"]]
    assert offered == list(range(GENERATIONS_LOGGED + 11, 10, -1))
    assert console.get(f"{LOG}?generation=1")["text"] == "x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("short\n", "short\n"),
        ("x" * 1000, "… " + "x" * 100),  # no line end at all
        ("x" * 1000 + "\n", "… " + "x" * 99 + "\n"),
        ("x" * 1000 + "\nend\n", "… " + "x" * 95 + "\nend\n"),  # the long line is not lost
        ("begin\n" + "y" * 59 + "\n" + "z" * 59 + "\n", "z" * 59 + "\n"),  # a cut line that is short is left out
        ("begin\n" + "y" * 99 + "\n", "y" * 99 + "\n"),  # the bytes begin with a whole line
        ("é" * 500 + "a", "… " + "é" * 49 + "a"),  # no half of a character
    ],
)
def test_the_end_of_a_file_is_bounded_and_keeps_long_lines(tmp_path: Path, text: str, shown: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert read_end(tmp_path, path, 100) == shown


def test_a_huge_line_is_read_at_its_end_alone(console: SimulatedConsole, tmp_path: Path) -> None:
    path = run_files.rank_log(tmp_path, 1, 3)
    with path.open("wb") as file:
        file.seek(2**33)  # 8 GiB, of which the disk holds the end
        file.write(b"the end")
    answer = console.get(f"{LOG}?bytes=1000")
    assert answer["text"].startswith("… ")
    assert answer["text"].endswith("the end")
    assert len(answer["text"]) <= 1002
