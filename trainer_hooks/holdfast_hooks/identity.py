"""Which rank this process is."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """This process's place in the world."""

    rank: int
    world_size: int
    local_rank: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Identity":
        """Read torchelastic's variables; a process without them is the only one of its world."""
        return cls(
            rank=int(environment.get("RANK", "0")),
            world_size=int(environment.get("WORLD_SIZE", "1")),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
        )
