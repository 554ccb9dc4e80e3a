"""All kinds of faults, by name."""

from tests.simulation.nccl import mistakes, process_faults
from tests.simulation.nccl.fault import Injector

FAULTS: dict[str, tuple[Injector, tuple[str, ...]]] = {
    "healthy": (process_faults.healthy, ()),
    "busy": (process_faults.busy, ()),
    "several": (process_faults.several, ()),
    "unfinished_call": (process_faults.unfinished_call, ()),
    "data_loader": (process_faults.data_loader, ()),
    "skipped": (mistakes.skipped, ()),
    "other_op": (mistakes.other_op, ()),
    "other_size": (mistakes.other_size, ()),
    "opposite_order": (mistakes.opposite_order, ("tp", "3d", "3d_experts", "hsdp", "pp", "cp", "ep")),
    "kernel_hang": (process_faults.kernel_hang, ()),
    "program_hang": (process_faults.program_hang, ()),
    "network": (process_faults.network, ()),
    "network_pair": (process_faults.network_pair, ("pp", "pp_unbatched", "3d", "3d_experts", "cp")),
    "dead": (process_faults.dead, ()),
    "dead_node": (process_faults.dead_node, ()),
    "dead_unknown": (process_faults.dead_unknown, ()),
    "exited": (process_faults.exited, ()),
    "teardown": (process_faults.teardown, ()),
    "stopped": (process_faults.stopped, ()),
    "in_call": (process_faults.in_call, ()),
    "lazy_init": (process_faults.lazy_init, ()),
    "new_group": (process_faults.new_group, ("tp", "pp", "3d", "3d_experts", "hsdp", "cp", "ep")),
    "no_receive": (mistakes.no_receive, ("pp", "pp_unbatched", "3d", "3d_experts", "cp")),
    "no_send": (mistakes.no_send, ("pp", "pp_unbatched", "3d", "3d_experts", "cp")),
    "message_cycle": (mistakes.message_cycle, ()),
    "graph_replay": (process_faults.graph_replay, ("graph",)),
}
"""Injectors by kind, with the layouts in which the fault can be. Empty: in all."""
