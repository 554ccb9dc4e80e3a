"""Of the dumps in a folder, those of one job and one backend are judged, and the others are named."""

import pytest

from holdfast_agent.evidence.recorder_dump import from_document
from holdfast_cli.analysis.one_job import OLD_S, DumpFile, of_one_job
from tests.support.recorder_documents import START_NS, Document

WORLD = (0, 1, 2)


def dump(rank: int, document: Document | None = None, *, later_s: int = 0, name: str = "") -> DumpFile:
    """Return a dump whose calls were made ``later_s`` after the time at which others begin."""
    written = (document or Document({"0": WORLD}).call().call()).document()
    for entry in written["entries"]:
        entry["time_created_ns"] += later_s * 1_000_000_000
    return DumpFile(rank, name or f"rank-{rank}.json", from_document(written))


def test_dumps_of_one_job_are_all_kept() -> None:
    kept, left_out = of_one_job([dump(rank) for rank in WORLD])
    assert (list(kept), left_out) == ([0, 1, 2], [])
    assert kept[0].oldest_ns == START_NS and kept[0].newest_ns > START_NS


def test_of_two_dumps_of_a_rank_the_newer_one_is_kept() -> None:
    old, new = dump(1, name="a/rank-1.json"), dump(1, later_s=5, name="b/rank-1.json")
    for files in ([old, new], [new, old]):
        kept, left_out = of_one_job(files)
        assert kept == {1: new} and len(left_out) == 1
    assert of_one_job([old, new])[1] == ["a/rank-1.json: b/rank-1.json has a newer dump of rank 1"]
    assert of_one_job([new, old])[1] == ["a/rank-1.json: b/rank-1.json has the dump of rank 1"]


def test_of_two_equal_dumps_of_a_rank_the_first_one_is_kept() -> None:
    first, second = dump(1, name="rank-1.json"), dump(1, name="suspicion/rank-1.json")
    assert of_one_job([first, second]) == ({1: first}, ["suspicion/rank-1.json: rank-1.json has the dump of rank 1"])


def test_a_file_that_an_older_job_left_is_left_out() -> None:
    """The job had three ranks, and the one before it a fourth."""
    bare = Document({"0": ()}).call().call()
    fresh = [dump(rank, later_s=OLD_S + 100) for rank in WORLD]
    kept, left_out = of_one_job([*fresh, dump(3, bare)])
    assert list(kept) == [0, 1, 2]
    assert left_out == ["rank-3.json: it seems to be of an older job: it ends 1 h before rank-0.json begins"]


def test_a_rank_that_has_hung_for_less_is_kept() -> None:
    kept, left_out = of_one_job([dump(0, later_s=OLD_S - 100), dump(1), dump(2)])
    assert (list(kept), left_out) == ([0, 1, 2], [])


def test_a_rank_outside_of_its_own_job_has_a_wrong_name() -> None:
    kept, left_out = of_one_job([dump(0), dump(7)])
    assert list(kept) == [0]
    assert left_out == ["rank-7.json: its name says rank 7, and its job has ranks 0 to 2"]


def test_a_dump_of_a_job_of_another_size_is_left_out() -> None:
    smaller = Document({"0": (0, 1)}).call()
    kept, left_out = of_one_job([dump(0, later_s=9), dump(1, smaller), dump(2)])
    assert list(kept) == [0, 2]
    assert left_out == ["rank-1.json: it is of another job: of 2 ranks, and that of rank-0.json has 3"]


def test_the_recorder_of_the_devices_is_judged_and_not_that_of_gloo() -> None:
    """Both number their groups from 0: their calls must never be taken for one sequence."""
    gloo = [
        dump(rank, Document({"0": WORLD}, backend="gloo").call(), later_s=50, name=f"rank-{rank}.flight_recorder.json")
        for rank in WORLD
    ]
    nccl = [dump(rank, name=f"rank-{rank}.flight_recorder_nccl.json") for rank in WORLD[:2]]
    silent = dump(2, Document({"0": WORLD}), name="rank-2.flight_recorder_nccl.json")
    kept, left_out = of_one_job([*gloo, *nccl, silent])
    assert kept == {0: nccl[0], 1: nccl[1], 2: silent}
    assert len(left_out) == 3
    assert left_out[0] == "rank-0.flight_recorder.json: it holds calls of gloo, and those of nccl are judged"


def test_a_folder_of_gloo_alone_is_judged() -> None:
    files = [dump(rank, Document({"0": WORLD}, backend="gloo").call()) for rank in WORLD]
    assert of_one_job(files) == (dict(enumerate(files)), [])


@pytest.mark.parametrize("backend", ["mpi", "ucc"])
def test_recorders_of_other_backends_on_the_host_come_after_those_of_devices(backend: str) -> None:
    host = [dump(rank, Document({"0": WORLD}, backend=backend).call(), name=f"{rank}.json") for rank in WORLD]
    device = dump(0, name="nccl-0.json")
    assert of_one_job([*host, device])[0] == {0: device}


def test_of_two_backends_on_devices_the_one_with_more_dumps_is_judged() -> None:
    many = [dump(rank, Document({"0": WORLD}, backend="xccl").call()) for rank in (1, 2)]
    assert of_one_job([dump(0), *many])[0] == {1: many[0], 2: many[1]}


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("rank-00000.flight_recorder.json", "gloo"),
        ("rank-00000.flight_recorder_nccl2.json", "nccl2"),
        ("rank-0.json", ""),
    ],
)
def test_the_backend_of_a_dump_without_calls_is_in_its_name(name: str, backend: str) -> None:
    assert dump(0, Document({"0": WORLD}), name=name).backend == backend
    assert dump(0, Document({"0": WORLD}, backend="xccl").call(), name=name).backend == "xccl"


def test_calls_without_a_backend_or_a_time_show_neither() -> None:
    file = dump(0, Document({"0": WORLD}, backend="xccl").call().call().call())
    file.dump.calls[0].op = file.dump.calls[1].op = "user_marker"
    file.dump.calls[0].created_ns = 0
    assert file.backend == "xccl" and file.oldest_ns == file.dump.calls[1].created_ns


def test_the_world_is_the_same_in_any_order_of_its_members() -> None:
    turned = dump(1, Document({"0": (2, 1, 0)}).call().call())
    assert list(of_one_job([dump(0), turned])[0]) == [0, 1]


def test_no_dumps_are_none() -> None:
    assert of_one_job([]) == ({}, [])
