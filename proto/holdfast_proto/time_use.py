"""What a run's wall time is used for: every second is productive, or lost to one named cause."""

from collections.abc import Mapping

PRODUCTIVE = "productive"
START_UP = "start_up"
DETECTION = "detection"
RESTART = "restart"
REPEATED_STEPS = "repeated_steps"
CHECKPOINT_STALL = "checkpoint_stall"
DATA_WAIT = "data_wait"
EVALUATION = "evaluation"
IDLE = "idle"

MEANINGS: Mapping[str, str] = {
    PRODUCTIVE: "new training steps",
    START_UP: "start-up before the first step",
    DETECTION: "stood still before a verdict, or for longer than a deadline",
    RESTART: "from a verdict to the first step after it",
    REPEATED_STEPS: "steps done again after a restart, and steps that a fault cut short",
    CHECKPOINT_STALL: "training waited for snapshots and checkpoints",
    DATA_WAIT: "training waited for data",
    EVALUATION: "evaluation",
    IDLE: "idle, or not known",
}
"""Use -> what it means, for people. The causes of loss follow the productive time in the order of a run's life."""

USES = tuple(MEANINGS)
"""All uses, as labels, messages and JSON spell them."""
