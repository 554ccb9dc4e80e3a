"""``holdfast inject``: harm a rank of a run on purpose."""

from enum import StrEnum
from typing import Annotated

import typer

from holdfast_cli.commands.options import DEFAULT_DIRECTORY, Control, Directory, RunName


class PhaseName(StrEnum):
    """Where a fault strikes."""

    DATA = "data"
    FORWARD_BACKWARD = "forward_backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    IDLE = "idle"


def inject(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="What to do to the rank: see --list.")] = None,
    *,
    rank: Annotated[int | None, typer.Option(help="Whom.", min=0)] = None,
    step: Annotated[int, typer.Option(help="In which step; -1: at once.", min=-1)] = -1,
    phase: Annotated[PhaseName | None, typer.Option(help="As soon as the rank enters this phase.")] = None,
    factor: Annotated[float, typer.Option(help="How many times slower.")] = 0.0,
    duration_s: Annotated[float, typer.Option("--duration", help="Seconds; 0: for good.")] = 0.0,
    seed: Annotated[int, typer.Option(help="For what is chosen at random.", min=0)] = 0,
    at_random: Annotated[bool, typer.Option("--random", help="Go on injecting at random steps.")] = False,
    rate: Annotated[float, typer.Option(help="With --random: probability of a fault in a step.")] = 0.01,
    kinds: Annotated[str, typer.Option(help="With --random: names, separated by commas.")] = "kill,stop",
    steps: Annotated[int, typer.Option("--for", help="With --random: for so many steps.", min=1)] = 1000,
    show: Annotated[bool, typer.Option("--list", help="List all kinds.")] = False,
    run: RunName = None,
    directory: Directory = DEFAULT_DIRECTORY,
    control: Control = None,
) -> None:
    """Harm a rank of a run that was started with --allow-faults, and see what Holdfast makes of it.

    Example: holdfast inject gil-held --rank 3 --step 100 --duration 20
    """
    from rich.console import Console

    from holdfast_cli.errors import ConfigurationError
    from holdfast_cli.injection import RandomInjection, fault_table, order
    from holdfast_cli.run_folder.target import find_target
    from holdfast_hooks.faults import Fault
    from holdfast_hooks.phases import Phase

    if show:
        Console().print(fault_table())
        return
    if at_random == (kind is not None):
        raise ConfigurationError("give the KIND of a fault (`holdfast inject --list`), or --random")
    if at_random:
        chosen = tuple(kinds.split(","))
        injection = RandomInjection(
            rate_per_step=rate, kinds=chosen, ranks=() if rank is None else (rank,), seed=seed, steps=steps
        )
        injection.carry_out(find_target(directory, run, control).connect(), print)
        return
    if kind is None or rank is None:
        raise ConfigurationError("--rank is missing: whom shall it harm?")
    fault = Fault(
        kind,
        rank=rank,
        step=step,
        phase=Phase[phase.name] if phase else None,
        duration_s=duration_s,
        factor=factor,
        seed=seed,
    )
    order(find_target(directory, run, control).connect(), fault)
    print(f"rank {rank} has accepted {kind}: `holdfast incidents` tells what comes of it")
