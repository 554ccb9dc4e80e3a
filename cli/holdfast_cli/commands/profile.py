"""``holdfast profile``: profiles the next steps of a live rank."""

from pathlib import Path

from holdfast_cli.errors import UsageError
from holdfast_cli.flags.live import ProfileFlags
from holdfast_cli.run_folder.target import find_target
from holdfast_cli.views.clean_text import one_line
from holdfast_cli.views.output import print_json

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
