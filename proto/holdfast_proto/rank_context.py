"""The settings that an agent passes to a rank at its start, in one environment variable.

They come through the environment and not over the session, so that a rank can restore its state and train even if the
agent dies at that moment.
"""

import dataclasses
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_proto import run_files

VARIABLE = "HOLDFAST_CONTEXT"

THREAD_PREFIX = "holdfast-"
"""Prefix of the names that the hooks' threads show to the kernel. An agent does not count their work as the rank's."""


def pid_namespace() -> int:
    """Return the inode of this process's pid namespace; 0 if it is not known. A pid has a meaning only in one."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """Settings of one rank of one generation. Paths are absolute."""

    run: str
    generation: int
    agent: str
    """gRPC target of the agent: ``unix:/path``."""
    black_box: str
    """Path of the black box that the rank creates."""
    snapshot_every: int = 0
    """Steps between snapshots; 0: none."""
    checkpoint_every: int = 0
    """Steps between checkpoints, a multiple of snapshot_every; 0: only on command and at the end."""
    restore_slot: str = ""
    """Path of the slot with the state to start from. Without it and without a checkpoint, the rank starts from the
    seed."""
    restore_checkpoint: str = ""
    """Directory of the checkpoint with that state, which serves if the slot is missing or of another layout."""
    faults_allowed: bool = False
    """Whether faults may be injected into this rank."""
    observed: bool = False
    """Whether another launcher started the rank. Holdfast then watches it, and does not end it."""
    restores: bool = False
    """Whether Holdfast saves and restores the state of this observed rank. It learns over its session where to start:
    see StartFrom in session.proto."""
    auto: bool = False
    """Whether the hooks attach by themselves, without a line in the script."""
    left_out: tuple[tuple[int, int], ...] = ()
    """Data that no step trains on, ascending: the first number, and how many. See LeftOut in session.proto."""
    rolls_back: bool = False
    """Whether a bad loss may lead to a roll-back, which leaves data out: a script that cannot do that is refused."""
    min_replicas: int = 0
    """Least number of data-parallel replicas with which the run trains on when nodes are missing; 0: it waits."""
    full_world_size: int = 0
    """Number of ranks while no node is missing; 0: that of the present world."""

    @property
    def saves(self) -> bool:
        """Whether Holdfast saves and restores the rank's state."""
        return self.restores or not (self.observed or self.auto)

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that carries this context."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, *, rank: int = 0) -> "RankContext | None":
        """Return the context, or None if the environment has none: the process runs without Holdfast.

        ``rank`` is this process's rank; it names the black box of an observed rank. Raises ValueError if the variable
        is there and no agent of this version can have written it.
        """
        text = environment.get(VARIABLE)
        if text is None:
            return None
        try:
            fields = dict(json.loads(text))
            if "observed_node" in fields:
                return ObservedNode(**fields["observed_node"]).context(rank, environment)
            left_out = tuple((int(first), int(steps)) for first, steps in fields.pop("left_out", ()))
            return cls(**fields, left_out=left_out)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{VARIABLE} is not what an agent of this version writes: {error}") from None


@dataclass(frozen=True, kw_only=True)
class ObservedNode:
    """Settings that all ranks of a node share if another launcher starts them. They inherit its environment."""

    run: str
    agent: str
    """gRPC target of the agent: ``unix:/path``."""
    black_boxes: str
    """Folder of the node's black boxes: an absolute path."""
    auto: bool = False
    """Whether the hooks attach by themselves."""
    restores: bool = False
    """Whether Holdfast saves and restores the state of the ranks."""
    snapshot_every: int = 0
    """Steps between snapshots; 0: none."""
    checkpoint_every: int = 0
    """Steps between checkpoints, as in :class:`RankContext`."""
    rolls_back: bool = False
    """Whether a bad loss may lead to a roll-back, as in :class:`RankContext`."""

    @classmethod
    def of(cls, run: str, node: str, *, directory: Path, runtime: Path, **settings: Any) -> "ObservedNode":
        """Return the settings for a node by the run's directory and the runtime directory that its agent has.

        ``settings``: the other fields.
        """
        agent, black_boxes = run_files.session_socket(runtime, node), run_files.black_boxes(directory, node)
        return cls(run=run, agent=f"unix:{agent}", black_boxes=str(black_boxes), **settings)

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that carries these settings to the launcher and its ranks."""
        return {VARIABLE: json.dumps({"observed_node": dataclasses.asdict(self)})}

    def shell_line(self) -> str:
        """Return the shell line that sets the variable for all launchers after it."""
        return "".join(f"export {name}={shlex.quote(value)}" for name, value in self.to_environment().items())

    def context(self, rank: int, environment: Mapping[str, str]) -> RankContext:
        """Return the context of one rank. Its generation is the launcher's count of starts, or 1 without a count."""
        generation = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
        box = run_files.black_box(Path(self.black_boxes), generation, rank)
        return RankContext(
            run=self.run,
            generation=generation,
            agent=self.agent,
            black_box=str(box),
            snapshot_every=self.snapshot_every,
            checkpoint_every=self.checkpoint_every,
            observed=True,
            restores=self.restores,
            auto=self.auto,
            rolls_back=self.rolls_back,
        )
