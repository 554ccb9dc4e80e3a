"""``holdfast replay``: does today's core reach the verdict of a recorded incident?"""

import typer

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.watching import ReplayFlags
from holdfast_cli.incidents.replay_view import replay_lines
from holdfast_cli.views.output import print_json, to_json
from holdfast_daemon.incidents import replay as core_replay
from holdfast_daemon.incidents.folder import RecordingError, read_recording
from holdfast_daemon.replay.state_codec import CodecError
from holdfast_proto.exit_codes import ExitCode


def replay(flags: ReplayFlags) -> None:
    """Replay a recording and print both verdicts. Exits with 1 if they differ."""
    try:
        result = core_replay.replay(read_recording(flags.path))
    except (RecordingError, CodecError) as error:
        raise CommandError(str(error)) from None
    if flags.json:
        replayed = to_json(result.replayed) if result.replayed is not None else None
        outcome = {"agrees": result.agrees, "turns": result.ticks, "span_s": result.span_s}
        print_json({**outcome, "recorded": to_json(result.recorded), "replayed": replayed})
    else:
        print("\n".join(replay_lines(result)))
    if not result.agrees:
        raise typer.Exit(ExitCode.FAILED)
