"""The end of a rank's log, of any generation: a rank that died is restarted, and an older log explains its death."""

from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from holdfast_cli.rank_logs.log_tail import LogTail
from holdfast_cli.top.run_looks import RunLook
from holdfast_cli.views.clean_text import one_line, some_lines
from holdfast_daemon.incidents.evidence_files import generations_with_log
from holdfast_proto import run_files

LOG_LINES = 200


@dataclass(frozen=True)
class RankLog:
    """The newest lines of one log, or a note that says why there are none."""

    generation: int
    generations: tuple[int, ...] = ()
    """Generations with a log of the rank on this machine, the newest first."""
    lines: tuple[str, ...] = ()
    note: str = ""

    def beside(self, steps: int) -> int | None:
        """Return the generation that is ``steps`` older than the shown one, newer if negative; None: there is none."""
        if self.generation not in self.generations:
            return self.generations[0] if self.generations and steps > 0 else None
        at = self.generations.index(self.generation) + steps
        return self.generations[at] if 0 <= at < len(self.generations) else None


def read_log(look: RunLook, rank: int, wanted: int | None) -> RankLog:
    """Return the end of a rank's log. ``wanted``: a generation; None: the newest. Reads files."""
    record, newest = look.target.record, look.status.generation
    if record is None:
        return RankLog(newest, note="no log here: `holdfast run` has not started this run on this machine")
    if record.observed:
        return RankLog(newest, note="no log: another launcher has started the ranks, and it has their output")
    directory = Path(record.directory)
    generations = generations_with_log(directory, rank, newest)
    generation = newest if wanted is None else wanted
    if generation not in generations:
        return RankLog(generation, generations, note=f"no log of this rank in generation {generation} on this machine")
    try:
        tail = LogTail(run_files.rank_log(directory, generation, rank))
        # A rank that has died may have left a line without an end.
        lines = [*tail.newest(LOG_LINES), *tail.rest()][-LOG_LINES:]
    except OSError as error:
        return RankLog(generation, generations, note=f"the log cannot be read: {one_line(str(error))}")
    return RankLog(generation, generations, tuple(lines), "" if lines else "the log is empty")


def log_text(log: RankLog, look: RunLook, rank: int) -> Text:
    """Return a log with its heading: which generation it is of, and which others have one."""
    text = Text(f"\nlog of generation {log.generation}", "bold")
    if log.lines:
        text.append(f", newest {len(log.lines)} lines")
    if len(log.generations) > 1:
        named = {one.generation for one in look.incidents if rank in one.verdict.culprits}
        others = [f"{one} (an incident names this rank)" if one in named else str(one) for one in log.generations]
        text.append(f"\nlogs of generations {', '.join(others)}  g: older  G: newer", "not bold")
    if log.note:
        return text.append(f"\n{log.note}", "not bold dim")
    return text.append("\n" + "\n".join(map(some_lines, log.lines)), "not bold")
