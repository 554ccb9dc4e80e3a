"""Flags of the commands that look at a run, ask something of it, or harm it."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from holdfast_cli.flags.common import (
    DEFAULT_DIRECTORY,
    OUTPUT,
    RUN,
    Control,
    Directory,
    Json,
    OneRunFlags,
    RunName,
    argument,
    option,
)

_FAULT, _RANDOM = "Fault", "Random faults"


@dataclass(frozen=True, kw_only=True)
class StatusFlags(OneRunFlags):
    """Show a run: state, step, loss, the ranks and the newest incident.

    Of a run with many ranks, it lists the odd ones and counts the others.

    \b
    Examples:
      holdfast status --search 128-135
      holdfast status --search node-17
      holdfast status --search exited --page 2
    """

    search: Annotated[str | None, option("--search TEXT", OUTPUT, unset="the odd ranks")] = None
    """List the ranks with this number, in this range, or with this text in node, state, phase or place."""
    page: Annotated[int | None, option("--page N", OUTPUT, unset="the first", least=1)] = None
    """List this page of ranks: of those that match, or of all, the odd ones first."""
    watch: Annotated[bool, option("--watch", OUTPUT)] = False
    """Keep showing until the run ends or Ctrl-C."""
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

    file: Annotated[Path, argument("FILE")]
    """Log of a run. -: stdin."""
    loss_column: Annotated[str | None, option("--loss-column NAME", unset="found by its name")] = None
    """Column or name of the loss."""
    step_column: Annotated[str | None, option("--step-column NAME", unset="found by its name")] = None
    """Column or name of the step."""
    fail_on: Annotated[TierName | None, option("--fail-on", OUTPUT)] = None
    """Exit with 1 if there is a finding of this tier or a worse one."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class TopFlags(OneRunFlags):
    """Show a run live in a terminal: what is wrong, its numbers, and every rank, the odd ones first.

    The key ? shows all keys. Without --run, it asks which run if there are several. It needs the extra top of
    holdfast-torch: pip install 'holdfast-torch[top]'.
    """


@dataclass(frozen=True, kw_only=True)
class ConsoleFlags(OneRunFlags):
    """Print the address of the console: the daemon's page in a browser.

    The address holds a secret. Who has it can act on the run; with --viewer, only look. Of a run that has ended, this
    serves the pages from the run's files, until Ctrl-C.
    """

    viewer: Annotated[bool, option("--viewer", OUTPUT)] = False
    """Print the address for people who may only look."""


@dataclass(frozen=True, kw_only=True)
class StopFlags(OneRunFlags):
    """End a run after a last checkpoint: its ranks, its agents and all that `holdfast run` started for it."""

    timeout_s: Annotated[float, option("--timeout SECONDS", RUN)] = 60.0
    """Seconds to wait for the end."""


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

    rank: Annotated[list[int] | None, option("--rank RANK", OUTPUT, least=0)] = field(default_factory=list)
    """Only this rank. Can be repeated."""
    generation: Annotated[int | None, option("--generation GENERATION", OUTPUT, unset="the newest", least=0)] = None
    """Generation of the ranks; each restart begins one."""
    culprit: Annotated[bool, option("--culprit", OUTPUT)] = False
    """Only the ranks that the newest incident blames."""
    follow: Annotated[bool, option("--follow", OUTPUT)] = False
    """Keep printing until the run ends or Ctrl-C; after a restart, the new ranks."""
    lines: Annotated[int | None, option("--lines N", OUTPUT, unset="all", least=1)] = None
    """Only the last N lines of each rank."""
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY


_Identity = Annotated[str, argument("ID", about="Incident: 0001-hung-collective, or 1 for short.")]


