"""What one cell of the map shows of its rank: one character, so that it can be read without colours."""

from enum import Enum

from holdfast_cli.top.ranks.oddity import JudgedRank, JudgedRanks
from holdfast_cli.top.ranks.rank_list import STYLES
from holdfast_core.texts.incident_lines import enum_phrase
from holdfast_daemon.control.rank_pages import Oddity
from holdfast_proto.v1 import common_pb2
from holdfast_proto.v1.common_pb2 import (
    PHASE_CHECKPOINT,
    PHASE_DATA,
    PHASE_EVAL,
    PHASE_FORWARD_BACKWARD,
    PHASE_IDLE,
    PHASE_INIT,
    PHASE_OPTIMIZER,
)


class MeshColour(Enum):
    """What a cell shows of its rank."""

    HEALTH = "health"
    PHASE = "phase"
    MEMORY = "memory"
    STEP_TIME = "own time of a step"
    GPU = "use of the GPU"


_HEALTH = {
    Oddity.EXITED: "x",
    Oddity.CULPRIT: "!",
    Oddity.STOPPED: "T",
    Oddity.STALLED: "~",
    Oddity.BEHIND: "<",
    Oddity.SLOW: "s",
    Oddity.STARTING: "+",
    Oddity.WAITING: "w",
    Oddity.RUNNING: ".",
    Oddity.ENDED: "-",
}
_PHASES = {
    PHASE_INIT: ("i", "cyan"),
    PHASE_DATA: ("d", "yellow"),
    PHASE_FORWARD_BACKWARD: ("f", ""),
    PHASE_OPTIMIZER: ("o", "green"),
    PHASE_CHECKPOINT: ("c", "blue"),
    PHASE_EVAL: ("e", "magenta"),
    PHASE_IDLE: ("-", "dim"),
}
_UNKNOWN = ("?", "dim")
_BAD, _ODD = "bold red", "yellow"
_FULL, _TIGHT = 0.95, 0.8
"""Shares of a rank's memory from which it is marked."""
_SLOW, _SLOWISH = 0.5, 0.2
"""Shares above the median of own times of a step from which a rank is marked."""
_IDLE = 0.5
"""Share of time below which the use of a GPU is marked."""


def known_colours(judged: JudgedRanks) -> list[MeshColour]:
    """Return what the map can show: of speed and use of GPUs only what is known of some rank."""
    shown = [MeshColour.HEALTH, MeshColour.PHASE, MeshColour.MEMORY]
    shown += [MeshColour.STEP_TIME] if judged.speeds.own_step_s else []
    return shown + ([MeshColour.GPU] if judged.speeds.gpu_use else [])


def cell(rank: JudgedRank, judged: JudgedRanks, colour: MeshColour) -> tuple[str, str]:
    """Return the character of a rank and its style."""
    match colour:
        case MeshColour.HEALTH:
            return _HEALTH[rank.oddity], STYLES[rank.oddity]
        case MeshColour.PHASE:
            return _PHASES.get(rank.view.phase, _UNKNOWN)
        case MeshColour.MEMORY:
            return _memory(rank)
        case MeshColour.STEP_TIME:
            return _step_time(rank, judged)
        case MeshColour.GPU:
            use = judged.speeds.gpu_use.get(rank.number)
            return _UNKNOWN if use is None else (_digit(use), _ODD if use < _IDLE else "")


def legend(judged: JudgedRanks, colour: MeshColour) -> str:
    """Return what the characters mean."""
    match colour:
        case MeshColour.HEALTH:
            words = [f"{_HEALTH[kind]} {kind.word} {number}" for kind, number in judged.counts.items()]
            return "health: " + "  ".join(words)
        case MeshColour.PHASE:
            words = [f"{letter} {enum_phrase(common_pb2.Phase, phase)}" for phase, (letter, _) in _PHASES.items()]
            return f"phase: {'  '.join(words)}  ? not known"
        case MeshColour.MEMORY:
            return "memory: 0 to 9 is the tenth of its memory that a rank has in use  ? not known"
        case MeshColour.STEP_TIME:
            return f"step time: tenths above the median of {judged.speeds.median_step_s:.3g} s, 9 is more  ? not known"
        case MeshColour.GPU:
            return "GPU: 0 to 9 is the tenth of the time in which a kernel runs on it  ? not known"


def under_cursor(rank: JudgedRank, judged: JudgedRanks, colour: MeshColour) -> str:
    """Return a rank in words, with the number behind its character."""
    text = f"rank {rank.number}: {judged.state_text(rank)}"
    if colour is MeshColour.STEP_TIME and (own_s := judged.speeds.own_step_s.get(rank.number)) is not None:
        return f"{text}, own time of a step {own_s:.3g} s"
    if colour is MeshColour.GPU and (use := judged.speeds.gpu_use.get(rank.number)) is not None:
        return f"{text}, GPU in use {use:.0%} of the time"
    return text


def _memory(rank: JudgedRank) -> tuple[str, str]:
    used, limit = rank.view.memory_bytes, rank.view.memory_limit_bytes
    if not (used and limit):
        return _UNKNOWN
    share = used / limit
    return _digit(share), _BAD if share >= _FULL else _ODD if share >= _TIGHT else ""


def _step_time(rank: JudgedRank, judged: JudgedRanks) -> tuple[str, str]:
    own_s, median_s = judged.speeds.own_step_s.get(rank.number), judged.speeds.median_step_s
    if own_s is None or median_s <= 0.0:
        return _UNKNOWN
    above = own_s / median_s - 1.0
    return _digit(above), _BAD if above >= _SLOW else _ODD if above >= _SLOWISH else ""


def _digit(share: float) -> str:
    return str(max(0, min(9, int(share * 10))))
