"""Tells from a rank's last words whether it ended because a peer did.

One death makes every peer fail within milliseconds. torch says so by exceptions of its own types, or by a RuntimeError
in words that nobody else uses. Words such as "connection reset by peer" are those of data stores and trackers too: they
count only if torch raised them. The frame tells that, or a place in gloo's source: C++ has no frame of its own.
"""

import re

from holdfast_core.detectors.deaths.raised import Raised, last_chain

_OWN_WORDS = re.compile(
    r"(?:recv|send)(?:Bytes|Value\w*)? failed|failed to recv, got 0 bytes"  # TCPStore
    r"|ncclRemoteError|NCCL communicator was aborted|watchdog caught collective operation timeout"
    r"|timed out waiting \d+ ?ms for (?:recv|send)|application timeout caused pair closure"  # gloo
    r"|failed to pass monitoredBarrier|detected mismatch between collectives on ranks"
    r"|wait timeout after \d+ ?ms|waiting for clients\. \d+/\d+ clients joined|client socket has timed out",
    re.IGNORECASE,
)
_ANYBODYS_WORDS = re.compile(
    r"connection (?:was likely )?(?:closed|reset|refused|aborted)|broken pipe|socket (?:closed|timeout)"
    r"|remote process exit",
    re.IGNORECASE,
)
_PLACE_IN_GLOO = re.compile(r"\[[^\]\n]*\.cc(?::\d+)?\]")
_ABSENT = re.compile(
    r"keys: /default_pg/\S*/(?P<of_key>\d+)$"  # where gloo expects the address of that rank
    r"|Ranks? (?P<at_barrier>\d+(?:, ?\d+)*) failed to pass monitoredBarrier"
    r"|retrieving ncclUniqueId from \[(?P<of_nccl>\d+)\]",
    re.MULTILINE,
)
_NO_STORE = re.compile(r"client socket has (?:timed out|failed to connect)")
_OTHER_SIZE = re.compile(r"op\.preamble\.length|gloo::EnforceNotMet")
_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<expected>\d+)")
_TORCH = "/torch/"
_LOADER = "/torch/utils/data/"
"""Raises what the user's own dataset raised."""


def connection_lost(last_words: str) -> bool:
    """Return whether ``last_words``, the end of a traceback or of stderr, say that a peer has gone.

    Of chained exceptions the first decides: what comes after it is its consequence.
    """
    first = _first(last_words)
    if first.name and not first.thrown and not (first.name == "RuntimeError" or _is_of_torch(first.name)):
        return False
    if _OWN_WORDS.search(first.message):
        return True
    return _ANYBODYS_WORDS.search(first.message) is not None and _was_raised_by_torch(first)


def raised_outside_torch(last_words: str) -> bool:
    """Return whether ``last_words`` are a traceback that ends outside of torch: no peer can have caused that."""
    path = _first(last_words).path
    return path != "" and _TORCH not in path and not connection_lost(last_words)


def named_absent(last_words: str) -> set[int]:
    """Return the ranks for which ``last_words`` say that the others have waited in vain; empty: they name none."""
    message = _first(last_words).message
    if _NO_STORE.search(message):
        return {0}  # its process has the store in which all meet
    found = _ABSENT.search(message)
    return {int(number) for number in re.findall(r"\d+", found[found.lastgroup or 0])} if found else set()


def met_another_size(last_words: str) -> bool:
    """Return whether ``last_words`` say that a peer sent more than was expected: gloo then aborts the receiver."""
    return _OTHER_SIZE.search(last_words) is not None


def bytes_expected_and_got(last_words: str) -> tuple[int, int] | None:
    """Return the sizes that ``last_words`` name, if a peer sent more than was expected."""
    sizes = _SIZES.search(last_words)
    return None if sizes is None else (int(sizes["expected"]), int(sizes["got"]))


def _first(last_words: str) -> Raised:
    return next(iter(last_chain(last_words)), Raised(last_words.strip()))


def _was_raised_by_torch(one: Raised) -> bool:
    is_in_torch = (_TORCH in one.path and _LOADER not in one.path) or (one.name == "RuntimeError" and not one.path)
    is_of_torch = _is_of_torch(one.name) or one.thrown.startswith(("gloo::", "c10::"))
    return is_in_torch or is_of_torch or _PLACE_IN_GLOO.search(one.message) is not None


def _is_of_torch(name: str) -> bool:
    return name.startswith(("Dist", "nccl"))
