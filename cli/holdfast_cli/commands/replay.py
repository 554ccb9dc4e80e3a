"""``holdfast replay``: does today's core come to the verdict of a recorded incident?"""

from pathlib import Path
from typing import Annotated

import typer

from holdfast_cli.commands.options import Json
from holdfast_cli.errors import CommandError
from holdfast_proto.exit_codes import ExitCode


def replay(
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="An incident's folder, or its exported archive.")],
    *,
    json: Json = False,
) -> None:
    """Show the core again what it saw before an incident. Exits 0 if it comes to the same verdict, else 1."""
    from holdfast_cli.incidents.replay_view import replay_lines
    from holdfast_cli.views.output import print_json, to_json
    from holdfast_daemon.incidents import replay as core_replay
    from holdfast_daemon.incidents.folder import RecordingError, read_recording
    from holdfast_daemon.replay.state_codec import CodecError

    try:
        result = core_replay.replay(read_recording(path))
    except (RecordingError, CodecError) as error:
        raise CommandError(str(error)) from None
    if json:
        replayed = to_json(result.replayed) if result.replayed is not None else None
        outcome = {"agrees": result.agrees, "turns": result.ticks, "span_s": result.span_s}
        print_json({**outcome, "recorded": to_json(result.recorded), "replayed": replayed})
    else:
        print("\n".join(replay_lines(result)))
    if not result.agrees:
        raise typer.Exit(ExitCode.FAILED)
