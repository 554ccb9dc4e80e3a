"""When the shards of checkpoints are compressed."""

from enum import StrEnum


class Compression(StrEnum):
    """What is not compressed is stored raw, which takes a sixth of the CPU time."""

    AUTO = "auto"
    """Unless the writer has to wait for a core: then the ranks need it."""
    ALWAYS = "always"
    NEVER = "never"
