"""``holdfast status``, ``nodes``, ``stop``, ``stacks``, ``profile``, ``inject``: requests of operators to a daemon."""

import time
from pathlib import Path

from rich.console import Console

from holdfast_cli.control import has_ended
from holdfast_cli.errors import CommandError, UsageError
from holdfast_cli.fault_injection import RandomInjection, check_fault, fault_table, request_fault
from holdfast_cli.flags.live import NodesFlags, ProfileFlags, StacksFlags
from holdfast_cli.flags.watch_flags import InjectFlags, StatusFlags, StopFlags
from holdfast_cli.live.rank_stacks import save, unpacked
from holdfast_cli.live.stack_groups import stack_lines
from holdfast_cli.run_folder.ended import load_last_status
from holdfast_cli.run_folder.run_end import end_run
from holdfast_cli.run_folder.target import find_target
from holdfast_cli.views.clean_text import cleaned, one_line
from holdfast_cli.views.display import display_for
from holdfast_cli.views.narrowing import narrowed
from holdfast_cli.views.node_table import node_table
from holdfast_cli.views.output import print_json
from holdfast_cli.views.run_view import Surroundings, render
from holdfast_core.texts.incident_lines import number_of
from holdfast_daemon.control.rank_pages import check_page
from holdfast_hooks.faults import Fault
from holdfast_hooks.phases import Phase
from holdfast_proto.limits import MOST_RANKS
from holdfast_proto.message_json import to_json
from holdfast_proto.v1.control_pb2 import RANK_SORT_ODD_FIRST, GetStatusRequest, RunStatus

_LOOK_S = 0.2


def status(flags: StatusFlags) -> None:
    """Print the status of a run, once or until it ends."""
    page = _rank_page(flags)
    target = find_target(flags.directory, flags.run, flags.control)
    last = load_last_status(Path(target.ended.directory)) if target.ended else None
    client = None if last is not None else target.connect()
    seen = narrowed(last, page) if last is not None else target.connect().status(page)
    title = f"ended: {target.ended.outcome}" if target.ended else ""
    if flags.json:
        print_json(to_json(seen))
    elif client is None or not flags.watch:
        Console().print(render(cleaned(seen), Surroundings(title=title, page_note=_page_note(page, seen))))
    else:
        with display_for(Console()) as display:
            display.update(seen, Surroundings(title=title, page_note=_page_note(page, seen)))
            while not has_ended(seen):
                time.sleep(_LOOK_S)
                seen = client.status(page)
                display.update(seen, Surroundings(title=title, page_note=_page_note(page, seen)))


def _rank_page(flags: StatusFlags) -> GetStatusRequest:
    """Return which ranks are wanted. Raises UsageError if the search cannot be."""
    if flags.json and flags.search is None and flags.page is None:
        return GetStatusRequest()
    size = Surroundings().most_ranks
    skipped = min(size * ((flags.page or 1) - 1), MOST_RANKS)
    page = GetStatusRequest(most_ranks=size, skip_ranks=skipped, search=flags.search or "")
    if flags.page is not None:
        page.sort = RANK_SORT_ODD_FIRST
    try:
        check_page(page)
    except ValueError as error:
        raise UsageError(f"--search: {error}") from None
    return page


def _page_note(page: GetStatusRequest, seen: RunStatus) -> str:
    """Return which of how many ranks are listed, and how to see more; "" if all are listed."""
    search, listed, count = one_line(page.search.strip()), len(seen.ranks), seen.matching_ranks
    if search:
        which = f"{number_of(count, 'rank')} that match {search!r}"
    elif seen.other_ranks:
        which = f"{number_of(count, 'rank')} of the run" if page.sort else f"{number_of(count, 'odd rank')}"
    else:
        return ""
    if not listed:
        return f"no rank of {which} is on this page" if count else which
    last = page.skip_ranks + listed
    text = f"{page.skip_ranks + 1} to {last} of {which}"
    return f"{text}: --page {last // page.most_ranks + 1} shows more" if last < count else text


def stop(flags: StopFlags) -> None:
    """End a run. Without a record of it on this machine, only ask its daemon to."""
    target = find_target(flags.directory, flags.run, flags.control)
    if target.record is not None:
        print(f"{target.run}: {end_run(target.record, flags.timeout_s)}")
        return
    target.connect().stop_run()
    print("the daemon will end the run")


def nodes(flags: NodesFlags) -> None:
    """Print the nodes of a run, or end the quarantine of one."""
    client = find_target(flags.directory, flags.run, flags.control).connect()
    if flags.release is not None:
        client.release_node(flags.release)
        print(f"node {one_line(flags.release)} may train again: what was known against it counts no more")
        return
    found = client.nodes()
    if flags.json:
        print_json([to_json(node) for node in found])
    else:
        Console().print(node_table([cleaned(node) for node in found], everything=flags.everything))


def stacks(flags: StacksFlags) -> None:
    """Print the stacks of some ranks or of all, and save them if asked to. Fails if no rank shows any."""
    client = find_target(flags.directory, flags.run, flags.control).connect()
    found = unpacked(client.take_stacks(flags.rank or [], native=flags.native))
    saved = ""
    if flags.output is not None:
        try:
            saved = f"{flags.output}: stacks of {save(found, flags.output)} ranks"
        except OSError as error:
            raise CommandError(f"--output {flags.output}: {error}: name a folder that you can write to") from None
    if flags.json:
        print_json([one.to_json() for one in found])
    else:
        print("\n".join(line for line in stack_lines(found)).strip("\n"))
        if saved:
            print(f"\n{saved}")
    if not any(one.threads for one in found):
        problem = next((one.problem for one in found if one.problem), "no rank answered")
        raise CommandError(f"no stack could be taken: {problem}")


_TRACE = "open it with https://ui.perfetto.dev or chrome://tracing"
_MEMORY = "unpack it with gunzip, then open it with https://pytorch.org/memory_viz"


def profile(flags: ProfileFlags) -> None:
    """Wait for the profile, and print where its files are and how to open them."""
    if flags.rank is None:
        raise UsageError("--rank is missing: which rank? set --rank")
    client = find_target(flags.directory, flags.run, flags.control).connect()
    answer = client.take_profile(flags.rank, steps=flags.steps, patience_s=flags.timeout_s)
    taken = answer.taken
    if flags.json:
        print_json(
            {
                "rank": taken.rank,
                "node": answer.node,
                "first_step": taken.first_step,
                "last_step": taken.last_step,
                "files": list(taken.files),
            }
        )
        return
    steps = (
        f"step {taken.first_step}"
        if taken.first_step == taken.last_step
        else (f"steps {taken.first_step} to {taken.last_step}")
    )
    print(f"rank {taken.rank}, {steps}, on {one_line(answer.node)}:")
    for path in taken.files:
        how = _MEMORY if Path(path).name.endswith(".memory.pickle.gz") else _TRACE
        print(f"  {one_line(path)}\n    {how}")


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
