"""Tells from a rank's last words whether it ended because a peer did.

One death makes every peer fail within milliseconds, with the messages below. Python's own ConnectionResetError or
BrokenPipeError is not among them: it comes from the user's sockets (a data store, a tracker), while
torch raises RuntimeError and its own Dist...Error.
"""

import re

_PEER_LOST = re.compile(
    r"connection (?:was likely )?(?:closed|reset|refused|aborted)"  # gloo, TCPStore
    r"|broken pipe|socket closed"
    r"|(?:recv|send)(?:Bytes|Value\w*)? failed|failed to recv, got 0 bytes"  # TCPStore
    r"|remote process exit|ncclRemoteError|NCCL communicator was aborted"
    r"|timed out waiting \d+ ?ms for (?:recv|send)"  # gloo: the peer has fallen silent
    r"|watchdog caught collective operation timeout|wait timeout after \d+ ?ms",
    re.IGNORECASE,
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_OTHER_SIZE = re.compile(r"op\.preamble\.length|gloo::EnforceNotMet")
_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<expected>\d+)")
_FILE = re.compile(r'^  File "(?P<path>[^"]+)"', re.MULTILINE)
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt)(?::|$)")
_NAME_ALONE = re.compile(r"[\w.]+:")
_EXCEPTION = re.compile(r"(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Za-z_]\w*)(?::|$)")


def connection_lost(last_words: str) -> bool:
    """Return whether ``last_words``, the end of a traceback or of stderr, say that a peer has gone.

    Of chained exceptions the first decides: what comes after it is its consequence.
    """
    message = _first_message(last_words)
    exception = _EXCEPTION.match(message)
    if exception and not _from_torch(exception["name"]):
        return False
    return _PEER_LOST.search(message) is not None


def raised_outside_torch(last_words: str) -> bool:
    """Return whether ``last_words`` are a traceback that ends outside of torch: no peer can have caused that."""
    paths = _FILE.findall(last_words)
    return bool(paths) and "/torch/" not in paths[-1] and not connection_lost(last_words)


def met_another_size(last_words: str) -> bool:
    """Return whether ``last_words`` say that a peer sent more than was expected: gloo then aborts the receiver."""
    return _OTHER_SIZE.search(last_words) is not None


def bytes_expected_and_got(last_words: str) -> tuple[int, int] | None:
    """Return the sizes that ``last_words`` name, if a peer sent more than was expected."""
    sizes = _SIZES.search(last_words)
    return None if sizes is None else (int(sizes["expected"]), int(sizes["got"]))


def exception_line(last_words: str) -> str:
    """Return the line that names the last exception, such as "ValueError: bad sample"; the last line without one.

    A message that begins below the exception's name is moved up to it.
    """
    lines = _lines(last_words)
    starts = _exception_starts(lines)
    if not starts:
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    line = lines[starts[-1]].strip()
    below = next((line.strip() for line in lines[starts[-1] + 1 :] if line.strip()), "")
    return f"{line} {below}".rstrip() if _NAME_ALONE.fullmatch(line) else line


def names_an_exception(last_words: str) -> bool:
    """Return whether the line of :func:`exception_line` names an exception: after a traceback, or by its own name."""
    return bool(_exception_starts(_lines(last_words)) or _NAMED.match(exception_line(last_words)))


def _lines(last_words: str) -> list[str]:
    return _RANK_PREFIX.sub("", last_words).splitlines()


def _exception_starts(lines: list[str]) -> list[int]:
    """Return where exceptions are named: at the lines at the margin that follow the frames of a traceback.

    A warning also has an indented line, with the source code. After that, whatever the script prints is at the margin.
    """
    starts, has_frames = [], False
    for i, line in enumerate(lines):
        if line[:1].isspace():
            has_frames = has_frames or _FILE.match(line) is not None
            continue
        is_after_indented = i > 0 and lines[i - 1][:1].isspace()
        if is_after_indented and (has_frames or _NAMED.match(line)):
            starts.append(i)
        has_frames = False
    return starts


def _first_message(last_words: str) -> str:
    lines = _lines(last_words.strip())
    starts = _exception_starts(lines)
    if not starts:
        return "\n".join(lines)
    message = lines[starts[0] :]
    end = message.index("") if "" in message else len(message)
    return "\n".join(message[:end])


def _from_torch(name: str) -> bool:
    return name == "RuntimeError" or name.startswith(("Dist", "nccl"))
