"""``holdfast replay``: does today's core reach the verdict of a recorded incident?"""

from collections.abc import Iterator

import typer

from holdfast_cli.errors import CommandError
from holdfast_cli.flags.watching import ReplayFlags
from holdfast_cli.views.output import print_json
from holdfast_core.naming import ranks_named
from holdfast_core.texts.incident_lines import enum_phrase
from holdfast_daemon.incidents import replay as core_replay
from holdfast_daemon.incidents.folder import RecordingError, read_recording
from holdfast_daemon.replay.state_codec import CodecError
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.message_json import to_json
from holdfast_proto.v1.store_pb2 import Verdict, VerdictKind


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
        print("\n".join(_lines(result)))
    if not result.agrees:
        raise typer.Exit(ExitCode.FAILED)


def _lines(result: core_replay.Replay) -> Iterator[str]:
    """Yield the verdict on record, the one reached again, and whether they agree."""
    yield f"recorded: {_verdict_line(result.recorded)}"
    yield f"replayed: {_verdict_line(result.replayed) if result.replayed is not None else 'no such incident'}"
    agreement = "the same verdict" if result.agrees else "another verdict"
    yield f"{agreement}, from {result.ticks} ticks in {result.span_s:.1f} s"


def _verdict_line(verdict: Verdict) -> str:
    kind = enum_phrase(VerdictKind, verdict.kind)
    culprits = f" of {ranks_named(sorted(verdict.culprits))}" if verdict.culprits else ""
    call = f" at call {verdict.seq} of group {verdict.group}" if verdict.group else ""
    return f"{kind}{culprits}{call}: {verdict.message}"
