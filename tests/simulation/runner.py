"""A runner of scenario files: commands, each with the log that it must lead to.

A file is made of blocks with an empty line between them::

    # What happens, for the reader.
    command word name=value
    ----
      1.2 what the core reported 1.2 s after the run began

The log covers all ticks that the commands above the line have run. ``pytest --rewrite`` writes the logs anew.
"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.simulation.commands import COMMANDS, begin
from tests.simulation.story_world import StoryWorld

SEPARATOR = "----"


def rewritten(scenario: Path) -> str:
    """Return the text of the scenario with the logs that its commands produce now."""
    blocks = [_script(block) for block in scenario.read_text().rstrip("\n").split("\n\n")]
    logs = run(blocks)
    texts = ["\n".join([*script, SEPARATOR, *log]) for script, log in zip(blocks, logs, strict=True)]
    return "\n\n".join(texts) + "\n"


def run(blocks: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield the log of each block. The first command is ``run``."""
    world: StoryWorld | None = None
    for script in blocks:
        for line in script:
            if line.startswith("#"):
                continue
            name, *rest = shlex.split(line)
            words = [word for word in rest if "=" not in word]
            options = dict(word.split("=", 1) for word in rest if "=" in word)
            if name == "run":
                world = begin(options)
                world.until("starting")
            else:
                assert world is not None, f"{line}: the first command is run"
                COMMANDS[name](world, words, options)
        assert world is not None
        yield world.take_log()


def _script(block: str) -> list[str]:
    lines = block.split("\n")
    return lines[: lines.index(SEPARATOR)] if SEPARATOR in lines else lines
