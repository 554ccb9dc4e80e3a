"""Words that settings, messages, metrics and files share: tiers of a bad loss, uses of time, numbers of a step."""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

MOST_BUDGET = 100_000
ROLL_BACKS = 10
"""Roll-backs of one start, unless the policy says another number."""
ROLLED_BACK = ("spike", "divergence", "non_finite")
"""Tiers of a bad loss that a roll-back may answer."""
PHASES = frozenset(common.Phase.values())
ENDED = (store.RUN_PHASE_FINISHED, store.RUN_PHASE_FAILED)
"""Phases of a run that has ended."""


class LossDefault(NamedTuple):
    """What is done about one tier."""

    action: "store.LossAction"
    budget: int
    """Number of times, or of reported losses in a row, that is tolerated before the action is taken."""


DEFAULTS = {
    "blip": LossDefault(store.LOSS_ACTION_NOTE, 0),
    "spike": LossDefault(store.LOSS_ACTION_NOTIFY, 0),
    "slow_rise": LossDefault(store.LOSS_ACTION_NOTIFY, 0),
    "divergence": LossDefault(store.LOSS_ACTION_NOTIFY, 0),
    # A loop that skips bad batches by itself has one or two in a row. After ten, the weights are most likely NaN.
    "non_finite": LossDefault(store.LOSS_ACTION_NOTIFY, 10),
}
"""Word of each tier, the mildest first: it is its key in the run's file, and its field of LossPolicy."""

TIER_WORDS: "dict[store.LossTier, str]" = {
    store.LOSS_TIER_BLIP: "blip",
    store.LOSS_TIER_SPIKE: "spike",
    store.LOSS_TIER_SLOW_RISE: "slow_rise",
    store.LOSS_TIER_DIVERGENCE: "divergence",
    store.LOSS_TIER_NON_FINITE: "non_finite",
}


def rule_of(spec: store.RunSpec, tier: "store.LossTier") -> LossDefault:
    """Return what a run does about a tier: what its spec says, else the defaults."""
    word = TIER_WORDS[tier]
    default, rule = DEFAULTS[word], getattr(spec.loss_policy, word)
    return LossDefault(rule.action or default.action, rule.budget if rule.HasField("budget") else default.budget)


def rolls_back(spec: store.RunSpec) -> bool:
    """Return whether a bad loss may have a run return to an earlier state."""
    return any(getattr(spec.loss_policy, tier).action == store.LOSS_ACTION_ROLL_BACK for tier in ROLLED_BACK)


def ends_badly(spec: store.RunSpec, counts: store.LossCounts) -> bool:
    """Return whether the newest loss is not finite, and the run does not only note that."""
    is_noted = rule_of(spec, store.LOSS_TIER_NON_FINITE).action == store.LOSS_ACTION_NOTE
    return counts.HasField("nonfinite_since") and not is_noted


PRODUCTIVE = "productive"
START_UP = "start_up"
DETECTION = "detection"
RESTART = "restart"
REPEATED_STEPS = "repeated_steps"
CHECKPOINT_STALL = "checkpoint_stall"
DATA_WAIT = "data_wait"
EVALUATION = "evaluation"
IDLE = "idle"

USE_MEANINGS: Mapping[str, str] = {
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

TIME_USES = tuple(USE_MEANINGS)
"""All uses, as labels, messages and JSON spell them."""


MEAN_FIELDS = ("mfu", "pipeline_bubble", "balance_loss")
"""Fields of a StepRecord whose mean over ranks is in the StepSummary: there, these are all fields of type Mean."""

WATCHED_FIELDS = ("loss", "validation_loss", "grad_norm", "update_norm", "balance_loss")
"""Fields of a StepRecord that are reported when they are not finite."""

GRADIENT = "gradient"
"""Name under which a StepRecord's ``nonfinite_origin`` is reported."""

NONFINITE_QUANTITIES = (*WATCHED_FIELDS, GRADIENT)
"""All values of ``NonFinite.quantity``."""


NOTIFY_EVENTS = ("incident", "recovery", "failure", "end")
"""What can be reported, as `notify.on` spells it."""
MAIL_SECURITY = ("starttls", "tls", "none")
"""How a connection to a mail server is protected."""
HEARTBEAT = "heartbeat"
"""Name of the signs of life in metrics: no channel has it."""


class CheckName(NamedTuple):
    """What people call a part of the check of a node, and the unit of its figure."""

    name: str
    unit: str = ""
    """Empty: it has no figure."""


CHECKS: Mapping[int, CheckName] = {
    store.CHECK_KIND_DISK: CheckName("disk", "B/s"),
    store.CHECK_KIND_SHM: CheckName("shared memory", "B/s"),
    store.CHECK_KIND_LOOPBACK: CheckName("loopback", "B/s"),
    store.CHECK_KIND_NETWORK: CheckName("network link", "bit/s"),
    store.CHECK_KIND_CPU_GEMM: CheckName("CPU GEMM", "FLOP/s"),
    store.CHECK_KIND_CPU_MEMORY: CheckName("CPU memory", "B/s"),
    store.CHECK_KIND_GPU_GEMM: CheckName("GPU GEMM", "FLOP/s"),
    store.CHECK_KIND_GPU_MEMORY: CheckName("GPU memory", "B/s"),
    store.CHECK_KIND_GPU_STATE: CheckName("GPU state"),
    store.CHECK_KIND_CLOCK: CheckName("clock", "s"),
}
"""CheckKind -> its name and unit."""
