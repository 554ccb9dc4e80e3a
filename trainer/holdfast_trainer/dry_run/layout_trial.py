"""The dry run of a layout: one training step of each tried rank, in a process of its own.

A process can be only one rank, because torch keeps what it has learned about the meshes of that rank. The processes are
forked, so that torch is imported once. That is why the preload module is imported here.
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial

import holdfast_trainer.preload  # noqa: F401
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.dry_run.own_process import ProcessDiedError, run_each
from holdfast_trainer.dry_run.rank_trial import RankReport, try_step
from holdfast_trainer.dry_run.reduced import not_covered
from holdfast_trainer.model.stages import stage_ranks

_ALL_UP_TO = 16
"""Largest number of ranks of which every one is tried."""
_NAMED = 4
"""Number of ranks that the line about a problem names."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The result of a dry run."""

    layout: str
    """Degrees of parallelism, in words."""
    ranks: int
    tried: int
    """Number of ranks that took a step. The others have the same shapes as one of these."""
    stages: int
    parameters: tuple[int, int]
    """Elements of the parameters on a rank: the fewest and the most."""
    problems: tuple[str, ...]
    """Problems, one line each, with ranks, coordinates and settings. Empty: the layout works."""
    not_covered: tuple[str, ...]
    """Settings that the dry run leaves out, one line each."""

    @property
    def summary(self) -> str:
        """One line about a layout that works."""
        fewest, most = self.parameters
        parameters = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
        tried = "every rank" if self.tried == self.ranks else f"{self.tried} ranks, which have the shapes of all,"
        return (
            f"{self.layout}: {_count(self.ranks, 'rank')}, {_count(self.stages, 'stage')}, "
            f"{parameters} parameters a rank; {tried} took a step"
        )


def dry_run(config: TrainerConfig) -> DryRun:
    """Return the result of one step of the ranks of ``config``, which run on this machine's cores."""
    ranks = tried_ranks(config)
    steps = [partial(_report_as_text, config, rank) for rank in ranks]
    reports = dict(zip(ranks, map(_read_report, run_each(steps, at_once=_cores())), strict=True))
    sizes = [report.parameters for report in reports.values()]
    parallel = config.parallel
    return DryRun(
        layout=f"dp {parallel.dp} x cp {parallel.cp} x tp {parallel.tp} x pp {parallel.pp}",
        ranks=parallel.ranks,
        tried=len(ranks),
        stages=len(stage_ranks(parallel)),
        parameters=(min(sizes), max(sizes)),
        problems=tuple(_problems(reports)),
        not_covered=tuple(not_covered(config)),
    )


def tried_ranks(config: TrainerConfig) -> list[int]:
    """Return all ranks of a small layout. Of a large one, return the first and the last rank of each pipeline rank.

    Ranks that differ only in dp, cp and tp compute with the same shapes. There is one exception: a parameter that
    cannot be cut evenly has its smaller part on one of the last ranks.
    """
    ranks, of_one_part = config.parallel.ranks, config.parallel.ranks // config.parallel.pp
    if ranks <= _ALL_UP_TO:
        return list(range(ranks))
    firsts = range(0, ranks, of_one_part)
    return sorted({*firsts, *(first + of_one_part - 1 for first in firsts)})


def _report_as_text(config: TrainerConfig, rank: int) -> str:
    return json.dumps(asdict(try_step(config, rank)))


def _read_report(result: str | ProcessDiedError) -> RankReport:
    if isinstance(result, ProcessDiedError):
        return RankReport({}, problem=f"{result}: change [model] or [parallel]")
    return RankReport(**json.loads(result))


def _problems(reports: dict[int, RankReport]) -> Iterable[str]:
    alike: dict[str, list[int]] = {}
    for rank, report in reports.items():
        if report.problem:
            # One problem may have different sizes on different ranks. Without the numbers its lines are equal.
            alike.setdefault(re.sub(r"\d+", "", report.problem), []).append(rank)
    for ranks in alike.values():
        named = ", ".join(_name(rank, reports[rank]) for rank in ranks[:_NAMED])
        others = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
        yield f"{named}{others}: {reports[ranks[0]].problem}"


def _name(rank: int, report: RankReport) -> str:
    coordinates = " ".join(f"{axis} {index}" for axis, index in report.coordinates.items())
    return f"rank {rank} ({coordinates})" if coordinates else f"rank {rank}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _cores() -> int:
    return len(os.sched_getaffinity(0))
