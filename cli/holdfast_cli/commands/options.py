"""Options that several subcommands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast_checkpoint.codec.registry import Compression
from holdfast_proto.v1 import store_pb2


class PresetName(StrEnum):
    """How soon silence is judged."""

    FAST = "fast"
    DEFAULT = "default"
    PATIENT = "patient"


class ModeName(StrEnum):
    """How far the daemon may go by itself."""

    OBSERVE = "observe"
    ACT = "act"


PRESETS = {
    PresetName.FAST: store_pb2.PRESET_FAST,
    PresetName.DEFAULT: store_pb2.PRESET_DEFAULT,
    PresetName.PATIENT: store_pb2.PRESET_PATIENT,
}
MODES = {
    ModeName.OBSERVE: store_pb2.MODE_OBSERVE,
    ModeName.ACT: store_pb2.MODE_ACT,
}

REDIS_HELP = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH, without a password."
Directory = Annotated[Path, typer.Option(help="Folder that holds one folder per run.", show_default=True)]
RunName = Annotated[str | None, typer.Option("--run", help="Name of the run. Default: the newest one.")]
Control = Annotated[
    Path | None,
    typer.Option("--control", help="Socket of the daemon, if `holdfast run` did not start it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for scripts.")]
Redis = Annotated[
    str | None,
    typer.Option("--redis", help=REDIS_HELP),
]
RequiredRedis = Annotated[str, typer.Option("--redis", help=REDIS_HELP)]
RedisPasswordFile = Annotated[Path | None, typer.Option(help="File that holds the password of --redis.")]
ShmDirectory = Annotated[Path, typer.Option(help="Memory file system for snapshots.")]
MetricsAddress = Annotated[str, typer.Option(help="Address on which /metrics is served.")]
MetricsPort = Annotated[int, typer.Option(help="Port on which /metrics is served; 0: any free one.", min=0, max=65535)]
PreemptionGrace = Annotated[
    float,
    typer.Option(
        "--preemption-grace-s", help="Seconds from SIGTERM to the end, for a last checkpoint; 0: end at once.", min=0.0
    ),
]
RankCommand = Annotated[list[str], typer.Argument(help="Command of one rank: everything after --.", metavar="COMMAND")]
Checkpoints = Annotated[
    str | None,
    typer.Option(help="Folder for checkpoints, or URL: s3://BUCKET/PREFIX, gs://... Default: in the run's folder."),
]
CheckpointStaging = Annotated[
    Path | None,
    typer.Option(help="Folder of this node for shards on their way to a URL. Default: in the run's folder."),
]
CheckpointsSecondary = Annotated[
    str | None, typer.Option(help="Folder or URL that gets a copy of every checkpoint, in the background.")
]
CheckpointsSecondaryKeep = Annotated[
    int | None, typer.Option(help="Checkpoints to keep there. Default: as many as in the first place.", min=1)
]
CheckpointUploadMbPerS = Annotated[
    float,
    typer.Option(
        "--checkpoint-upload-mb-per-s", help="Megabytes a second for all uploads of a node; 0: no limit.", min=0
    ),
]
CheckpointEvery = Annotated[
    int, typer.Option(help="Steps between checkpoints, a multiple of --snapshot-every; 0: only at the end.", min=0)
]
CheckpointEveryMinutes = Annotated[
    float, typer.Option(help="Minutes after which a checkpoint is taken if none was; 0: only by steps.", min=0)
]
CheckpointFullEvery = Annotated[
    int, typer.Option(help="Every so many checkpoints a full one, differences to it between; 1: all full.", min=1)
]
CheckpointCompression = Annotated[
    Compression, typer.Option(help="auto: compress checkpoints unless the ranks need the cores; always; never.")
]
SnapshotEvery = Annotated[int, typer.Option(help="Steps between snapshots in memory; 0: none.", min=0)]
FromScratch = Annotated[
    bool,
    typer.Option(
        "--from-scratch",
        help="Begin from the seed although there are checkpoints. They stay until --keep new ones are written.",
    ),
]
Adopt = Annotated[bool, typer.Option("--adopt", help="Go on from checkpoints that belong to a run of another name.")]
Keep = Annotated[int, typer.Option(help="Checkpoints to keep.", min=1)]
Preset = Annotated[
    PresetName, typer.Option(help="Shortest silence that is reported: fast 1 s, default 5 s, patient 60 s.")
]
RestartPatience = Annotated[
    float,
    typer.Option(
        "--restart-patience",
        help="Factor on how long a standstill without a certain sign of a fault lasts before a restart.",
        min=0.01,
        max=1000.0,
    ),
]
Mode = Annotated[ModeName, typer.Option(help="observe: verdicts, evidence and metrics; act: and restarts.")]
AllowFaults = Annotated[bool, typer.Option("--allow-faults", help="Let `holdfast inject` harm the ranks of this run.")]

DEFAULT_PREEMPTION_GRACE_S = 30.0
DEFAULT_DIRECTORY = Path("holdfast-runs")
DEFAULT_SHM_DIRECTORY = Path("/dev/shm")
