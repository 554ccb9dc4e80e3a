"""How torch.distributed must behave for the hooks and the agent."""

import ctypes
import http.client
import importlib
import inspect
import json
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast_agent.evidence import stack_summary
from holdfast_agent.movement.tree_sample import ThreadSample
from holdfast_agent.processes.cold_rank import thread_names
from tests.support.coroutines import wait_until

bindings_of_c10d: Any = torch._C._distributed_c10d
STATUS_KEYS = {"last_enqueued_collective", "last_started_collective", "last_completed_collective"}
ENTRY_KEYS = {
    "record_id",
    "pg_id",
    "process_group",
    "collective_seq_id",
    "is_p2p",
    "profiling_name",
    "retired",
    "state",
    "input_sizes",
    "input_dtypes",
}


def bindings() -> None:
    assert inspect.ismodule(bindings_of_c10d)
    assert dist.ProcessGroup is bindings_of_c10d.ProcessGroup


def generic_recorder() -> None:
    dump = bindings_of_c10d._dump_fr_trace_json
    # Keywords, to see the names. Our code gives both by position.
    assert dump.__doc__.startswith(
        "_dump_fr_trace_json(includeCollectives: bool | None = None, onlyActive: bool | None"
    )
    for _ in range(2):
        dist.all_reduce(torch.ones(3))
    document = json.loads(dump(True, False))
    entry = document["entries"][-1]
    assert entry.keys() >= ENTRY_KEYS
    assert entry["process_group"] == [dist.group.WORLD.group_name, "default_pg"]  # type: ignore[union-attr]
    assert (entry["profiling_name"], entry["is_p2p"]) == ("gloo:all_reduce", False)
    assert (entry["input_sizes"], entry["input_dtypes"]) == ([[3]], ["Float"])
    assert entry["collective_seq_id"] == document["entries"][-2]["collective_seq_id"] + 1
    group = str(entry["pg_id"])
    assert document["pg_status"][group].keys() == STATUS_KEYS
    status_only = json.loads(dump(False, False))
    assert not status_only.get("entries")
    assert status_only["pg_status"][group]["last_enqueued_collective"] == str(entry["collective_seq_id"])
    wait_until(lambda: json.loads(dump(True, False))["entries"][-1]["retired"], "gloo retires the call")
    if "backend: str = 'gloo'" in dump.__doc__:  # since 2.15: a recorder for each backend
        assert not json.loads(dump(True, False, backend="nccl2")).get("entries")


def nccl_recorder() -> None:
    if not dist.is_nccl_available():
        pytest.skip("a build without NCCL has no recorder of NCCL")
    dump = bindings_of_c10d._dump_nccl_trace_json
    assert dump.__doc__.startswith("_dump_nccl_trace_json(includeCollectives: bool | None = None, onlyActive: bool")
    document = json.loads(dump(True, False))
    assert document.keys() >= {"version", "pg_status", "pg_config"}
    assert document["version"].startswith("2.")


def worker_server() -> None:
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        path = f"{folder}/worker.sock"
        server = bindings_of_c10d._WorkerServer(path)
        # Its destructor may wait for its threads forever, as shutdown() does. Our hooks keep theirs, too.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        dist.all_reduce(torch.ones(1))
        handlers = set(json.loads(_ask(path, "GET", "/handler/")))
        assert handlers >= {"fr_trace_json", "dump_traceback", "wait_counter_values", "ping"}
        assert ("dump_nccl_trace_json" in handlers) == dist.is_nccl_available()
        document = json.loads(_ask(path, "POST", "/handler/fr_trace_json"))
        assert document["entries"][-1].keys() >= ENTRY_KEYS
        assert "worker_server" in _ask(path, "POST", "/handler/dump_traceback").decode()


def _ask(path: str, method: str, target: str) -> bytes:
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(30)
    connection.sock.connect(path)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()
    finally:
        connection.close()


def groups_of_the_world() -> None:
    alive: Any = dist.distributed_c10d._world.pg_map
    before = list(alive)
    world: Any = next(group for group in before if group is dist.group.WORLD)
    assert world.group_desc == "default_pg"
    other = dist.new_group([0])
    assert {group.group_name for group in alive} > {group.group_name for group in before}
    dist.destroy_process_group(other)


def backends_of_a_group() -> None:
    world: Any = dist.group.WORLD
    devices = list(world._device_types)
    assert torch.device("cpu") in devices
    backend = world._get_backend(torch.device("cpu"))
    assert backend.name() == "gloo"
    assert backend._get_sequence_number_for_group() >= 0


def makers_of_groups() -> None:
    """Our hooks wrap these, and torch calls the first one by its name in this module."""
    for name in ("_new_process_group_helper", "split_group", "shrink_group"):
        assert callable(vars(dist.distributed_c10d)[name])
    named = inspect.signature(dist.distributed_c10d._new_process_group_helper).parameters
    assert named.keys() >= {"group_name", "group_rank", "global_ranks_in_group", "group_desc"}


def torchcomms_backends() -> None:
    """Torch itself knows TorchComms' backends by this class, and has it only where the package is installed."""
    source = inspect.getsource(dist.distributed_c10d)
    assert ("_TORCHCOMM_AVAILABLE" in source) == ("isinstance(backend, _BackendWrapper)" in source)
    is_installed = getattr(dist.distributed_c10d, "_TORCHCOMM_AVAILABLE", False)
    assert hasattr(dist.distributed_c10d, "_BackendWrapper") == is_installed


