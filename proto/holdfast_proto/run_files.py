"""Paths of a run's files on a node. Agents, daemons, hooks and commands find each other's files by them.

The first functions are about the directory of a run (``--directory`` of its agents and its daemon). Nodes may share it.
The next ones are about the runtime directory, which holds the sockets of one node. The last ones are about the evidence
in the folder of an incident or of a suspicion. Nothing here touches a disk.
"""

import re
from pathlib import Path

DIRECTORY = Path("holdfast-runs")
"""Directory of a run without ``--directory``: in the folder in which the command starts."""
AGENT_RECORDS = "node-*/record.pb"
"""Pattern of the records of all agents in a run's directory."""
RANK_LOGS = "logs/generation-*/rank-*.log"
"""Pattern of all :func:`rank_log` names in a run's directory."""
GENERATIONS_LOGGED = 100
"""Generations whose logs are kept and offered to people: the newest."""
GENERATION_FOLDER = re.compile(r"generation-(\d{1,15})")
"""Name of the folder with the logs of a generation."""
BLACK_BOX_COPIES = "rank-*.black_box.json"
"""Pattern of all :func:`black_box_copy` names."""
FINDINGS = "node-*.findings.json"
"""Pattern of all :func:`findings` names."""

_SET_ASIDE = re.compile(r".+\.(damaged|version-\d+)-\d{10,}\.sqlite")


def run_key(directory: Path, run: str) -> Path:
    """Return the file with the key of a run."""
    return directory / f"{run}.key"


def logs(directory: Path) -> Path:
    """Return the folder of all logs."""
    return directory / "logs"


def process_log(directory: Path, name: str) -> Path:
    """Return the log of a process that is not a rank, such as ``agent``."""
    return logs(directory) / f"{name}.log"


def rank_log(directory: Path, generation: int, rank: int) -> Path:
    """Return the log with a rank's stdout and stderr."""
    return logs(directory) / _generation(generation) / f"{_rank(rank)}.log"


def node_directory(directory: Path, node: str) -> Path:
    """Return the folder of the files of one agent."""
    return directory / f"node-{node}"


def agent_record(directory: Path, node: str) -> Path:
    """Return the file with the AgentRecord of a node."""
    return node_directory(directory, node) / "record.pb"


def black_boxes(directory: Path, node: str) -> Path:
    """Return the folder of a node's black boxes."""
    return node_directory(directory, node) / "black-boxes"


def black_box(node_boxes: Path, generation: int, rank: int) -> Path:
    """Return the black box of a rank in :func:`black_boxes` of its node."""
    return node_boxes / _generation(generation) / f"{_rank(rank)}.box"


def slots(directory: Path) -> Path:
    """Return the folder of the slots that are files on disk, because shared memory has no room for them."""
    return directory / "slots"


def incidents(directory: Path, run: str) -> Path:
    """Return the folder of incidents. Each has a folder in it for the daemon's story and the agents' evidence."""
    return directory / "incidents" / run


def incident_log(directory: Path, run: str) -> Path:
    """Return the file with all versions of all incidents, one JSON object per line."""
    return directory / f"incidents-{run}.jsonl"


def older_incident_log(directory: Path, run: str) -> Path:
    """Return the file with the lines before those of :func:`incident_log`, once that has become too large."""
    path = incident_log(directory, run)
    return path.with_name(f"{path.name}.1")


def notifications(directory: Path, run: str) -> Path:
    """Return the file in which a daemon keeps what people were notified of."""
    return directory / f"notifications-{run}.json"


def node_histories(directory: Path) -> Path:
    """Return the file in which a daemon keeps what is known against nodes, for the next runs."""
    return directory / "node-history.json"


def suspicions(directory: Path) -> Path:
    """Return the folder of suspicions. Each has a folder of evidence in it, which an incident may take over."""
    return directory / "suspicions"


def profiles(directory: Path) -> Path:
    """Return the folder of profiles. Each request of an operator has a folder in it."""
    return directory / "profiles"