@dataclass(frozen=True, kw_only=True)
class IncidentsFlags(OneRunFlags):
    """List the incidents of a run, show the whole story of one, acknowledge it, or pack it into a file."""

    everything: Annotated[bool, option("--all", OUTPUT)] = False
    """List those of earlier starts of the run too."""
    limit: Annotated[int | None, option("--limit N", OUTPUT, unset="all", least=1)] = None
    """List the newest N only."""
    page: Annotated[int, option("--page N", OUTPUT, least=1)] = 1
    """With --limit: page 2 lists the N before the newest N, and so on."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ShowIncidentFlags(OneRunFlags):
    """Show the whole story of one incident.

    The story has the verdict, which rank waits for which, stacks, black boxes, and what was done.
    """

    identity: _Identity
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class AcknowledgeIncidentFlags(OneRunFlags):
    """Acknowledge an incident: people know of it.

    One that stops nothing then asks for no more attention in the console and in `holdfast top`. A run whose loss is not
    finite is red until the loss is finite again or its incident is acknowledged.
    """

    identity: _Identity


@dataclass(frozen=True, kw_only=True)
class NotifyTestFlags:
    """Send a test message to every channel of [notify], and a sign of life, and say how each of them ended.

    The messages come from this machine, with the files of this machine. The exit code is 1 if one could not be sent.
    """

    config: Annotated[Path | None, option("--config FILE", RUN, unset="holdfast.toml")] = None
    """File with the channels."""
    run: Annotated[str | None, option("--run NAME", RUN)] = None
    """Use the channels of a run. With --config: name it in the messages."""
    directory: Directory = DEFAULT_DIRECTORY


@dataclass(frozen=True, kw_only=True)
class ExportIncidentFlags:
    """Pack the story of one incident, and all its evidence on this machine, into one file."""

    identity: _Identity
    to: Annotated[Path | None, option("--to FILE", OUTPUT, unset="RUN-ID.tar.gz")] = None
    """File to write."""
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None


@dataclass(frozen=True, kw_only=True)
class ReplayFlags:
    """Replay what the core saw before an incident. Exit with 0 if it reaches the same verdict, else 1."""

    path: Annotated[Path, argument("FOLDER")]
    """Folder of an incident, or its exported archive."""
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

    folder: Annotated[Path, argument("FOLDER")]
    """Folder of the dumps."""
    dead: Annotated[list[int] | None, option("--dead RANK", least=0, most=65535)] = field(default_factory=list)
    """A rank that is known to have died before the others stood still. Can be repeated."""
    earlier: Annotated[Path | None, option("--earlier FOLDER")] = None
    """Folder of dumps that were taken in the same way, after the job stood still and before those of FOLDER. Ranks
    that have moved since then are not stuck."""
    world_size: Annotated[
        int | None, option("--world-size N", unset="those that the dumps name", least=1, most=65536)
    ] = None
    """Number of ranks."""
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

    kind: Annotated[str | None, argument("KIND")] = None
    """Kind of fault; --list shows all."""
    rank: Annotated[int | None, option("--rank RANK", _FAULT, least=0)] = None
    """Rank to harm."""
    step: Annotated[int, option("--step STEP", _FAULT, least=-1)] = -1
    """Step in which the fault strikes. -1: immediately."""
    phase: Annotated[PhaseName | None, option("--phase", _FAULT)] = None
    """Strike when the rank enters this phase."""
    factor: Annotated[float, option("--factor FACTOR", _FAULT)] = 0.0
    """Number of times slower."""
    duration_s: Annotated[float, option("--duration SECONDS", _FAULT)] = 0.0
    """Seconds. 0: forever."""
    seed: Annotated[int, option("--seed N", _FAULT, least=0)] = 0
    """Seed of everything random."""
    at_random: Annotated[bool, option("--random", _RANDOM)] = False
    """Keep injecting faults at random steps."""
    rate: Annotated[float, option("--rate P", _RANDOM)] = 0.01
    """With --random: probability of a fault in a step."""
    kinds: Annotated[str, option("--kinds KINDS", _RANDOM)] = "kill,stop"
    """With --random: kinds, separated by commas."""
    steps: Annotated[int, option("--for STEPS", _RANDOM, least=1)] = 1000
    """With --random: number of steps."""
    show: Annotated[bool, option("--list", OUTPUT)] = False
    """List all kinds of faults."""
    run: RunName = None
    directory: Directory = DEFAULT_DIRECTORY
    control: Control = None
