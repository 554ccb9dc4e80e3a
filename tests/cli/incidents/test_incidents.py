"""``holdfast incidents`` and ``holdfast replay`` on the files of a run that has ended."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from typer.testing import Result

from holdfast_cli.incidents.folder_files import IncidentFiles
from holdfast_cli.incidents.story import incident_story
from holdfast_core import coordinator
from holdfast_core.incidents import MOST_FILES_NAMED
from holdfast_core.model import Observation
from holdfast_daemon.incidents import incident_folder
from holdfast_daemon.replay.recording import Recording
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.cli.conftest import holdfast, run_record

RUN = "tiny"
IDENTITY = "0001-hung-collective"


def incident() -> store.Incident:
    waits = [store.WaitEdge(waiter=rank, awaited=2, group="0", seq=8, op="gloo:all_reduce") for rank in (0, 1, 3)]
    verdict = store.Verdict(kind=store.VERDICT_KIND_HUNG_COLLECTIVE, culprits=[2], waits=waits, step=7)
    verdict.phase, verdict.group, verdict.seq = common.PHASE_FORWARD_BACKWARD, "0", 8
    verdict.op = "gloo:all_reduce"
    verdict.message, verdict.confidence_ratio = "rank 2 is stopped in forward_backward of step 7", 1.0
    verdict.calls.append("rank 2 has yet to call all_reduce 8")
    found = store.Incident(id=IDENTITY, run=RUN, generation=1, verdict=verdict, state=store.INCIDENT_STATE_RECOVERED)
    found.detected_unix_s = 2_000.0
    found.actions.add(unix_s=2_000.5, what="evidence gathered")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The incident's folder of an ended run, with evidence of one rank."""
    directory = tmp_path / RUN
    folder = directory / "incidents" / RUN / IDENTITY
    (folder / "suspicion").mkdir(parents=True)
    incident_folder.write_story(folder, incident())
    box = {"rank": 2, "step": 7, "phase": 3, "groups": [{"group": "0", "enqueued": 7, "completed": 7}]}
    (folder / "rank-00002.black_box.json").write_text(json.dumps(box))
    (folder / "suspicion" / "rank-00002.stack.txt").write_text("a stack")
    stack = store.StackSummary(rank=2, frame="loss (train.py:12)", activity=common.ACTIVITY_STOPPED)
    call = common.PendingCall(rank=0, group="0", seq=8, op="gloo:all_reduce", sizes="[[4, 8]]")
    found = store.EvidenceCaptured(incident=IDENTITY, stacks=[stack], pending=[call])
    text = json.dumps(MessageToDict(found, preserving_proto_field_name=True))
    (folder / "node-local.findings.json").write_text(text)
    line = json.dumps(MessageToDict(incident(), preserving_proto_field_name=True))
    (directory / f"incidents-{RUN}.jsonl").write_text(line + "\n")
    run_record(directory, run=RUN, created_unix_s=1_000.0, outcome="finished").save()
    return folder


def incidents(folder: Path, *arguments: object) -> Result:
    """Call the command on the run that the folder of an incident belongs to."""
    return holdfast("incidents", *arguments, "--directory", folder.parents[3], columns=160)


def drawn(story: store.Incident) -> list[str]:
    """Return the lines of a story without files."""
    output = io.StringIO()
    Console(file=output, width=160).print(incident_story(story, IncidentFiles((), (), (), ())))
    return output.getvalue().splitlines()


def test_the_story_has_verdict_waits_calls_stacks_black_boxes_actions_and_files(folder: Path) -> None:
    result = incidents(folder, "show", "0001")
    assert result.exit_code == 0, result.output
    expected = [
        "rank 2 is stopped in forward_backward of step 7 [recovered]",
        "who waits for whom",
        "rank 2",
        "ranks 0, 1, 3 in gloo:all_reduce 8 of 0",
        "rank 2 has yet to call all_reduce 8",
        "rank 0 has not completed gloo:all_reduce 8 of 0 [[4, 8]]",
        "rank 2: in loss (train.py:12), is stopped",
        "forward backward   0: 7/7",
        "The counters of calls can be older than the steps",
        "+0.50 s  evidence gathered",
        "suspicion/rank-00002.stack.txt",
    ]
    position = 0
    for text in expected:
        position = result.stdout.find(text, position)
        assert position >= 0, f"{text!r} is missing, or out of place, in:\n{result.stdout}"