def failures(directory: Path, run: str) -> Path:
    """Return the folder with the first tick of a run that the daemon's core failed on."""
    return directory / "failures" / run


def console_tokens(directory: Path) -> Path:
    """Return the file with the secrets by which people log in to the daemon's console."""
    return directory / "console-tokens.json"


def console_port(directory: Path) -> Path:
    """Return the file with the port that the kernel chose for the daemon's console: the next start takes it again."""
    return directory / "console-port"


def history(directory: Path, run: str) -> Path:
    """Return the SQLite file with the steps and checkpoints of all runs of a name."""
    return directory / "history" / f"{run}.sqlite"


def set_aside_history(directory: Path, run: str, why: str, unix_ns: int) -> Path:
    """Return the name that a history gets when a new one takes its place. ``why``: letters, digits and hyphens."""
    path = history(directory, run)
    return path.with_name(f"{path.stem}.{why}-{unix_ns}{path.suffix}")


def is_set_aside_history(path: Path) -> bool:
    """Whether a file among the histories has the name that :func:`set_aside_history` gives."""
    return _SET_ASIDE.fullmatch(path.name) is not None


def session_socket(runtime: Path, node: str) -> Path:
    """Return the socket on which an agent's ranks open their sessions."""
    return runtime / f"agent-{node}.sock"


def worker_server_socket(session: Path, pid: int) -> Path:
    """Return the socket of torch's worker server in a rank: next to the socket of its agent's sessions."""
    return session.with_name(f"worker-{pid}.sock")


def warm_parent_socket(runtime: Path, node: str) -> Path:
    """Return the socket on which the warm parent of an agent takes requests."""
    return runtime / f"warm-parent-{node}.sock"


def recorder_scratch(runtime: Path, node: str) -> Path:
    """Return the folder in which ranks leave dumps of their recorders that are read and not kept."""
    return runtime / f"recorders-{node}"


def agent_endpoint(runtime: Path, node: str) -> Path:
    """Return the JSON file that says where an agent serves; written once it does."""
    return runtime / f"agent-{node}.json"


def guard_endpoint(runtime: Path) -> Path:
    """Return the JSON file that says where the guard of a run serves; written once it does."""
    return runtime / "guard.json"


def daemon_endpoint(control: Path) -> Path:
    """Return the JSON file that says where the daemon with this control socket serves; written once it does."""
    return control.with_name(f"{control.name}.json")


MISSING = "missing.txt"
"""File of evidence that says what could not be had, and why."""

SUSPICION_WITHIN = "suspicion"
"""Folder in that of an incident, with the evidence of the suspicion that came before it."""


EVIDENCE_NAME = r"rank-\d{5,}\..+|node-.+\.(?:txt|json)"
"""Pattern of the names below. Only such files are removed when they are old: people put others next to them."""


def rank_evidence(rank: int, kind: str) -> str:
    """Return the name of a file of evidence about a rank, such as ``exit.json``."""
    return f"{_rank(rank)}.{kind}"


def node_evidence(node: str, kind: str) -> str:
    """Return the name of a file of evidence about a node, such as ``system.txt``."""
    return f"node-{node}.{kind}"


def black_box_copy(rank: int) -> str:
    """Return the name of the file of evidence with the contents of a rank's black box."""
    return rank_evidence(rank, "black_box.json")


def findings(node: str) -> str:
    """Return the name of the file of evidence in which an agent sums the others up."""
    return node_evidence(node, "findings.json")


def flight_recorder_dump(rank: int, backend: str = "") -> str:
    """Return the name of the file of evidence with a dump of a rank's Flight Recorder.

    ``backend``: "" for the generic recorder, into which gloo records; "nccl" for NCCL's own; else the backend whose own
    recorder it is. Each recorder has a file, because their group ids collide.
    """
    return rank_evidence(rank, f"flight_recorder_{backend}.json" if backend else "flight_recorder.json")


def _generation(generation: int) -> str:
    return f"generation-{generation:04}"


def _rank(rank: int) -> str:
    return f"rank-{rank:05}"
