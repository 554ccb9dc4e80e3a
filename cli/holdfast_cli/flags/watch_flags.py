"""Flags of the commands that look at a run, ask something of it, or harm it."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.flags.common import DEFAULT_DIRECTORY, OUTPUT, RUN, Control, Directory, Json, RunName

_FAULT, _RANDOM = "Fault", "Random faults"


@dataclass(frozen=True, kw_only=True)
class StatusFlags:
    """Show a run: state, step, loss, every rank and the newest incident."""

    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep showing until the run ends or Ctrl-C.", rich_help_panel=OUTPUT)
    ] = False
    json: Json = False


class TierName(StrEnum):
    """How bad a loss is, the mildest first."""

    BLIP = "blip"
    SPIKE = "spike"
    SLOW_RISE = "slow_rise"
    DIVERGENCE = "divergence"
    NON_FINITE = "non_finite"


@dataclass(frozen=True, kw_only=True)
class SpikesFlags:
    """Judge the loss in the log of any training run: blips, spikes, slow rises, divergence, NaN.

    FILE is what the trainer prints, or CSV with a line of names, or has a JSON object in each line, or is an array of
    objects, such as the trainer_state.json of Hugging Face. Holdfast judges it as it judges a run. It knows the usual
    names of losses and steps, as Megatron, torchtitan, W&B, TensorBoard and others write them. A loss that vanishes or
    turns 0 counts as NaN. A step that goes back is a resume. The exit code is 0, also with findings, unless --fail-on
    is given; 78 if the file cannot be read.

    \b
    Examples:
      holdfast spikes train.log
      holdfast spikes wandb-export.csv --loss-column 'run-7 - train/loss'
      holdfast spikes metrics.jsonl --loss-column train/ce --fail-on spike
    """

    file: Annotated[Path, typer.Argument(help="Log of a run. -: stdin.", metavar="FILE")]
    loss_column: Annotated[
        str | None, typer.Option(help="Column or name of the loss.", show_default="found by its name", metavar="NAME")
    ] = None
    step_column: Annotated[
        str | None, typer.Option(help="Column or name of the step.", show_default="found by its name", metavar="NAME")
    ] = None
    fail_on: Annotated[
        TierName | None,
        typer.Option(help="Exit with 1 if there is a finding of this tier or a worse one.", rich_help_panel=OUTPUT),
    ] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class TopFlags:
    """Show a run live in a terminal: what is wrong, its numbers, and every rank, the odd ones first.

    The key ? shows all keys. Without --run, it asks which run if there are several. It needs the extra top of
    holdfast-torch: pip install 'holdfast-torch[top]'.
    """

    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None


@dataclass(frozen=True, kw_only=True)
class ConsoleFlags:
    """Print the address of the console: the daemon's page in a browser.

    The address holds a secret. Who has it can act on the run; with --viewer, only look. Of a run that has ended, this
    serves the pages from the run's files, until Ctrl-C.
    """

    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
    viewer: Annotated[
        bool,
        typer.Option("--viewer", help="Print the address for people who may only look.", rich_help_panel=OUTPUT),
    ] = False


@dataclass(frozen=True, kw_only=True)
class StopFlags:
    """End a run after a last checkpoint: its ranks, its agents and all that `holdfast run` started for it."""

    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", help="Seconds to wait for the end.", metavar="SECONDS", rich_help_panel=RUN),
    ] = 60.0


@dataclass(frozen=True, kw_only=True)
class LogsFlags:
    """Print what the ranks of a run have printed, while it runs or afterwards.

    With more than one rank, each line begins with its rank. With --follow, it does so unless --rank or --culprit names
    one rank only. A log may begin with lines of an earlier start of the same run. Holdfast has no output of ranks that
    another launcher has started (`holdfast observe`).

    \b
    Examples:
      holdfast logs --follow
      holdfast logs --culprit --lines 40
    """

    rank: Annotated[
        list[int] | None,
        typer.Option(help="Only this rank. Can be repeated.", metavar="RANK", min=0, rich_help_panel=OUTPUT),
    ] = field(default_factory=list)
    generation: Annotated[
        int | None,
        typer.Option(
            help="Generation of the ranks; each restart begins one.",
            show_default="the newest",
            metavar="GENERATION",
            min=0,
            rich_help_panel=OUTPUT,
        ),
    ] = None
    culprit: Annotated[
        bool,
        typer.Option("--culprit", help="Only the ranks that the newest incident blames.", rich_help_panel=OUTPUT),
    ] = False
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Keep printing until the run ends or Ctrl-C; after a restart, the new ranks.",
            rich_help_panel=OUTPUT,
        ),
    ] = False  # fmt: skip
    lines: Annotated[
        int | None,
        typer.Option(
            help="Only the last N lines of each rank.", show_default="all", metavar="N", min=1, rich_help_panel=OUTPUT
        ),
    ] = None
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY


_Identity = Annotated[str, typer.Argument(metavar="ID", help="Incident: 0001-hung-collective, or 1 for short.")]


@dataclass(frozen=True, kw_only=True)
class IncidentsFlags:
    """List the incidents of a run, show the whole story of one, acknowledge it, or pack it into a file."""

    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
    everything: Annotated[
        bool, typer.Option("--all", help="List those of earlier starts of the run too.", rich_help_panel=OUTPUT)
    ] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ShowIncidentFlags:
    """Show the whole story of one incident.

    The story has the verdict, which rank waits for which, stacks, black boxes, and what was done.
    """

    identity: _Identity
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class AcknowledgeIncidentFlags:
    """Acknowledge an incident: people know of it.

    One that stops nothing then asks for no more attention in the console and in `holdfast top`. A run whose loss is not
    finite is red until the loss is finite again or its incident is acknowledged.
    """

    identity: _Identity
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None


@dataclass(frozen=True, kw_only=True)
class NotifyTestFlags:
    """Send a test message to every channel of [notify], and a sign of life, and say how each of them ended.

    The messages come from this machine, with the files of this machine. The exit code is 1 if one could not be sent.
    """

    config: Annotated[
        Path | None,
        typer.Option(help="File with the channels.", show_default="holdfast.toml", metavar="FILE", rich_help_panel=RUN),
    ] = None
    run: Annotated[
        str | None,
        typer.Option(
            help="Use the channels of a run. With --config: name it in the messages.",
            metavar="NAME",
            rich_help_panel=RUN,
        ),
    ] = None
    directory: Directory = DEFAULT_DIRECTORY


@dataclass(frozen=True, kw_only=True)
class ExportIncidentFlags:
    """Pack the story of one incident, and all its evidence on this machine, into one file."""

    identity: _Identity
    to: Annotated[
        Path | None,
        typer.Option(help="File to write.", show_default="RUN-ID.tar.gz", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None


@dataclass(frozen=True, kw_only=True)
class ReplayFlags:
    """Replay what the core saw before an incident. Exit with 0 if it reaches the same verdict, else 1."""

    path: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder of an incident, or its exported archive."),
    ]
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class AnalyzeFlags:
    """Tell who holds up a hung job from the Flight Recorder dumps of its ranks. The job needs no Holdfast.

    FOLDER holds one dump for each rank, with the rank in its name: what torch writes at a timeout of its watchdog
    (TORCH_FR_DUMP_TEMP_FILE), or an incident of Holdfast. Pickles and JSON are read; a pickle can run no code here.
    Texts with "stack" in their name or folder, as from py-spy dump, are read as the stacks of the rank in their name.

    \b
    Examples:
      holdfast analyze ~/.cache/torch
      holdfast analyze dumps --dead 3 --json
      holdfast analyze dumps --earlier dumps-of-a-minute-ago
    """

    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the dumps.")]
    dead: Annotated[
        list[int] | None,
        typer.Option(
            "--dead",
            help="A rank that is known to have died before the others stood still. Can be repeated.",
            metavar="RANK",
            min=0,
            max=65535,
        ),
    ] = field(default_factory=list)
    earlier: Annotated[
        Path | None,
        typer.Option(
            "--earlier",
            help="Folder of dumps that were taken in the same way, after the job stood still and before those of "
            "FOLDER. Ranks that have moved since then are not stuck.",
            metavar="FOLDER",
        ),
    ] = None
    world_size: Annotated[
        int | None,
        typer.Option(
            "--world-size",
            help="Number of ranks.",
            show_default="those that the dumps name",
            metavar="N",
            min=1,
            max=65536,
        ),
    ] = None
    json: Json = False


class PhaseName(StrEnum):
    """Part of a step in which a fault strikes."""

    DATA = "data"
    FORWARD_BACKWARD = "forward_backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    IDLE = "idle"


@dataclass(frozen=True, kw_only=True)
class InjectFlags:
    """Harm a rank of a run that was started with --allow-faults, and see how Holdfast diagnoses it.

    \b
    Example:
      holdfast inject gil-held --rank 3 --step 100 --duration 20
    """

    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="Kind of fault; --list shows all.")] = None
    rank: Annotated[int | None, typer.Option(help="Rank to harm.", metavar="RANK", min=0, rich_help_panel=_FAULT)] = (
        None
    )
    step: Annotated[
        int,
        typer.Option(
            help="Step in which the fault strikes. -1: immediately.", metavar="STEP", min=-1, rich_help_panel=_FAULT
        ),
    ] = -1
    phase: Annotated[
        PhaseName | None,
        typer.Option(help="Strike when the rank enters this phase.", rich_help_panel=_FAULT),
    ] = None
    factor: Annotated[float, typer.Option(help="Number of times slower.", metavar="FACTOR", rich_help_panel=_FAULT)] = (
        0.0
    )
    duration_s: Annotated[
        float,
        typer.Option("--duration", help="Seconds. 0: forever.", metavar="SECONDS", rich_help_panel=_FAULT),
    ] = 0.0
    seed: Annotated[
        int, typer.Option(help="Seed of everything random.", metavar="N", min=0, rich_help_panel=_FAULT)
    ] = 0
    at_random: Annotated[
        bool,
        typer.Option("--random", help="Keep injecting faults at random steps.", rich_help_panel=_RANDOM),
    ] = False
    rate: Annotated[
        float,
        typer.Option(help="With --random: probability of a fault in a step.", metavar="P", rich_help_panel=_RANDOM),
    ] = 0.01
    kinds: Annotated[
        str,
        typer.Option(help="With --random: kinds, separated by commas.", metavar="KINDS", rich_help_panel=_RANDOM),
    ] = "kill,stop"
    steps: Annotated[
        int,
        typer.Option("--for", help="With --random: number of steps.", metavar="STEPS", min=1, rich_help_panel=_RANDOM),
    ] = 1000
    show: Annotated[bool, typer.Option("--list", help="List all kinds of faults.", rich_help_panel=OUTPUT)] = False
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
