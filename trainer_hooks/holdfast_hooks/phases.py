"""What a training thread can be doing."""

from enum import IntEnum


class Phase(IntEnum):
    """The phases of common.proto, with its numbers."""

    INIT = 1
    DATA = 2
    FORWARD_BACKWARD = 3
    OPTIMIZER = 4
    CHECKPOINT = 5
    EVAL = 6
    IDLE = 7
