"""Every function of Holdfast that uses CUDA, and the test that runs it on a GPU.

This is the one list. tests/gpu/test_paths.py finds functions that are missing here, and docs/gpu.md shows it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class CudaPath:
    """A function whose code has to do with CUDA."""

    file: str
    """Path from the root of the repository."""
    function: str
    """Qualified name; ``<module>`` for code outside of functions."""
    test: str = ""
    """File and name of a test in tests/gpu, or ``make gpu PART=`` and a part; empty: none is needed."""
    why_none: str = ""
    """Why no test is needed."""


_HOOKS = "trainer_hooks/holdfast_hooks"
_TRAINER = "trainer/holdfast_trainer"
_SNAPSHOT = (
    "test_snapshots.py::test_a_snapshot_holds_the_state_at_the_end_of_its_step_although_the_next_step_changes_it"
)
_REPLAYED = "test_replay.py::test_a_replay_finds_a_wrong_run_and_leaves_the_bits_of_an_undisturbed_training"
_LOCKED = "test_snapshots.py::test_slots_are_locked_for_the_gpu_and_again_after_they_went"
_RANDOM = "test_snapshots.py::test_random_numbers_of_the_gpu_continue_where_they_were"
_OWED = "test_deferred.py::test_a_number_behind_a_long_kernel_is_owed_and_then_right"
_MODULE = "test_gradients.py::test_the_module_that_makes_a_bad_gradient_is_named"
_PARAMETER = "test_gradients.py::test_the_parameter_with_a_bad_gradient_is_named"
_BYTES = "test_memory.py::test_allocated_and_reserved_bytes_are_those_of_torch"
_OWN_DEVICE = "test_own_device.py::test_the_gpu_of_the_state_is_found"
_USED_DEVICE = "test_own_device.py::test_the_gpu_that_is_used_is_found"
_UNKNOWN_DEVICE = "test_own_device.py::test_a_gpu_that_torch_does_not_have_is_searched_for"
_CAPTURED = "test_captures.py::test_a_graph_is_captured_while_our_threads_have_numbers_to_wait_for"
_ALONE = "test_device_time.py::test_the_time_of_a_kernel_is_counted_and_that_of_other_phases_is_not"
_GRAPH = "test_device_time.py::test_a_step_with_a_cuda_graph_is_unknown"
_PROCESSORS = "agent/holdfast_agent/preflight/processors.py"
_CHECKED = "test_gpu_check.py::test_a_healthy_gpu_passes_its_check"
_PROFILED = "test_profiling.py::test_a_profile_on_a_gpu_has_its_kernels_and_its_memory"
_OFFLOAD = "test_trainer.py::test_state_in_host_memory_gives_the_same_losses"
_CLOCK = "test_trainer.py::test_the_clock_of_the_pipeline_meter_measures_the_gpu"
_NCCL = "test_trainer.py::test_training_with_nccl_gives_the_losses_of_the_cpu"
_KIND_ONLY = "it only asks for the kind of a device; the paths that use the device are listed themselves"
_USABLE = "test_trainer.py::test_a_configuration_for_a_gpu_is_accepted_here"

PATHS = (
    CudaPath(f"{_HOOKS}/telemetry/deferred.py", "DeferredNumbers.of", _OWED),
    CudaPath(f"{_HOOKS}/telemetry/deferred.py", "DeferredNumbers.read", _OWED),
    CudaPath(f"{_HOOKS}/telemetry/deferred.py", "to_number", _OWED),
    CudaPath(
        f"{_HOOKS}/telemetry/own_gradients.py",
        "deferred",
        "test_deferred.py::test_sums_of_several_tensors_come_with_one_copy",
    ),
    CudaPath(f"{_HOOKS}/replay/contributions.py", "Contributions.trace", _REPLAYED),
    CudaPath(f"{_HOOKS}/telemetry/gradient_origin.py", "GradientWatch.take", _MODULE),
    CudaPath(f"{_HOOKS}/telemetry/own_gradients.py", "OwnGradientWatch.begin_step", _PARAMETER),
    CudaPath(f"{_HOOKS}/telemetry/own_gradients.py", "OwnGradientWatch._on_gradient", _PARAMETER),
    CudaPath(f"{_HOOKS}/telemetry/device_memory.py", "CudaMemory.status", _BYTES),
    CudaPath(
        f"{_HOOKS}/telemetry/device_memory.py", "CudaMemory.uuid", "test_memory.py::test_the_uuid_is_that_of_nvidia_smi"
    ),
    CudaPath(f"{_HOOKS}/telemetry/device_memory.py", "RankMemory._of_gpu", _BYTES),
    CudaPath(f"{_HOOKS}/telemetry/device_memory.py", "RankMemory.status", _BYTES),
    CudaPath(f"{_HOOKS}/telemetry/own_device.py", "<module>", why_none="constants"),
    CudaPath(f"{_HOOKS}/telemetry/own_device.py", "OwnDevice.__init__", _OWN_DEVICE),
    CudaPath(f"{_HOOKS}/telemetry/own_device.py", "OwnDevice._check_index", _UNKNOWN_DEVICE),
    CudaPath(f"{_HOOKS}/telemetry/own_device.py", "OwnDevice._find", _OWN_DEVICE),
    CudaPath(f"{_HOOKS}/telemetry/own_device.py", "OwnDevice._used_gpu", _USED_DEVICE),
    CudaPath(f"{_HOOKS}/telemetry/own_device.py", "OwnDevice.note_current", _USED_DEVICE),
    CudaPath(f"{_HOOKS}/telemetry/own_device.py", "_has_cuda", _USED_DEVICE),
    CudaPath(f"{_HOOKS}/telemetry/own_device.py", "checked_name", why_none="it parses a name"),
    CudaPath(f"{_HOOKS}/frameworks/deepspeed.py", "_device", why_none=_KIND_ONLY),
    CudaPath(f"{_HOOKS}/frameworks/lightning.py", "LightningHoldfast._attach", why_none=_KIND_ONLY),
    CudaPath(f"{_HOOKS}/frameworks/lightning_data.py", "_gpu", why_none=_KIND_ONLY),
    CudaPath(f"{_HOOKS}/frameworks/megatron.py", "_device", why_none=_KIND_ONLY),
    CudaPath(f"{_HOOKS}/frameworks/torchtitan.py", "TrainerWatch.__init__", why_none=_KIND_ONLY),
    CudaPath(f"{_HOOKS}/gpu_work.py", "GpuPoint.hold_back", _SNAPSHOT),
    CudaPath(f"{_HOOKS}/gpu_work.py", "GpuPoint.now", _OWED),
    CudaPath(f"{_HOOKS}/capture_gate.py", "CaptureGate.install", _CAPTURED),
    CudaPath(f"{_HOOKS}/gpu_work.py", "gpu_of", _OWN_DEVICE),
    CudaPath(f"{_HOOKS}/gpu_work.py", "on_gpu", _SNAPSHOT),
    CudaPath(_PROCESSORS, "_on_gpu", _CHECKED),
    CudaPath(_PROCESSORS, "gpu_gemm.measure", _CHECKED),
    CudaPath(_PROCESSORS, "gpu_memory.measure", _CHECKED),
    CudaPath(_PROCESSORS, "gpu_number", _CHECKED),
    CudaPath(_PROCESSORS, "gpus", _CHECKED),
    CudaPath(_PROCESSORS, "open_gpu.warm_up", _CHECKED),
    CudaPath("agent/holdfast_agent/processes/cold_rank.py", "why_no_fork", "make gpu PART=killed-rank"),
    CudaPath(f"{_HOOKS}/device_time/device_time.py", "<module>", why_none="an import"),
    CudaPath(f"{_HOOKS}/device_time/device_time.py", "DeviceTime.__init__", _ALONE),
    CudaPath(f"{_HOOKS}/device_time/device_time.py", "DeviceTime.install", _ALONE),
    CudaPath(f"{_HOOKS}/device_time/device_time.py", "DeviceTime.source", _ALONE),
    CudaPath(f"{_HOOKS}/device_time/gpu_marks.py", "CudaMarks.mark", _ALONE),
    CudaPath(f"{_HOOKS}/device_time/gpu_marks.py", "CudaMarks.is_past", _ALONE),
    CudaPath(f"{_HOOKS}/device_time/gpu_marks.py", "CudaMarks.between_s", _ALONE),
    CudaPath(f"{_HOOKS}/device_time/group_calls.py", "GroupCalls.install", _GRAPH),
    CudaPath(f"{_HOOKS}/device_time/group_calls.py", "GroupCalls._replay.replay", _GRAPH),
    CudaPath(f"{_HOOKS}/device_time/own_spans.py", "OwnSpans.pause", _GRAPH),
    CudaPath(f"{_HOOKS}/device_time/own_spans.py", "OwnSpans.resume", _GRAPH),
    CudaPath(f"{_HOOKS}/profiling/torch_profile.py", "GpuMemoryRecord.start", _PROFILED),
    CudaPath(f"{_HOOKS}/profiling/torch_profile.py", "GpuMemoryRecord.end", _PROFILED),
    CudaPath(f"{_HOOKS}/profiling/torch_profile.py", "TorchProfile.start", _PROFILED),
    CudaPath(f"{_HOOKS}/snapshots/device_copies.py", "CudaCopyStream.__init__", _SNAPSHOT),
    CudaPath(f"{_HOOKS}/snapshots/device_copies.py", "CudaCopyStream._copy_from", _SNAPSHOT),
    CudaPath(f"{_HOOKS}/snapshots/device_copies.py", "CudaCopyStream.copy", _SNAPSHOT),
    CudaPath(f"{_HOOKS}/snapshots/device_copies.py", "CudaCopyStream.hold_back", _SNAPSHOT),
    CudaPath(f"{_HOOKS}/snapshots/device_copies.py", "Landing._land", _SNAPSHOT),
    CudaPath(f"{_HOOKS}/snapshots/snapshot_taker.py", "<module>", why_none="an import"),
    CudaPath(f"{_HOOKS}/snapshots/snapshot_taker.py", "SnapshotTaker._copy_late", _SNAPSHOT),
    CudaPath(f"{_HOOKS}/snapshots/slot_requests.py", "_unlock", _LOCKED),
    CudaPath(f"{_HOOKS}/snapshots/slot_requests.py", "_lock", _LOCKED),
    CudaPath(f"{_HOOKS}/restore/slot_restore.py", "_Targets.fill", _SNAPSHOT),
    CudaPath(f"{_HOOKS}/state/random_states.py", "capture", _RANDOM),
    CudaPath(f"{_HOOKS}/state/random_states.py", "restore", _RANDOM),
    CudaPath(
        f"{_HOOKS}/replicas/replica_check.py",
        "_is_plain",
        "test_snapshots.py::test_parameters_on_the_gpu_are_compared_like_others",
    ),
    CudaPath(f"{_TRAINER}/rank_device.py", "open_device", _NCCL),
    CudaPath(f"{_TRAINER}/training_log.py", "_peak_flops_per_s", "test_trainer.py::test_the_peak_of_this_gpu_is_known"),
    CudaPath(f"{_TRAINER}/start_checks.py", "expect_usable_here", _USABLE),
    CudaPath(f"{_TRAINER}/start_checks.py", "has_gpu", _USABLE),
    CudaPath(f"{_TRAINER}/data/batches.py", "Batches._pinned", "test_trainer.py::test_batches_come_from_pinned_memory"),
    CudaPath(
        f"{_TRAINER}/moe/experts.py",
        "can_group",
        "test_trainer.py::test_experts_in_one_kernel_give_what_a_loop_gives",
    ),
    CudaPath(f"{_TRAINER}/parallel/offload.py", "offload_policy", _OFFLOAD),
    CudaPath(f"{_TRAINER}/parallel/offload.py", "_wait_for_copies", _OFFLOAD),
    CudaPath(f"{_TRAINER}/pipeline/bubble.py", "CudaClock.mark", _CLOCK),
    CudaPath(f"{_TRAINER}/pipeline/bubble.py", "CudaClock.is_past", _CLOCK),
    CudaPath(f"{_TRAINER}/pipeline/bubble.py", "CudaClock.between_s", _CLOCK),
    CudaPath(f"{_TRAINER}/pipeline/bubble.py", "make_meter", _CLOCK),
    CudaPath(f"{_TRAINER}/precision/fp8.py", "require_fp8", "test_trainer.py::test_training_in_fp8_learns_like_bf16"),
    CudaPath("agent/holdfast_agent/processes/warm_parent.py", "main", "make gpu PART=killed-rank"),
    CudaPath(
        "agent/holdfast_agent/blocking/blocked_thread.py", "<module>", why_none="names of compilers, in text only"
    ),
    CudaPath(
        "daemon/holdfast_core/detectors/speed/own_time.py",
        "is_measured",
        why_none="a decision of the core, tested without a GPU",
    ),
    CudaPath("daemon/holdfast_core/texts/deaths.py", "<module>", why_none="a pattern for texts of errors"),
    CudaPath(
        f"{_HOOKS}/progress/recorders/recorder.py",
        "NcclRecorder._dump",
        "test_recorder.py::test_the_recorder_of_nccl_counts_the_calls",
    ),
    CudaPath("cli/holdfast_cli/analysis/host_place.py", "<module>", why_none="names of functions in stacks, as text"),
)
