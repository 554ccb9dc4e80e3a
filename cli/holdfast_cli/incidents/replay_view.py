"""A replay in a few lines."""

from collections.abc import Iterator

from holdfast_cli.incidents.wait_tree import ranks_text
from holdfast_cli.views.phrases import enum_word
from holdfast_daemon.incidents.replay import Replay
from holdfast_proto.v1.store_pb2 import Verdict, VerdictKind


def replay_lines(replay: Replay) -> Iterator[str]:
    """Yield the verdict on record, the one reached again, and whether they agree."""
    yield f"recorded: {_verdict_line(replay.recorded)}"
    yield f"replayed: {_verdict_line(replay.replayed) if replay.replayed is not None else 'no such incident'}"
    agreement = "the same verdict" if replay.agrees else "another verdict"
    yield f"{agreement}, from {replay.ticks} ticks in {replay.span_s:.1f} s"


def _verdict_line(verdict: Verdict) -> str:
    kind = enum_word(VerdictKind, "VERDICT_KIND_", verdict.kind)
    culprits = f" of {ranks_text(verdict.culprits)}" if verdict.culprits else ""
    call = f" at call {verdict.seq} of group {verdict.group}" if verdict.group else ""
    return f"{kind}{culprits}{call}: {verdict.message}"
