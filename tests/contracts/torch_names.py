"""Every private name of torch that our code uses, what Holdfast loses without it, and the check of how it behaves.

A name without a leading underscore is here, too, if our code patches it or relies on more than torch documents.
``docs/torch-versions.md`` shows the same list to users.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.contracts import call_checks, distributed_checks, profiler_checks, tensor_checks

Check = Callable[[], None]


@dataclass(frozen=True)
class TorchName:
    """A name of torch that may go away with any release."""

    path: str
    """Where it is in torch, such as ``torch._C.Tag``."""
    lost: str
    """The feature that needs it, as the page calls it."""
    check: Check
    """Fails if the name is missing or behaves in another way than our code needs. Runs in a world of one rank."""

    @property
    def last_word(self) -> str:
        """The name itself, without its place. That of a file or a thread is all of it."""
        return self.path.rpartition(".")[2] if self.path.startswith("torch.") else self.path


PROGRESS = "progress of process groups"
NCCL = "recorders of groups on devices"
GPU_TIME = "a rank's own time on its GPU"
MESSAGES = "progress of sends and receives"
FAULTS = "faults of calls (`holdfast inject`), and replayed steps"
SNAPSHOTS = "snapshots of DTensors"
BUCKETS = "the order of sums over three ranks or more after a restart"
VERSIONS = "versions of modules in a restored state"
LEFT_LOOP = "the last checkpoint of a loop that is left early"
MOVEMENT = "movement and activity of ranks"
ENGINE = "training in ranks of a warm parent whose imports trained"
SELECTIVE = "selective activation checkpointing (trainer)"
FP16 = "skipped fp16 steps without a wait (trainer)"
BUBBLE = "the measured pipeline bubble (trainer)"
PROFILES = "profiles of live ranks (`holdfast profile`)"
NO_LINE = "steps and phases without a line (`--auto`)"
BENCHMARKS = "our benchmarks only"

_C10D = "torch._C._distributed_c10d"
_ATEN = "torch.ops.aten"
_DISTRIBUTED = "torch.distributed.distributed_c10d"
_GROUP = "torch.distributed.ProcessGroup"
_STAGE = "torch.distributed.pipelining.PipelineStage"
_TENSORS = "torch.distributed.tensor._utils"
_WRAPPER = "torch.nn.parallel.DistributedDataParallel"

NAMES = (
    TorchName(_C10D, PROGRESS, distributed_checks.bindings),
    TorchName(f"{_C10D}._dump_fr_trace_json", PROGRESS, distributed_checks.generic_recorder),
    TorchName(f"{_C10D}._dump_nccl_trace_json", NCCL, distributed_checks.nccl_recorder),
    TorchName(f"{_C10D}._WorkerServer", NCCL, distributed_checks.worker_server),
    TorchName(f"{_DISTRIBUTED}._world", PROGRESS, distributed_checks.groups_of_the_world),
    TorchName(f"{_GROUP}._device_types", NCCL, distributed_checks.backends_of_a_group),
    TorchName(f"{_GROUP}._get_backend", NCCL, distributed_checks.backends_of_a_group),
    TorchName(f"{_DISTRIBUTED}._new_process_group_helper", NCCL, distributed_checks.makers_of_groups),
    TorchName(f"{_DISTRIBUTED}._BackendWrapper", NCCL, distributed_checks.torchcomms_backends),
    TorchName(f"{_DISTRIBUTED}._world.pg_flight_recorder_hooks", NCCL, distributed_checks.hooked_recorders),
    TorchName(f"{_GROUP}._start_coalescing", GPU_TIME, distributed_checks.coalescing),
    TorchName(f"{_WRAPPER}._get_ddp_logging_data", BUCKETS, distributed_checks.buckets_of_wrappers),
    TorchName(f"{_WRAPPER}._comm_hooks", BUCKETS, distributed_checks.hooks_of_wrappers),
    TorchName("torch.cuda._sleep", BENCHMARKS, distributed_checks.sleeping_kernel),
    TorchName("torch._C", PROGRESS, distributed_checks.bindings),
    TorchName(f"{_GROUP}.send", MESSAGES, distributed_checks.sends),
    TorchName(f"{_GROUP}.recv", MESSAGES, distributed_checks.receives),
    TorchName(f"{_GROUP}._get_sequence_number_for_group", MESSAGES, distributed_checks.sequence_number),
    TorchName(f"{_DISTRIBUTED}._get_default_store", BENCHMARKS, distributed_checks.default_store),
    TorchName("torch._C.DispatchKey", FAULTS, call_checks.functional_collective_under_a_mode),
    TorchName("torch._C.DispatchKey.CompositeExplicitAutograd", FAULTS, call_checks.functional_collective_under_a_mode),
    TorchName("torch._C.ScriptObject", FAULTS, call_checks.group_of_a_call),
    TorchName(f"{_C10D}.FakeWork", FAULTS, call_checks.pretended_work),
    TorchName(f"{_C10D}.FakeWork.boxed", FAULTS, call_checks.pretended_work),
    TorchName(f"{_C10D}.Work", FAULTS, call_checks.pretended_work),
    TorchName(f"{_C10D}.Work.unbox", FAULTS, call_checks.pretended_work),
    TorchName(f"{_C10D}.ProcessGroup", FAULTS, call_checks.group_of_a_call),
    TorchName(f"{_C10D}.ProcessGroup.unbox", FAULTS, call_checks.group_of_a_call),
    TorchName("torch.utils._python_dispatch.TorchDispatchMode", FAULTS, call_checks.mode),
    TorchName("torch.utils._python_dispatch._get_current_dispatch_mode", FAULTS, call_checks.mode),
    TorchName(
        "torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals", FAULTS, call_checks.compiled_graphs
    ),
    TorchName(
        "torch.distributed._functional_collectives.AsyncCollectiveTensor", FAULTS, call_checks.results_on_their_way
    ),
    TorchName("torch._ops.OpOverload", FAULTS, call_checks.operator),
    TorchName("torch._ops.OpOverload._schema", FAULTS, call_checks.operator),
    TorchName("torch._ops.OpOverload._op_dk", FAULTS, call_checks.functional_collective_under_a_mode),
    TorchName("torch.ops._c10d_functional", SELECTIVE, call_checks.functional_collective_under_a_mode),
    TorchName("torch._dynamo", BENCHMARKS, call_checks.dynamo),
    TorchName(f"{_ATEN}._scaled_mm", SELECTIVE, tensor_checks.products),
    TorchName(f"{_ATEN}._grouped_mm", SELECTIVE, tensor_checks.products),
    TorchName(f"{_ATEN}._scaled_dot_product_flash_attention", SELECTIVE, tensor_checks.products),
    TorchName(f"{_ATEN}._scaled_dot_product_flash_attention_for_cpu", SELECTIVE, tensor_checks.products),
    TorchName(f"{_ATEN}._scaled_dot_product_efficient_attention", SELECTIVE, tensor_checks.products),
    TorchName(f"{_ATEN}._scaled_dot_product_cudnn_attention", SELECTIVE, tensor_checks.products),
    TorchName("torch.Tensor._version", LEFT_LOOP, tensor_checks.version),
    TorchName("torch.nn.Module.state_dict()._metadata", VERSIONS, tensor_checks.metadata),
    TorchName(_TENSORS, SNAPSHOTS, tensor_checks.offsets),
    TorchName(f"{_TENSORS}.compute_local_shape_and_global_offset", SNAPSHOTS, tensor_checks.offsets),
    TorchName("torch.optim.AdamW._step_supports_amp_scaling", FP16, tensor_checks.skipped_step),
    TorchName(f"{_STAGE}.forward_one_chunk", BUBBLE, tensor_checks.pipeline_stage),
    TorchName(f"{_STAGE}.backward_one_chunk", BUBBLE, tensor_checks.pipeline_stage),
    TorchName(f"{_STAGE}.backward_weight_one_chunk", BUBBLE, tensor_checks.pipeline_stage),
    TorchName("torch.autograd._profiler_enabled", PROFILES, profiler_checks.flags),
    TorchName("torch.autograd.profiler._is_profiler_enabled", PROFILES, profiler_checks.flags),
    TorchName("torch.autograd.profiler._prepare_profiler", PROFILES, profiler_checks.starters),
    TorchName("torch.autograd.profiler._enable_profiler", PROFILES, profiler_checks.starters),
    TorchName("torch._inductor", PROFILES, profiler_checks.slow_import),
    TorchName("torch._C._cuda_isHistoryEnabled", PROFILES, profiler_checks.memory_history),
    TorchName("torch.cuda.memory._record_memory_history", PROFILES, profiler_checks.memory_history),
    TorchName("torch.cuda.memory._snapshot", PROFILES, profiler_checks.memory_history),
    TorchName("torch.utils.data.dataloader._BaseDataLoaderIter", NO_LINE, tensor_checks.next_of_loaders),
    TorchName("torch.optim.optimizer.register_optimizer_step_post_hook", NO_LINE, tensor_checks.hooks_of_optimizers),
    TorchName("torch.nn.Module.eval", NO_LINE, tensor_checks.evaluation),
    TorchName("the thread pt_autograd_0", ENGINE, tensor_checks.engine_threads),
    TorchName("the thread pt_tcpstore_uv", MOVEMENT, distributed_checks.store_on_our_socket),
    TorchName("the file torch/distributed/c10d_logger.py", MOVEMENT, distributed_checks.files_of_collectives),
    TorchName("the file torch/utils/file_baton.py", MOVEMENT, distributed_checks.files_of_compilers),
)
"""One entry for each name."""