def hooked_recorders() -> None:
    """Since 2.15 a hook fills a recorder for each backend. Only an entry shows both a group's id and its name."""
    dump = bindings_of_c10d._dump_fr_trace_json
    if "backend: str = 'gloo'" not in dump.__doc__:
        pytest.skip("a recorder for each backend came with 2.15")
    world: Any = dist.distributed_c10d._world
    assert isinstance(world.pg_flight_recorder_hooks, dict)
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # it registers the backend
    groups: list[Any] = [dist.new_group([0], backend="fake") for _ in range(2)]
    hooks = [bindings_of_c10d.FlightRecorderHook.attach(group, [0]) for group in groups]
    try:
        for group in groups:
            dist.all_reduce(torch.ones(1), group=group)
        document = json.loads(dump(True, True, backend="fake"))
        ids = [str(entry["pg_id"]) for entry in document["entries"]]
        assert [entry["process_group"][0] for entry in document["entries"]] == [group.group_name for group in groups]
        assert document["pg_status"].keys() == set(ids) and len(set(ids)) == 2
        # Its status counts operations from 0, and this backend never reports the end of one.
        assert [document["pg_status"][key]["last_enqueued_collective"] for key in ids] == ["0", "0"]
        assert {(entry["collective_seq_id"], entry["state"], entry["retired"]) for entry in document["entries"]} == {
            (1, "scheduled", True)
        }
    finally:
        for hook in hooks:
            hook.remove()
        for group in groups:
            dist.destroy_process_group(group)


def coalescing() -> None:
    assert callable(dist.ProcessGroup._start_coalescing)


def buckets_of_wrappers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    wrapper: Any = torch.nn.parallel.DistributedDataParallel(model)

    def logged() -> dict[str, Any]:
        wrapper.logger.set_runtime_stats_and_log()
        return dict(wrapper._get_ddp_logging_data())

    rebuilt, ready = "rebuilt_per_bucket_param_indices", "prev_iteration_grad_ready_order_indices"
    assert not logged().keys() & {rebuilt, ready}
    # As our code does it: gradients of zero in an order of its choice, which the wrapper then keeps.
    wrapper.reducer.prepare_for_forward()
    wrapper.reducer.prepare_for_backward([])
    for number in (1, 3, 0, 2):
        parameter = list(model.parameters())[number]
        torch.autograd.backward([parameter], [torch.zeros_like(parameter)])
    assert logged()[ready] == "1, 3, 0, 2"
    wrapper(torch.ones(1, 2)).sum().backward()
    assert logged()[rebuilt] == "1 3 0 2"


def hooks_of_wrappers() -> None:
    wrapper: Any = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    assert not wrapper._comm_hooks
    wrapper.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future())
    assert len(wrapper._comm_hooks) == 1


def sleeping_kernel() -> None:
    assert list(inspect.signature(torch.cuda._sleep).parameters) == ["cycles"]


def sends() -> None:
    _takes("send", "tensors", "dstRank", "tag")


def receives() -> None:
    _takes("recv", "tensors", "srcRank", "tag")


def _takes(name: str, *arguments: str) -> None:
    """Check that torch calls a method of the group by its attribute, with positional arguments in this order."""
    original = vars(dist.ProcessGroup)[name]
    signature = original.__doc__.splitlines()[0]
    places = [signature.index(f"{argument}:") for argument in ("self", *arguments)]
    assert places == sorted(places)
    source = inspect.getsource(dist.distributed_c10d)
    assert f"group.{name}([tensor], " in source
    setattr(dist.ProcessGroup, name, original)  # a class that refuses this could not be wrapped


def sequence_number() -> None:
    group: Any = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    assert group._get_sequence_number_for_group() == before + 1


def default_store() -> None:
    store = dist.distributed_c10d._get_default_store()
    store.set("contract", "kept")
    assert store.get("contract") == b"kept"


def store_on_our_socket() -> None:
    """The warm parent binds the socket itself. The agent knows the store's thread by its name."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
    )
    store.set("contract", "kept")
    name = "pt_tcpstore_uv"
    wait_until(lambda: name in map(str.strip, thread_names()), "the thread of the store has its name")
    assert ThreadSample(ran_s=0.0, turns=None, name=name, tracer=0).is_background
    assert store.get("contract") == b"kept"


def files_of_collectives() -> None:
    names = ("distributed_c10d", "c10d_logger", "_functional_collectives", "rendezvous")
    for name in (*names, "fsdp._fully_shard._fsdp_collectives"):
        module = importlib.import_module(f"torch.distributed.{name}")
        assert stack_summary._COLLECTIVE_FILE.search(inspect.getfile(module))
    # The innermost frame of a rank that waits is in one of these files: the wrapper's, or the call's own.
    assert stack_summary._COLLECTIVE_FILE.search(dist.all_reduce.__code__.co_filename)
    assert stack_summary._COLLECTIVE_FILE.search(inspect.unwrap(dist.all_reduce).__code__.co_filename)


def files_of_compilers() -> None:
    folder = Path(torch.__file__).parent
    assert stack_summary._FILE_LOCK_FILE.search(str(folder / "utils" / "file_baton.py"))
    files = ["utils/file_baton.py", "utils/cpp_extension.py", "distributed/pipelining/schedules.py"]
    files += [f"_inductor/{name}.py" for name in ("async_compile", "codecache", "compile_fx", "cpp_builder")]
    assert [name for name in files if not (folder / name).is_file()] == []
    assert (folder / "_inductor" / "compile_worker").is_dir()
