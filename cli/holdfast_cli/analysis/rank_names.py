"""The rank in the name of a file."""

import re

_RANK_WORD = re.compile(
    r"(?:(?<![A-Za-z])(?P<kind>local|node|group|role|dp|tp|pp|cp|ep|sp|mp|fsdp|hsdp)[-_ ]?)?rank[-_ ]?(?P<number>\d+)",
    re.IGNORECASE,
)
"""A rank within a node, or within one dimension of a mesh, is another one than the rank in the whole job."""
_LAST_NUMBER = re.compile(
    r"(\d+)(?:\.(?:json|pkl|pickle|txt|log|dump|trace|gz|flight_recorder\w*|stacks?))*$", re.IGNORECASE
)


class NoRankError(ValueError):
    """The name does not say which rank a file is of."""


def rank_in(name: str) -> int:
    """Return the rank in the whole job: the number after the word "rank", else the one at the end.

    Raises NoRankError if there is none, or several.
    """
    found = list(_RANK_WORD.finditer(name))
    ranks = {int(match["number"]) for match in found if match["kind"] is None}
    if not ranks and found:
        raise NoRankError(f"its name has a {found[0]['kind'].lower()} rank alone, which is no rank in the whole job")
    if len(ranks) > 1:
        raise NoRankError(f"its name has several ranks: {', '.join(map(str, sorted(ranks)))}")
    last = _LAST_NUMBER.search(name)
    if not ranks and last is None:
        raise NoRankError("its name has no rank in it, as in rank-3.json")
    return ranks.pop() if ranks or last is None else int(last[1])
