"""What is known of the ranks counts no longer once others take their places."""

from holdfast_daemon.core import detection
from holdfast_daemon.core.turn import Turn


def forget(turn: Turn, after_step: int) -> None:
    """Forget the ranks of the generation before; the new one goes on after ``after_step``."""
    turn.update(
        first_exit_unix_s=0.0,
        noted=frozenset(),
        counted_steps={},
        pending_steps={},
        suspicion=None,
        gathered_unix_s=0.0,
        stacks={},
        heard_of={},
        all_stopped_unix_s=0.0,
        several_stopped_unix_s=0.0,
        deadlines=turn.state.deadlines.new_generation(),
    )
    detection.restart(turn, after_step)
