"""What a witness from outside says of ranks, such as why one is dead: it becomes a part of the incident's story.

A witness is another launcher, or NCCL's RAS. What it says is shown and never judged.
"""

from dataclasses import replace

from holdfast_core.detectors.framework import RECOVERABLE
from holdfast_core.model import WitnessReport
from holdfast_core.naming import ranks_named
from holdfast_core.tick import Tick
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

FRESH_S = 60.0
"""Time for an incident to follow what a witness has said. Some look at the ranks before Holdfast does."""
_MOST = 8
"""Words that wait for an incident."""
_MOST_ACTIONS = 50
"""Lines of a story after which it takes no more words."""


def hear(tick: Tick, said: session.WitnessWords) -> None:
    """Keep words until an incident takes them, each line once."""
    waiting = {words.line: words for words in tick.state.witness_words}
    for words in said.words:
        line = f"{said.witness} says of {ranks_named(words.ranks)}: {words.text}"
        waiting[line] = WitnessReport(tick.now, line, tick.record.generation)
    tick.state = replace(tick.state, witness_words=tuple(waiting.values())[-_MOST:])


def addressee(tick: Tick) -> store.Incident | None:
    """Return the incident that words of this moment are about: the newest one that has stopped this generation."""
    stopped = [one for one in tick.state.incidents.values() if _takes(one) and one.generation == tick.record.generation]
    newest = max(stopped, key=lambda incident: incident.detected_unix_s, default=None)
    return newest if newest is not None and tick.now - newest.detected_unix_s <= FRESH_S else None


def add_to_story(tick: Tick, incident: store.Incident) -> None:
    """Move the words that wait to the story of an incident that has stopped their generation. Old words are dropped."""
    if not _takes(incident):
        return
    told = {action.what for action in incident.actions}
    room = _MOST_ACTIONS - len(told)
    for words in tick.state.witness_words:
        is_fresh = words.generation == incident.generation and tick.now - words.unix_s <= FRESH_S
        if is_fresh and words.line not in told and room > 0:
            incident.actions.add(unix_s=words.unix_s, what=words.line)
            room -= 1
    tick.state = replace(tick.state, witness_words=())


def _takes(incident: store.Incident) -> bool:
    return incident.verdict.kind in RECOVERABLE
