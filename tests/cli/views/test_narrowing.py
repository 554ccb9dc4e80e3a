"""Pages of the ranks of a run that has ended: `holdfast status` makes them from its last status."""

import json
from pathlib import Path

import pytest

from holdfast_cli.run_folder.ended import save_last_status
from holdfast_cli.views.narrowing import narrowed
from holdfast_proto.v1.control_pb2 import RANK_SORT_ODD_FIRST, GetStatusRequest
from holdfast_proto.v1.store_pb2 import VERDICT_KIND_HUNG_COLLECTIVE, Incident, Verdict
from tests.cli.conftest import holdfast, run_record
from tests.support.statuses import healthy, killed


def test_a_page_counts_all_ranks_and_those_that_are_not_on_it() -> None:
    seen = narrowed(killed(77, healthy(100)), GetStatusRequest(most_ranks=3, sort=RANK_SORT_ODD_FIRST, skip_ranks=1))
    assert [rank.rank for rank in seen.ranks] == [0, 1, 2]
    assert (dict(seen.rank_counts), seen.matching_ranks, seen.odd_ranks) == ({"exited": 1, "running": 99}, 100, 1)
    assert sorted(group.count for group in seen.other_ranks) == [1, 96]


def test_of_a_whole_status_nothing_is_lost() -> None:
    whole = killed(1, healthy(4))
    seen = narrowed(whole, GetStatusRequest())
    assert [rank.rank for rank in seen.ranks] == [0, 1, 2, 3]
    assert (len(seen.other_ranks), seen.matching_ranks, seen.newest_step) == (0, 4, whole.newest_step)


def test_a_culprit_that_lives_is_found_as_one() -> None:
    status = healthy(4)
    verdict = Verdict(kind=VERDICT_KIND_HUNG_COLLECTIVE, culprits=[2])
    status.urgent_incident.CopyFrom(Incident(id="0001-hung-collective", verdict=verdict))
    assert [rank.rank for rank in narrowed(status, GetStatusRequest(search="culprit")).ranks] == [2]


@pytest.fixture
def ended(tmp_path: Path) -> list[str]:
    """The options that name a run of a hundred ranks that has ended, one of them dead."""
    directory = tmp_path / "wide"
    directory.mkdir()
    run_record(directory, run="wide", outcome="failed").save()
    save_last_status(directory, killed(77, healthy(100)))
    return ["--directory", str(tmp_path)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "1 to 1 of 1 odd rank"),
        (["--page", "2"], "33 to 64 of 100 ranks of the run: --page 3 shows more"),
        (["--search", "10-19"], "1 to 10 of 10 ranks that match '10-19'"),
        (["--search", "running", "--page", "4"], "97 to 99 of 99 ranks that match 'running'"),
        (["--search", "nowhere"], "0 ranks that match 'nowhere'"),
        (["--search", "1-3", "--page", "9"], "no rank of 3 ranks that match '1-3' is on this page"),
    ],
)
def test_the_command_says_which_of_how_many_ranks_it_lists(ended: list[str], options: list[str], line: str) -> None:
    assert line in holdfast("status", *ended, *options).stdout.splitlines()


def test_a_search_that_cannot_be_is_refused(ended: list[str]) -> None:
    result = holdfast("status", *ended, "--search", "9-3")
    assert (result.exit_code, result.stderr) == (
        2, "holdfast: --search: the search '9-3' ends before it begins: use 3-9\n",
    )  # fmt: skip


def test_json_has_all_ranks_or_those_that_match(ended: list[str]) -> None:
    assert len(json.loads(holdfast("status", *ended, "--json").stdout)["ranks"]) == 100
    found = json.loads(holdfast("status", *ended, "--json", "--search", "exited").stdout)
    assert ([rank["rank"] for rank in found["ranks"]], found["matching_ranks"]) == ([77], 1)
