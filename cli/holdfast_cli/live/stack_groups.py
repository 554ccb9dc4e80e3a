"""Groups the threads of all ranks by their stacks, so that a stack that many ranks have is shown once."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast_agent.evidence.stack_dump import Thread
from holdfast_cli.live.rank_stacks import LiveStack
from holdfast_cli.views.clean_text import one_line
from holdfast_core.texts.activities import does

_DIGITS = re.compile(r"\d+")
"""Pools number their threads, and the numbers of two ranks differ."""


_LINE, _TAIL = 140, 50
"""Most characters of a frame, and how many of them are of its end. JSON and saved files have all."""


@dataclass(frozen=True)
class StackGroup:
    """Threads with equal frames, of one rank or of several."""

    is_main: bool
    members: tuple[tuple[LiveStack, Thread], ...]

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted({stack.rank for stack, _ in self.members})


def grouped(stacks: Iterable[LiveStack]) -> list[StackGroup]:
    """Return the groups: first the main threads, then the others; of each the stacks that few ranks have first."""
    found: dict[tuple[object, ...], list[tuple[LiveStack, Thread]]] = {}
    for stack in stacks:
        for thread in stack.threads:
            is_main = stack.is_main(thread)
            name = "" if is_main else _DIGITS.sub("N", thread.name)
            found.setdefault((is_main, name, thread.frames), []).append((stack, thread))
    groups = [StackGroup(bool(key[0]), tuple(members)) for key, members in found.items()]
    return sorted(groups, key=lambda one: (not one.is_main, len(one.ranks), one.ranks[0]))


def stack_lines(stacks: Sequence[LiveStack]) -> Iterator[str]:
    """Yield the text for people, line by line."""
    for problem, ranks in _problems(stacks).items():
        yield f"{spans(ranks)}: {one_line(problem)}"
    for group in grouped(stacks):
        yield ""
        yield _heading(group)
        for frame in group.members[0][1].frames:
            yield f"    {_shortened(one_line(str(frame)))}"
        if not group.members[0][1].frames:
            yield "    (no frames)"


def spans(ranks: Iterable[int]) -> str:
    """Return ``rank 3``, or ``ranks 0-2, 5`` with neighbours joined."""
    numbers = sorted(set(ranks))
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    text = ", ".join("-".join(map(str, part)) for part in parts)
    return f"rank {text}" if len(numbers) == 1 else f"ranks {text}"


def _shortened(line: str) -> str:
    """Return a line of limited length. Names of C++ templates have hundreds of letters; the place is at the end."""
    return line if len(line) <= _LINE else f"{line[: _LINE - _TAIL]}...{line[-_TAIL + 3 :]}"


def _heading(group: StackGroup) -> str:
    ranks, count = group.ranks, len(group.members)
    threads = [thread for _, thread in group.members]
    name = "main thread" if group.is_main else f'thread "{one_line(threads[0].name)}"'
    if count > len(ranks):
        name += f" and {count - len(ranks)} more"
    active = sum(thread.active for thread in threads)
    state = "active" if active == count else f"active in {active} of {count}" if active else "idle"
    if any(thread.owns_gil for thread in threads):
        state += ", holds the GIL"
    does_what = {does(stack.activity) for stack, _ in group.members if group.is_main and stack.activity}
    return f"{spans(ranks)}, {name} ({state})" + (f": {' or '.join(sorted(does_what))}" if does_what else "")


def _problems(stacks: Iterable[LiveStack]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for stack in stacks:
        if stack.problem:
            # The problem may name the rank's file, which would keep equal problems of many ranks apart.
            text = re.sub(r"^rank-\d+\.stack\.txt ", "", stack.problem)
            found.setdefault(text if stack.threads else f"no stacks: {text}", []).append(stack.rank)
    return found
