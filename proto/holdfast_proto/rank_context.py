"""What an agent tells a rank at its start, in one environment variable.

Through the environment and not over the session, so that a rank can restore its state and train even
if the agent dies in the moment it starts.
"""

import dataclasses
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "HOLDFAST_CONTEXT"

THREAD_PREFIX = "holdfast-"
"""Begins the names that the hooks' threads show to the kernel: an agent does not take their work for the rank's."""


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """The agent's side of one rank of one generation. Paths are absolute."""

    run: str
    generation: int
    agent: str
    """gRPC target of the agent: ``unix:/path``."""
    black_box: str
    snapshot_every: int = 0
    """Steps between snapshots; 0: none."""
    checkpoint_every: int = 0
    """Steps between checkpoints, a multiple of snapshot_every; 0: on command and at the end only."""
    restore_slot: str = ""
    """Slot that holds the state to start from; with neither this nor a checkpoint: start from the seed."""
    restore_checkpoint: str = ""
    """Directory of the checkpoint with that state, to load from where the slot is missing or of another layout."""
    faults_allowed: bool = False
    """Faults may be injected into this rank."""
    observed: bool = False
    """Somebody else has launched the rank: it is watched, and nothing of it is saved, restored or ended."""

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that carries this context."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, *, rank: int = 0) -> "RankContext | None":
        """Return the context, or None if no agent has to do with this process.

        ``rank``: this process's; names the black box of a rank that is observed. Raises ValueError if the
        variable is there but does not make sense.
        """
        text = environment.get(VARIABLE)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            if "observed_node" in fields:
                return ObservedNode(**fields["observed_node"]).context(rank, environment)
            return cls(**fields)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{VARIABLE} is not what an agent of this version writes: {error}") from None


@dataclass(frozen=True, kw_only=True)
class ObservedNode:
    """What all ranks of a node share that somebody else launches: the launcher hands it down in its environment."""

    run: str
    agent: str
    """gRPC target of the agent: ``unix:/path``."""
    black_boxes: str
    """Folder of the node's black boxes: an absolute path."""

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that carries this to the launcher and its ranks."""
        return {VARIABLE: json.dumps({"observed_node": dataclasses.asdict(self)})}

    def shell_line(self) -> str:
        """Return the line of a shell that does so for all launchers after it."""
        return "".join(f"export {name}={shlex.quote(value)}" for name, value in self.to_environment().items())

    def context(self, rank: int, environment: Mapping[str, str]) -> RankContext:
        """Return the context of one rank. Its generation is the launcher's count of starts, where it keeps one."""
        generation = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
        box = black_box_path(Path(self.black_boxes), generation, rank)
        return RankContext(run=self.run, generation=generation, agent=self.agent, black_box=str(box), observed=True)


def black_box_path(black_boxes: Path, generation: int, rank: int) -> Path:
    """Return where in a node's folder of black boxes a rank of a generation keeps its own."""
    return black_boxes / f"generation-{generation:04}" / f"rank-{rank:05}.box"
