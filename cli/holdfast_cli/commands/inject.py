"""``holdfast inject``: harms a rank of a run on purpose."""

from rich.console import Console

from holdfast_cli.errors import UsageError
from holdfast_cli.fault_requests import RandomInjection, check_fault, fault_table, request_fault
from holdfast_cli.flags.watching import InjectFlags
from holdfast_cli.run_folder.target import find_target
from holdfast_hooks.faults import Fault
from holdfast_hooks.phases import Phase


def inject(flags: InjectFlags) -> None:
    """Request one fault, or many at random steps, from the daemon of a run."""
    if flags.show:
        Console().print(fault_table())
        return
    if flags.at_random == (flags.kind is not None):
        raise UsageError("give the KIND of a fault (`holdfast inject --list`), or --random")
    if flags.at_random:
        injection = RandomInjection(
            rate_per_step=flags.rate,
            kinds=tuple(flags.kinds.split(",")),
            ranks=() if flags.rank is None else (flags.rank,),
            seed=flags.seed,
            steps=flags.steps,
        )
        injection.carry_out(find_target(flags.directory, flags.run, flags.control).connect(), print)
        return
    if flags.kind is None or flags.rank is None:
        raise UsageError("--rank is missing: which rank? set --rank")
    fault = Fault(
        flags.kind,
        rank=flags.rank,
        step=flags.step,
        phase=Phase[flags.phase.name] if flags.phase else None,
        duration_s=flags.duration_s,
        factor=flags.factor,
        seed=flags.seed,
    )
    check_fault(fault)  # first: no run makes sense of it
    waits_for = request_fault(find_target(flags.directory, flags.run, flags.control).connect(), fault)
    then = f"it waits for {waits_for}" if waits_for else "`holdfast incidents` shows the effect"
    print(f"rank {flags.rank} has accepted {flags.kind}: {then}")