@pytest.mark.parametrize(
    ("step", "group", "where"),
    [
        (7, "0", "step 7, forward backward, gloo:all_reduce 8 of 0"),
        (7, "", "step 7, forward backward, in no collective"),
        (-1, "0", "before the first step, gloo:all_reduce 8 of 0"),
        (-1, "", "before the first step"),
    ],
)
def test_the_story_says_where_the_culprit_was(step: int, group: str, where: str) -> None:
    told = incident()
    told.verdict.step, told.verdict.group = step, group
    (line,) = [line for line in drawn(told) if line.startswith("where")]
    assert line.removeprefix("where").strip() == where


def test_the_story_names_node_and_process_of_each_culprit() -> None:
    told = incident()
    told.culprits.add(rank=2, node="node-2", pid=4711)
    told.nodes = 2
    lines = drawn(told)
    assert lines[0].rstrip() == "rank 2 is stopped in forward_backward of step 7 (rank 2: node-2, pid 4711) [recovered]"
    assert any(line.split()[:1] == ["processes"] and "rank 2: node-2, pid 4711" in line for line in lines)


def test_an_incident_of_an_ended_run_need_not_be_acknowledged(folder: Path) -> None:
    result = incidents(folder, "ack", "1")
    refusal = "holdfast: run tiny has ended: its incidents ask for no attention any more\n"
    assert (result.exit_code, result.stderr) == (1, refusal)


def test_without_its_folder_the_story_names_the_first_files_and_says_so() -> None:
    long = incident()
    long.evidence.extend(["rank-00000.proc.txt", "rank-00001.proc.txt"])
    assert [line.strip() for line in drawn(long)][-1] == "rank-00001.proc.txt"
    long.evidence.extend(f"{number:05}" for number in range(2, MOST_FILES_NAMED))
    assert "... only these are named here" in drawn(long)[-1]


def test_the_story_as_json_names_folder_and_files(folder: Path) -> None:
    story = json.loads(incidents(folder, "show", IDENTITY, "--json").stdout)
    assert story["verdict"]["culprits"] == [2]
    assert story["stacks"] == [{"rank": 2, "frame": "loss (train.py:12)", "activity": "stopped"}]
    assert story["folder"] == str(folder)
    assert "rank-00002.black_box.json" in story["files"]


def test_what_earlier_starts_left_is_listed_on_demand_and_shown_by_its_folders_name(folder: Path) -> None:
    earlier = folder.with_name("0001-dead-rank.500")
    story = incident()
    story.detected_unix_s = 500.0
    story.verdict.message = "rank 1 was killed"
    incident_folder.write_story(earlier, story)
    for name, damaged in (("0002-dead-rank.600", "{"), ("0003-dead-rank.700", "[1]")):
        folder.with_name(name).mkdir()
        (folder.with_name(name) / "incident.json").write_text(damaged)
    listed = incidents(folder).stdout
    assert "rank 1 was killed" not in listed and "the folder of the run has 1 older ones: add --all" in listed
    everything = json.loads(incidents(folder, "--all", "--json").stdout)
    assert [each["id"] for each in everything] == ["0001-dead-rank.500", IDENTITY]
    assert "rank 1 was killed" in incidents(folder, "show", earlier.name).stdout
    # An incident's number stands for that of the newest start.
    assert "rank 2 is stopped" in incidents(folder, "show", "0001").stdout


def test_pages_begin_with_the_newest_incidents_and_each_lists_the_oldest_first(folder: Path) -> None:
    log, found = folder.parent.parent.parent / f"incidents-{RUN}.jsonl", incident()
    with log.open("a") as lines:
        for number in (2, 3):
            found.id = f"000{number}-hung-collective"
            lines.write(json.dumps(MessageToDict(found, preserving_proto_field_name=True)) + "\n")

    def listed(*options: str) -> list[str]:
        return [one["id"][:4] for one in json.loads(incidents(folder, *options, "--json").stdout)]

    assert listed() == ["0001", "0002", "0003"]
    assert listed("--limit", "2") == ["0002", "0003"]
    assert listed("--limit", "2", "--page", "2") == ["0001"]
    assert listed("--limit", "2", "--page", "3") == []
    assert "2 of 3 incidents: --limit 2 --page 2 shows older ones" in incidents(folder, "--limit", "2").stdout
    refused = incidents(folder, "--page", "2")
    assert (refused.exit_code, refused.stderr) == (2, "holdfast: --page needs --limit N, the size of a page\n")


