"""What an agent tells a rank at its start, in one environment variable.

Through the environment and not over the session, so that a rank can restore its state and train even
if the agent dies in the moment it starts.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "HOLDFAST_CONTEXT"

EXIT_CONFIGURATION = 78
"""Exit code of a rank whose configuration is wrong (EX_CONFIG of sysexits.h): it is not restarted."""


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

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that carries this context."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "RankContext | None":
        """Return the context, or None if this process was not started by an agent.

        Raises ValueError if the variable is there but does not make sense.
        """
        text = environment.get(VARIABLE)
        if text is None:
            return None
        try:
            return cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{VARIABLE} is not what an agent of this version writes: {error}") from None
