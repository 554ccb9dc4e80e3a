"""Flags of the commands that begin a run, and of `holdfast config`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from holdfast_cli.command_line.declaring import SettingFlags
from holdfast_cli.flags.common import OUTPUT, RUN, ConfigFile, Json, RankCommand, argument, option


@dataclass(frozen=True, kw_only=True)
class RunFlags(SettingFlags):
    """Train on this machine and watch the run.

    Holdfast starts a daemon, an agent, the ranks, and Redis unless --redis names one. It shows the run, and leaves only
    the run's folder behind. It exits with 0 if the run finished, or stopped after SIGTERM with a last checkpoint; with
    65 if the loss was not finite then. A command that cannot be started is refused before anything starts. So are a
    launcher such as torchrun, and a configuration that holdfast_trainer would refuse.

    \b
    Example:
      holdfast run --ranks 8 -- python -m holdfast_trainer --config demo.toml
    """

    command_name: ClassVar[str] = "run"
    command: RankCommand = field(default_factory=list)
    config: ConfigFile = None
    tee: Annotated[bool, option("--tee", OUTPUT)] = False
    """Print what the ranks print too, each line with its rank."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ObserveFlags(SettingFlags):
    """Watch a training run that another launcher starts.

    Holdfast never stops, restarts or changes the run, unless --on-hang asks it to end a rank that hangs. With --restore
    it saves the state of the ranks, and restores it when the launcher starts them again. It exits with the code of the
    launcher. Without a launcher it prints a line for the launcher's shell, and serves until the ranks have left or
    Ctrl-C. For a run over several nodes give the same command on each of them, with --nodes, --redis and --run. With
    --per-rank, srun or mpirun start this command once for each rank, and it becomes the rank.

    \b
    Examples:
      holdfast observe -- torchrun --nproc-per-node 4 train.py
      holdfast observe --nodes 2 --redis redis://head:6379 --run big -- \\
          torchrun --nnodes 2 --rdzv-endpoint head:29400 train.py
      srun --nodes 2 --ntasks-per-node 8 holdfast observe --per-rank \\
          --nodes 2 --redis redis://head:6379 --run big -- python train.py
    """

    command_name: ClassVar[str] = "observe"
    launcher: Annotated[list[str] | None, argument("COMMAND")] = field(default_factory=list)
    """Launcher: the words after --."""
    node: Annotated[str | None, option("--node NAME", RUN, unset="its host name")] = None
    """Name of this node, with --nodes."""
    per_rank: Annotated[bool, option("--per-rank", RUN)] = False
    """COMMAND is one rank: srun or mpirun starts `holdfast observe` once for each."""
    launcher_stdin: Annotated[bool, option("--launcher-stdin", RUN)] = False
    """The launcher runs already, and its rendezvous says on stdin how it ends. torchrun's does."""
    config: ConfigFile = None


@dataclass(frozen=True, kw_only=True)
class PublishFlags(SettingFlags):
    """Publish a run over several nodes in Redis.

    The run begins once as many agents as --nodes are ready. Start `holdfast agent` on each node; `holdfast daemon` must
    serve the same Redis.

    \b
    Example:
      holdfast publish --run big --nodes 4 --ranks-per-node 8 \\
          --redis redis://head:6379 --checkpoints /shared/big -- python train.py
    """

    command_name: ClassVar[str] = "publish"
    command: RankCommand = field(default_factory=list)
    config: ConfigFile = None


@dataclass(frozen=True, kw_only=True)
class ShowConfigFlags(SettingFlags):
    """Print each setting, its value, and where the value comes from.

    Takes the flags of `holdfast run` and `holdfast publish`.
    """

    command_name: ClassVar[str] = "config"
    command: RankCommand = field(default_factory=list)
    config: ConfigFile = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class CheckConfigFlags:
    """Check a file with settings, its command and the files of [notify]. Exit with 78 if a run would be refused.

    It starts nothing. Folders, ports and servers are not checked, nor is what only the nodes of a run have.
    """

    config: ConfigFile = None


@dataclass(frozen=True, kw_only=True)
class DemoFlags:
    """Train twice with eight ranks, once undisturbed and once with faults, and compare the results.

    In the second run Holdfast kills one rank and hangs another. The report shows which rank was blamed, how soon
    training continued, and whether the final weights agree bit by bit. The exit code is 0 only if both culprits were
    named, the run came back both times, and the weights agree.
    """

    seed: Annotated[int, option("--seed N", RUN, least=0)] = 0
    """Seed of both runs."""
    steps: Annotated[int, option("--steps N", RUN)] = 90
    """Optimizer steps of each run."""
    keep: Annotated[Path | None, option("--keep FOLDER", OUTPUT)] = None
    """Keep both runs, with logs and checkpoints, in this folder."""
    report: Annotated[Path, option("--report FILE", OUTPUT)] = Path("holdfast-demo-report.html")
    """Page that shows the second run, for a browser."""
    json: Json = False
