"""Parses and checks the values of one run's keys, and refuses bad ones, each message alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast_core.naming import incident_number
from holdfast_daemon.validation.message_rules import check_event, check_incident, check_record, check_spec
from holdfast_daemon.validation.node_rules import KnownRanks, check_node
from holdfast_daemon.validation.refused_values import EventNumbers, Refusals, RepeatedError, sender_of
from holdfast_proto import keys
from holdfast_proto.checks.value_rules import RefusedError, check_node_name
from holdfast_proto.run_key import ForgedError, Seal
from holdfast_proto.state_value import read_state
from holdfast_proto.v1 import store_pb2 as store

Parsed = TypeVar("Parsed", bound=Message)
Claims = frozenset[tuple[int, int]]
"""Ranks that a node says are alive there: pairs of generation and rank."""


@dataclass(frozen=True)
class _Held:
    """What is known of one node."""

    data: bytes
    """Bytes in the store, good or refused: unchanged bytes are not parsed again."""
    newest: store.NodeState | None
    """Last good state; None before the first."""
    claims: Claims = frozenset()
    """Claims of ``newest``."""
    shown: store.NodeState | None = None
    """Last state that the core was shown."""
    is_foreign: bool = False
    """Whether ``data`` is no state that this version can parse."""


class Intake:
    """Messages of one run on their way to its core. A bad one is counted, logged once, and left out.

    The last good state of a node replaces a refused one for as long as the store holds the node's key: the agent's
    lease is alive, and a healthy run must not be restarted because of a message that only this daemon cannot read.
    """

    def __init__(self, run: str, seal: Seal) -> None:
        self.refusals = Refusals(run)
        self.seal = seal
        """That of the present start of the run."""
        self._run = run
        self._ranks = KnownRanks()
        self._held: dict[str, _Held] = {}
        self._numbers: dict[str, int] = {}
        """Node -> number of its newest good state, also of nodes whose keys are gone."""
        self._judged_by: tuple[int, int] = (0, 0)
        self._shown: dict[str, store.NodeState] = {}

    def serve(self, seal: Seal) -> None:
        """Read the values of a start of the run from now on. What is known of another start is forgotten."""
        if seal != self.seal:
            self.seal, self._held, self._numbers, self._shown = seal, {}, {}, {}

    def spec(self, data: bytes, seal: Seal) -> store.RunSpec | None:
        """Return the run's spec, or None if it is refused."""
        return self._take(
            _parser_of(store.RunSpec, seal, keys.spec(self._run)),
            data,
            lambda it: check_spec(it, self._run),
            source="spec",
            what="its spec",
            consequence=_UNLED,
        )

    def record(self, data: bytes) -> store.CoordinatorState | None:
        """Return what the last leader knew, or None if it is refused."""
        return self._take(
            _parser_of(store.CoordinatorState, self.seal, keys.state(self._run)),
            data,
            lambda it: check_record(it, self._run),
            source="record",
            what="its leader's record",
            consequence=_ANEW,
        )

    def incidents(self, entries: Mapping[bytes, bytes]) -> dict[str, store.Incident]:
        """Return the good ones of the run's incidents by id, oldest first."""
        found = {}
        for key, data in entries.items():
            name = key.decode(errors="replace")
            incident = self._take(
                _parser_of(store.Incident, self.seal, keys.incident(self._run, name)),
                data,
                lambda it, name=name: check_incident(it, self._run, name),  # type: ignore[misc]
                source="incident",
                what=f"incident {name[:80]!r}",
            )
            if incident is not None:
                found[name] = incident
        return {name: found[name] for name in sorted(found, key=incident_number)}

    def node_names(self, members: Iterable[bytes]) -> list[str]:
        """Return the good ones of the names of nodes, sorted."""
        names = []
        for member in members:
            try:
                name = member.decode()
                check_node_name(name, "name")
            except ValueError as error:  # UnicodeDecodeError is one, too
                self.refusals.add("node", "a node's name", error)
            else:
                names.append(name)
        return sorted(names)

    def event(self, data: bytes | None, spec: store.RunSpec | None, numbers: EventNumbers) -> store.Event | None:
        """Return an event, or None if it is refused. ``data``: None if the entry has no such field.

        ``numbers`` is brought up to date.
        """
        if data is None:
            self.refusals.add("event", "an event", "its entry has no field 'event'")
            return None
        number = 0

        def parse(sealed: bytes) -> store.Event:
            nonlocal number
            opened = self.seal.open(keys.events(self._run), sealed)
            number = opened.number
            return _parsed(store.Event, opened.content)

        def check(event: store.Event) -> None:
            check_event(event, spec)
            numbers.note(sender_of(event), number)

        return self._take(parse, data, check, source="event", what="an event")

    def held_nodes(self) -> Set[str]:
        """Return the names of the nodes whose keys were there at the last look."""
        return self._held.keys()

    def unread_nodes(self) -> set[str]:
        """Return the nodes that send what this version cannot read, and of which no state could be read yet."""
        return {name for name, it in self._held.items() if it.is_foreign and it.newest is None}

    def nodes(
        self,
        found: Mapping[str, bytes | None],
        spec: store.RunSpec | None,
        members: Sequence[str] = (),
    ) -> dict[str, store.NodeState]:
        """Return the state of every node whose key is there.

        Args:
            found: what the store holds by node; None if it is of another type than a state has.
            spec: of the run, if it is known.
            members: nodes of the run in rank order, where it is decided: these own their ranks.
        """
        world = (spec.nodes, spec.ranks_per_node) if spec is not None else (0, 0)
        if world != self._judged_by:
            self._held, self._judged_by = {}, world
        changed = [name for name, data in found.items() if name not in self._held or self._held[name].data != data]
        if not changed and self._held.keys() == found.keys():
            return dict(self._shown)
        held = {name: self._held[name] for name in found if name in self._held}
        for name in changed:
            held[name] = self._look_at(name, found[name], held.get(name), spec)
        self._held = self._settle(held, changed, spec, members)
        self._shown = {name: it.shown for name, it in self._held.items() if it.shown is not None}
        return dict(self._shown)

    def _look_at(self, name: str, data: bytes | None, before: _Held | None, spec: store.RunSpec | None) -> _Held:
        before = before or _Held(b"", None)
        if data is None:
            self.refusals.add("key", f"the key of node {name}", "it holds another type of value", _KEPT)
            return before
        claims: Claims = frozenset()
        is_parsed = False
        number = 0

        def parse(sealed: bytes) -> store.NodeState:
            nonlocal number, is_parsed
            opened = self.seal.open(keys.node(self._run, name), sealed)
            number = opened.number
            if number < self._numbers.get(name, 0):
                is_parsed = True  # as it was, once
                raise RepeatedError("it was written before the newest one that is known")
            return read_state(opened.content)

        def check(node: store.NodeState) -> None:
            nonlocal claims, is_parsed
            is_parsed = True
            claims = check_node(node, name=name, run=self._run, spec=spec, known=self._ranks)

        what = f"the state of node {name}"
        state = self._take(parse, data, check, source="node", what=what, consequence=_KEPT)
        if state is None:
            return _Held(data, before.newest, before.claims, before.shown, is_foreign=not is_parsed)
        self._numbers[name] = number
        return _Held(data, state, claims, before.shown)

    def _settle(
        self, held: dict[str, _Held], changed: Iterable[str], spec: store.RunSpec | None, members: Sequence[str]
    ) -> dict[str, _Held]:
        """Show the newest states, except of nodes that claim a rank which another node has."""
        claimed = [it.claims for it in held.values()]
        losers: set[str] = set()
        if len(frozenset().union(*claimed)) < sum(map(len, claimed)):
            losers = self._losers(held, spec, members)
        for name in losers.intersection(changed):
            self.refusals.add("node", f"the state of node {name}", "another node has one of its ranks", _KEPT)
        return {name: it if name in losers else replace(it, shown=it.newest) for name, it in held.items()}

    def _losers(self, held: Mapping[str, _Held], spec: store.RunSpec | None, members: Sequence[str]) -> set[str]:
        """Return the nodes that claim a rank of another one, which has it by rank order or had it first."""
        claimants: dict[tuple[int, int], list[str]] = {}
        for name, it in held.items():
            for claim in it.claims:
                claimants.setdefault(claim, []).append(name)
        had = {
            (it.shown.generation, rank.rank): name
            for name, it in self._held.items()
            if it.shown is not None
            for rank in it.shown.ranks
        }
        losers: set[str] = set()
        for claim, names in claimants.items():
            if len(names) > 1:
                place = claim[1] // spec.ranks_per_node if spec is not None and spec.ranks_per_node else len(members)
                rightful = members[place] if place < len(members) else had.get(claim)
                owner = rightful if rightful in names else min(names)
                losers.update(name for name in names if name != owner)
        return losers

    def _take(
        self,
        parse: Callable[[bytes], Parsed],
        data: bytes,
        check: Callable[[Parsed], None],
        *,
        source: str,
        what: str,
        consequence: str = "it is passed over",
    ) -> Parsed | None:
        """Return the message, or None if it is refused: counted under ``source``, logged as ``what``."""
        try:
            message = parse(data)
            check(message)
        except ForgedError as error:
            self.refusals.add("signature", what, error, consequence)
        except RepeatedError as error:
            self.refusals.add("repeated", what, error, consequence)
        except (DecodeError, RefusedError) as error:
            self.refusals.add(source, what, error, consequence)
        else:
            return message
        return None


def _parsed(kind: type[Parsed], data: bytes) -> Parsed:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise DecodeError(f"its {len(data)} bytes are no {kind.DESCRIPTOR.name}") from None


def _parser_of(kind: type[Parsed], seal: Seal, place: str) -> Callable[[bytes], Parsed]:
    return lambda sealed: _parsed(kind, seal.open(place, sealed).content)


_UNLED = "the run is not led: publish it again"
_ANEW = "the run is led from what its nodes say"
_KEPT = "its last good state stands"
