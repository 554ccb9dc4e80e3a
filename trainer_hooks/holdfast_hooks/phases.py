"""What a training thread can be doing, and what it does until it reports something else."""

from enum import IntEnum

from holdfast_proto.v1 import common_pb2


class Phase(IntEnum):
    """The phases of a rank, as its reports number them."""

    INIT = common_pb2.PHASE_INIT
    DATA = common_pb2.PHASE_DATA
    FORWARD_BACKWARD = common_pb2.PHASE_FORWARD_BACKWARD
    OPTIMIZER = common_pb2.PHASE_OPTIMIZER
    CHECKPOINT = common_pb2.PHASE_CHECKPOINT
    EVAL = common_pb2.PHASE_EVAL
    IDLE = common_pb2.PHASE_IDLE


BEFORE_FIRST_STEP = Phase.INIT
AT_STEP_START = Phase.FORWARD_BACKWARD
"""A loop that reports no phases spends its steps here."""