@pytest.mark.parametrize("identity", ["1", "01", "0001", IDENTITY])
def test_an_incident_is_named_by_its_id_or_by_its_number(folder: Path, identity: str) -> None:
    shown = incidents(folder, "show", identity)
    assert "rank 2 is stopped" in shown.stdout, shown.stderr


def test_a_number_that_several_earlier_incidents_have_is_answered_with_their_names(folder: Path) -> None:
    for name, detected_unix_s in (("0002-dead-rank.500", 500.0), ("0002-dead-rank.600", 600.0)):
        story = incident()
        story.detected_unix_s = detected_unix_s
        incident_folder.write_story(folder.with_name(name), story)
    refused = incidents(folder, "show", "2")
    assert refused.exit_code == 1
    assert "name one of 0002-dead-rank.500, 0002-dead-rank.600" in refused.stderr


def test_an_export_holds_the_whole_folder_and_is_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    targets = [tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"]
    for target in targets:
        result = incidents(folder, "export", "0001", "--to", target)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"{target}: 5 files\n"
    assert targets[0].read_bytes() == targets[1].read_bytes()
    with tarfile.open(targets[0]) as archive:
        names = archive.getnames()
        story = archive.extractfile(f"{IDENTITY}/incident.json")
        assert story is not None
        assert json.loads(story.read())["verdict"]["culprits"] == [2]
    inside = ("README.txt", "incident.json", "node-local.findings.json", "rank-00002.black_box.json")
    assert names == [f"{IDENTITY}/{name}" for name in (*inside, "suspicion/rank-00002.stack.txt")]


def test_an_unknown_incident_and_misplaced_options_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    unknown = incidents(folder, "show", "0002")
    line = "holdfast: run tiny has no incident 0002: `holdfast incidents --all` lists them\n"
    assert (unknown.exit_code, unknown.stderr) == (1, line)
    misplaced = holdfast("incidents", "--directory", tmp_path, "show", "0001")
    assert (misplaced.exit_code, misplaced.stderr) == (1, "holdfast: put the options behind `show`\n")


def record_a_death(folder: Path) -> store.Incident:
    """Let the core see a rank die, and keep the recording in ``folder``."""
    recording = Recording()
    spec = store.RunSpec(run=RUN, nodes=1, ranks_per_node=1, mode=store.MODE_ACT, instance="i")
    state = coordinator.begin(spec)
    node = store.NodeState(run=RUN, node="n", ready=True, stopped=True, instance="i")
    dead = store.RankState(rank=0, life=store.LIFE_EXITED, exit=store.RankExit(signal=9, step=4))
    running = store.NodeState(run=RUN, node="n", ready=True, instance="i", generation=1, ranks=[dead])
    for now, seen in ((1_000.0, node), (1_001.0, running)):
        observation = Observation(nodes={"n": seen})
        recording.note(state, now, observation)
        state, _ = coordinator.step(state, now, observation)
    (found,) = state.incidents.values()
    excerpt = recording.excerpt()
    assert excerpt is not None
    incident_folder.write_story(folder, found)
    incident_folder.write_recording(folder, excerpt, found.verdict, dropped_ticks=0)
    return found


def test_a_replay_says_whether_the_core_comes_to_the_same_verdict(tmp_path: Path) -> None:
    found = record_a_death(tmp_path)
    same = holdfast("replay", str(tmp_path))
    assert same.exit_code == 0, same.output
    assert same.stdout.splitlines()[-1] == "the same verdict, from 2 ticks in 1.0 s"
    found.verdict.culprits[:] = [5]
    incident_folder.write_story(tmp_path, found)
    other = holdfast("replay", str(tmp_path), "--json")
    assert other.exit_code == 1
    outcome = json.loads(other.stdout)
    assert outcome["agrees"] is False
    assert (outcome["recorded"]["culprits"], outcome["replayed"]["culprits"]) == ([5], [0])


def test_a_replay_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    result = holdfast("replay", tmp_path)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "name an incident's folder or exported archive" in result.stderr
