from holdfast_proto.v1 import common_pb2 as _common_pb2
from holdfast_proto.v1 import fault_pb2 as _fault_pb2
from holdfast_proto.v1 import limits_pb2 as _limits_pb2
from holdfast_proto.v1 import recorder_pb2 as _recorder_pb2
from holdfast_proto.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_OBSERVE: _ClassVar[Mode]
    MODE_ACT: _ClassVar[Mode]

class Preset(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRESET_UNSPECIFIED: _ClassVar[Preset]
    PRESET_FAST: _ClassVar[Preset]
    PRESET_DEFAULT: _ClassVar[Preset]
    PRESET_PATIENT: _ClassVar[Preset]

class HangAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANG_ACTION_UNSPECIFIED: _ClassVar[HangAction]
    HANG_ACTION_REPORT: _ClassVar[HangAction]
    HANG_ACTION_ABORT: _ClassVar[HangAction]
    HANG_ACTION_RESTART: _ClassVar[HangAction]

class LossTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOSS_TIER_UNSPECIFIED: _ClassVar[LossTier]
    LOSS_TIER_BLIP: _ClassVar[LossTier]
    LOSS_TIER_SPIKE: _ClassVar[LossTier]
    LOSS_TIER_SLOW_RISE: _ClassVar[LossTier]
    LOSS_TIER_DIVERGENCE: _ClassVar[LossTier]
    LOSS_TIER_NON_FINITE: _ClassVar[LossTier]

class LossAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOSS_ACTION_UNSPECIFIED: _ClassVar[LossAction]
    LOSS_ACTION_NOTE: _ClassVar[LossAction]
    LOSS_ACTION_NOTIFY: _ClassVar[LossAction]
    LOSS_ACTION_STOP: _ClassVar[LossAction]
    LOSS_ACTION_ROLL_BACK: _ClassVar[LossAction]

class Life(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIFE_UNSPECIFIED: _ClassVar[Life]
    LIFE_STARTING: _ClassVar[Life]
    LIFE_RUNNING: _ClassVar[Life]
    LIFE_EXITED: _ClassVar[Life]

class CheckKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECK_KIND_UNSPECIFIED: _ClassVar[CheckKind]
    CHECK_KIND_DISK: _ClassVar[CheckKind]
    CHECK_KIND_SHM: _ClassVar[CheckKind]
    CHECK_KIND_LOOPBACK: _ClassVar[CheckKind]
    CHECK_KIND_NETWORK: _ClassVar[CheckKind]
    CHECK_KIND_CPU_GEMM: _ClassVar[CheckKind]
    CHECK_KIND_CPU_MEMORY: _ClassVar[CheckKind]
    CHECK_KIND_GPU_GEMM: _ClassVar[CheckKind]
    CHECK_KIND_GPU_MEMORY: _ClassVar[CheckKind]
    CHECK_KIND_GPU_STATE: _ClassVar[CheckKind]
    CHECK_KIND_CLOCK: _ClassVar[CheckKind]

class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_UNSPECIFIED: _ClassVar[Source]
    SOURCE_SEED: _ClassVar[Source]
    SOURCE_MEMORY: _ClassVar[Source]
    SOURCE_CHECKPOINT: _ClassVar[Source]
    SOURCE_REPLICA: _ClassVar[Source]

class VerdictKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_KIND_UNSPECIFIED: _ClassVar[VerdictKind]
    VERDICT_KIND_DEAD_RANK: _ClassVar[VerdictKind]
    VERDICT_KIND_HUNG_COLLECTIVE: _ClassVar[VerdictKind]
    VERDICT_KIND_MISMATCHED_ORDER: _ClassVar[VerdictKind]
    VERDICT_KIND_TRANSPORT: _ClassVar[VerdictKind]
    VERDICT_KIND_LOST_NODE: _ClassVar[VerdictKind]
    VERDICT_KIND_NON_FINITE: _ClassVar[VerdictKind]
    VERDICT_KIND_LOSS_SPIKE: _ClassVar[VerdictKind]
    VERDICT_KIND_CHECKPOINT_FAILED: _ClassVar[VerdictKind]
    VERDICT_KIND_BAD_CONFIGURATION: _ClassVar[VerdictKind]
    VERDICT_KIND_DATA_STALL: _ClassVar[VerdictKind]
    VERDICT_KIND_DUPLICATE_SAMPLES: _ClassVar[VerdictKind]
    VERDICT_KIND_OVERFLOW_LOOP: _ClassVar[VerdictKind]
    VERDICT_KIND_STRAGGLER: _ClassVar[VerdictKind]
    VERDICT_KIND_SILENT_CORRUPTION: _ClassVar[VerdictKind]
    VERDICT_KIND_GRADIENT_EXPLOSION: _ClassVar[VerdictKind]
    VERDICT_KIND_MEMORY_CREEP: _ClassVar[VerdictKind]
    VERDICT_KIND_ALLOCATOR_RETRIES: _ClassVar[VerdictKind]
    VERDICT_KIND_THROUGHPUT_DROP: _ClassVar[VerdictKind]
    VERDICT_KIND_MISSING_LOSS: _ClassVar[VerdictKind]
    VERDICT_KIND_STANDSTILL: _ClassVar[VerdictKind]
    VERDICT_KIND_LATE_EXIT: _ClassVar[VerdictKind]
    VERDICT_KIND_LOSS_RISE: _ClassVar[VerdictKind]
    VERDICT_KIND_LOSS_DIVERGENCE: _ClassVar[VerdictKind]

class DeviceCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_CAUSE_UNSPECIFIED: _ClassVar[DeviceCause]
    DEVICE_CAUSE_STUCK_DEVICE: _ClassVar[DeviceCause]
    DEVICE_CAUSE_HELD_ALONE: _ClassVar[DeviceCause]
    DEVICE_CAUSE_INSIDE_CALL: _ClassVar[DeviceCause]
    DEVICE_CAUSE_OPPOSITE_ORDER: _ClassVar[DeviceCause]
    DEVICE_CAUSE_DIFFERENT_SIZES: _ClassVar[DeviceCause]
    DEVICE_CAUSE_PENDING_TRANSFER: _ClassVar[DeviceCause]
    DEVICE_CAUSE_UNKNOWN: _ClassVar[DeviceCause]

class EndCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_CAUSE_UNSPECIFIED: _ClassVar[EndCause]
    END_CAUSE_CONFIGURATION: _ClassVar[EndCause]
    END_CAUSE_KILLED: _ClassVar[EndCause]
    END_CAUSE_FAILED: _ClassVar[EndCause]
    END_CAUSE_LEFT_EARLY: _ClassVar[EndCause]
    END_CAUSE_LOST_PEER: _ClassVar[EndCause]

class HeldState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HELD_STATE_UNSPECIFIED: _ClassVar[HeldState]
    HELD_STATE_PRESENT: _ClassVar[HeldState]
    HELD_STATE_ENDED: _ClassVar[HeldState]
    HELD_STATE_LEFT: _ClassVar[HeldState]

class MismatchForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISMATCH_FORM_UNSPECIFIED: _ClassVar[MismatchForm]
    MISMATCH_FORM_DIFFERENT_CALLS: _ClassVar[MismatchForm]
    MISMATCH_FORM_CIRCLE: _ClassVar[MismatchForm]
    MISMATCH_FORM_LEFT_BEHIND: _ClassVar[MismatchForm]
    MISMATCH_FORM_SIZES: _ClassVar[MismatchForm]
    MISMATCH_FORM_PEER: _ClassVar[MismatchForm]
    MISMATCH_FORM_BEHIND: _ClassVar[MismatchForm]
    MISMATCH_FORM_GROUPS: _ClassVar[MismatchForm]

class TransportForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSPORT_FORM_UNSPECIFIED: _ClassVar[TransportForm]
    TRANSPORT_FORM_CALL: _ClassVar[TransportForm]
    TRANSPORT_FORM_MESSAGE: _ClassVar[TransportForm]
    TRANSPORT_FORM_NO_CONNECTION: _ClassVar[TransportForm]
    TRANSPORT_FORM_NO_MEETING: _ClassVar[TransportForm]

class Bottleneck(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BOTTLENECK_UNSPECIFIED: _ClassVar[Bottleneck]
    BOTTLENECK_DATA: _ClassVar[Bottleneck]
    BOTTLENECK_CHECKPOINTS: _ClassVar[Bottleneck]
    BOTTLENECK_BUBBLE: _ClassVar[Bottleneck]
    BOTTLENECK_COMPUTATION: _ClassVar[Bottleneck]
    BOTTLENECK_COMMUNICATION: _ClassVar[Bottleneck]
    BOTTLENECK_COMPUTATION_OR_COMMUNICATION: _ClassVar[Bottleneck]

class CheckpointTrouble(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_TROUBLE_UNSPECIFIED: _ClassVar[CheckpointTrouble]
    CHECKPOINT_TROUBLE_FAILED: _ClassVar[CheckpointTrouble]
    CHECKPOINT_TROUBLE_DAMAGED: _ClassVar[CheckpointTrouble]
    CHECKPOINT_TROUBLE_UNREADABLE: _ClassVar[CheckpointTrouble]
    CHECKPOINT_TROUBLE_WAITING: _ClassVar[CheckpointTrouble]
    CHECKPOINT_TROUBLE_NO_MEMORY: _ClassVar[CheckpointTrouble]

class OwnTimeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OWN_TIME_KIND_UNSPECIFIED: _ClassVar[OwnTimeKind]
    OWN_TIME_KIND_BUSY: _ClassVar[OwnTimeKind]
    OWN_TIME_KIND_DATA: _ClassVar[OwnTimeKind]
    OWN_TIME_KIND_ASLEEP: _ClassVar[OwnTimeKind]
    OWN_TIME_KIND_DEVICE: _ClassVar[OwnTimeKind]

class SlowSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLOW_SIDE_UNSPECIFIED: _ClassVar[SlowSide]
    SLOW_SIDE_HOST: _ClassVar[SlowSide]
    SLOW_SIDE_GPU: _ClassVar[SlowSide]

class LauncherReaction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAUNCHER_REACTION_UNSPECIFIED: _ClassVar[LauncherReaction]
    LAUNCHER_REACTION_RESTARTED: _ClassVar[LauncherReaction]
    LAUNCHER_REACTION_ENDED: _ClassVar[LauncherReaction]

class IncidentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INCIDENT_STATE_UNSPECIFIED: _ClassVar[IncidentState]
    INCIDENT_STATE_OPEN: _ClassVar[IncidentState]
    INCIDENT_STATE_RECOVERED: _ClassVar[IncidentState]
    INCIDENT_STATE_NOTED: _ClassVar[IncidentState]
    INCIDENT_STATE_FAILED: _ClassVar[IncidentState]
    INCIDENT_STATE_STANDSTILL: _ClassVar[IncidentState]
    INCIDENT_STATE_RESOLVED: _ClassVar[IncidentState]

class RunPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_PHASE_UNSPECIFIED: _ClassVar[RunPhase]
    RUN_PHASE_WAITING: _ClassVar[RunPhase]
    RUN_PHASE_STARTING: _ClassVar[RunPhase]
    RUN_PHASE_RUNNING: _ClassVar[RunPhase]
    RUN_PHASE_GATHERING: _ClassVar[RunPhase]
    RUN_PHASE_STOPPING: _ClassVar[RunPhase]
    RUN_PHASE_FINISHED: _ClassVar[RunPhase]
    RUN_PHASE_FAILED: _ClassVar[RunPhase]
    RUN_PHASE_LEAVING: _ClassVar[RunPhase]
MODE_UNSPECIFIED: Mode
MODE_OBSERVE: Mode
MODE_ACT: Mode
PRESET_UNSPECIFIED: Preset
PRESET_FAST: Preset
PRESET_DEFAULT: Preset
PRESET_PATIENT: Preset
HANG_ACTION_UNSPECIFIED: HangAction
HANG_ACTION_REPORT: HangAction
HANG_ACTION_ABORT: HangAction
HANG_ACTION_RESTART: HangAction
LOSS_TIER_UNSPECIFIED: LossTier
LOSS_TIER_BLIP: LossTier
LOSS_TIER_SPIKE: LossTier
LOSS_TIER_SLOW_RISE: LossTier
LOSS_TIER_DIVERGENCE: LossTier
LOSS_TIER_NON_FINITE: LossTier
LOSS_ACTION_UNSPECIFIED: LossAction
LOSS_ACTION_NOTE: LossAction
LOSS_ACTION_NOTIFY: LossAction
LOSS_ACTION_STOP: LossAction
LOSS_ACTION_ROLL_BACK: LossAction
LIFE_UNSPECIFIED: Life
LIFE_STARTING: Life
LIFE_RUNNING: Life
LIFE_EXITED: Life
CHECK_KIND_UNSPECIFIED: CheckKind
CHECK_KIND_DISK: CheckKind
CHECK_KIND_SHM: CheckKind
CHECK_KIND_LOOPBACK: CheckKind
CHECK_KIND_NETWORK: CheckKind
CHECK_KIND_CPU_GEMM: CheckKind
CHECK_KIND_CPU_MEMORY: CheckKind
CHECK_KIND_GPU_GEMM: CheckKind
CHECK_KIND_GPU_MEMORY: CheckKind
CHECK_KIND_GPU_STATE: CheckKind
CHECK_KIND_CLOCK: CheckKind
SOURCE_UNSPECIFIED: Source
SOURCE_SEED: Source
SOURCE_MEMORY: Source
SOURCE_CHECKPOINT: Source
SOURCE_REPLICA: Source
VERDICT_KIND_UNSPECIFIED: VerdictKind
VERDICT_KIND_DEAD_RANK: VerdictKind
VERDICT_KIND_HUNG_COLLECTIVE: VerdictKind
VERDICT_KIND_MISMATCHED_ORDER: VerdictKind
VERDICT_KIND_TRANSPORT: VerdictKind
VERDICT_KIND_LOST_NODE: VerdictKind
VERDICT_KIND_NON_FINITE: VerdictKind
VERDICT_KIND_LOSS_SPIKE: VerdictKind
VERDICT_KIND_CHECKPOINT_FAILED: VerdictKind
VERDICT_KIND_BAD_CONFIGURATION: VerdictKind
VERDICT_KIND_DATA_STALL: VerdictKind
VERDICT_KIND_DUPLICATE_SAMPLES: VerdictKind
VERDICT_KIND_OVERFLOW_LOOP: VerdictKind
VERDICT_KIND_STRAGGLER: VerdictKind
VERDICT_KIND_SILENT_CORRUPTION: VerdictKind
VERDICT_KIND_GRADIENT_EXPLOSION: VerdictKind
VERDICT_KIND_MEMORY_CREEP: VerdictKind
VERDICT_KIND_ALLOCATOR_RETRIES: VerdictKind
VERDICT_KIND_THROUGHPUT_DROP: VerdictKind
VERDICT_KIND_MISSING_LOSS: VerdictKind
VERDICT_KIND_STANDSTILL: VerdictKind
VERDICT_KIND_LATE_EXIT: VerdictKind
VERDICT_KIND_LOSS_RISE: VerdictKind
VERDICT_KIND_LOSS_DIVERGENCE: VerdictKind
DEVICE_CAUSE_UNSPECIFIED: DeviceCause
DEVICE_CAUSE_STUCK_DEVICE: DeviceCause
DEVICE_CAUSE_HELD_ALONE: DeviceCause
DEVICE_CAUSE_INSIDE_CALL: DeviceCause
DEVICE_CAUSE_OPPOSITE_ORDER: DeviceCause
DEVICE_CAUSE_DIFFERENT_SIZES: DeviceCause
DEVICE_CAUSE_PENDING_TRANSFER: DeviceCause
DEVICE_CAUSE_UNKNOWN: DeviceCause
END_CAUSE_UNSPECIFIED: EndCause
END_CAUSE_CONFIGURATION: EndCause
END_CAUSE_KILLED: EndCause
END_CAUSE_FAILED: EndCause
END_CAUSE_LEFT_EARLY: EndCause
END_CAUSE_LOST_PEER: EndCause
HELD_STATE_UNSPECIFIED: HeldState
HELD_STATE_PRESENT: HeldState
HELD_STATE_ENDED: HeldState
HELD_STATE_LEFT: HeldState
MISMATCH_FORM_UNSPECIFIED: MismatchForm
MISMATCH_FORM_DIFFERENT_CALLS: MismatchForm
MISMATCH_FORM_CIRCLE: MismatchForm
MISMATCH_FORM_LEFT_BEHIND: MismatchForm
MISMATCH_FORM_SIZES: MismatchForm
MISMATCH_FORM_PEER: MismatchForm
MISMATCH_FORM_BEHIND: MismatchForm
MISMATCH_FORM_GROUPS: MismatchForm
TRANSPORT_FORM_UNSPECIFIED: TransportForm
TRANSPORT_FORM_CALL: TransportForm
TRANSPORT_FORM_MESSAGE: TransportForm
TRANSPORT_FORM_NO_CONNECTION: TransportForm
TRANSPORT_FORM_NO_MEETING: TransportForm
BOTTLENECK_UNSPECIFIED: Bottleneck
BOTTLENECK_DATA: Bottleneck
BOTTLENECK_CHECKPOINTS: Bottleneck
BOTTLENECK_BUBBLE: Bottleneck
BOTTLENECK_COMPUTATION: Bottleneck
BOTTLENECK_COMMUNICATION: Bottleneck
BOTTLENECK_COMPUTATION_OR_COMMUNICATION: Bottleneck
CHECKPOINT_TROUBLE_UNSPECIFIED: CheckpointTrouble
CHECKPOINT_TROUBLE_FAILED: CheckpointTrouble
CHECKPOINT_TROUBLE_DAMAGED: CheckpointTrouble
CHECKPOINT_TROUBLE_UNREADABLE: CheckpointTrouble
CHECKPOINT_TROUBLE_WAITING: CheckpointTrouble
CHECKPOINT_TROUBLE_NO_MEMORY: CheckpointTrouble
OWN_TIME_KIND_UNSPECIFIED: OwnTimeKind
OWN_TIME_KIND_BUSY: OwnTimeKind
OWN_TIME_KIND_DATA: OwnTimeKind
OWN_TIME_KIND_ASLEEP: OwnTimeKind
OWN_TIME_KIND_DEVICE: OwnTimeKind
SLOW_SIDE_UNSPECIFIED: SlowSide
SLOW_SIDE_HOST: SlowSide
SLOW_SIDE_GPU: SlowSide
LAUNCHER_REACTION_UNSPECIFIED: LauncherReaction
LAUNCHER_REACTION_RESTARTED: LauncherReaction
LAUNCHER_REACTION_ENDED: LauncherReaction
INCIDENT_STATE_UNSPECIFIED: IncidentState
INCIDENT_STATE_OPEN: IncidentState
INCIDENT_STATE_RECOVERED: IncidentState
INCIDENT_STATE_NOTED: IncidentState
INCIDENT_STATE_FAILED: IncidentState
INCIDENT_STATE_STANDSTILL: IncidentState
INCIDENT_STATE_RESOLVED: IncidentState
RUN_PHASE_UNSPECIFIED: RunPhase
RUN_PHASE_WAITING: RunPhase
RUN_PHASE_STARTING: RunPhase
RUN_PHASE_RUNNING: RunPhase
RUN_PHASE_GATHERING: RunPhase
RUN_PHASE_STOPPING: RunPhase
RUN_PHASE_FINISHED: RunPhase
RUN_PHASE_FAILED: RunPhase
RUN_PHASE_LEAVING: RunPhase

class RunSpec(_message.Message):
    __slots__ = ("run", "nodes", "ranks_per_node", "command", "mode", "preset", "snapshot_every", "checkpoint_every", "checkpoint_directory", "checkpoints_kept", "restarts_without_progress", "created_unix_s", "instance", "checkpoint_every_s", "injection_allowed", "checkpoints_secondary", "checkpoints_secondary_kept", "checkpoint_upload_bytes_per_s", "restart_patience", "from_scratch", "adopt", "continue_from", "versions", "notify", "loss_policy", "on_hang", "auto", "ras_off", "restores", "replicate_every_s", "replica_bytes_per_s", "left_out", "min_replicas", "resize_after_s", "checks_nodes", "quarantines")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RANKS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_EVERY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_KEPT_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_WITHOUT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    INJECTION_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_SECONDARY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_SECONDARY_KEPT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_UPLOAD_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RESTART_PATIENCE_FIELD_NUMBER: _ClassVar[int]
    FROM_SCRATCH_FIELD_NUMBER: _ClassVar[int]
    ADOPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FROM_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    LOSS_POLICY_FIELD_NUMBER: _ClassVar[int]
    ON_HANG_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    RAS_OFF_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RESIZE_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    CHECKS_NODES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    run: str
    nodes: int
    ranks_per_node: int
    command: _containers.RepeatedScalarFieldContainer[str]
    mode: Mode
    preset: Preset
    snapshot_every: int
    checkpoint_every: int
    checkpoint_directory: str
    checkpoints_kept: int
    restarts_without_progress: int
    created_unix_s: float
    instance: str
    checkpoint_every_s: float
    injection_allowed: bool
    checkpoints_secondary: str
    checkpoints_secondary_kept: int
    checkpoint_upload_bytes_per_s: float
    restart_patience: float
    from_scratch: bool
    adopt: bool
    continue_from: int
    versions: _containers.ScalarMap[str, str]
    notify: Notify
    loss_policy: LossPolicy
    on_hang: HangAction
    auto: bool
    ras_off: bool
    restores: bool
    replicate_every_s: float
    replica_bytes_per_s: float
    left_out: _containers.RepeatedCompositeFieldContainer[_session_pb2.LeftOut]
    min_replicas: int
    resize_after_s: float
    checks_nodes: bool
    quarantines: bool
    def __init__(self, run: _Optional[str] = ..., nodes: _Optional[int] = ..., ranks_per_node: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., mode: _Optional[_Union[Mode, str]] = ..., preset: _Optional[_Union[Preset, str]] = ..., snapshot_every: _Optional[int] = ..., checkpoint_every: _Optional[int] = ..., checkpoint_directory: _Optional[str] = ..., checkpoints_kept: _Optional[int] = ..., restarts_without_progress: _Optional[int] = ..., created_unix_s: _Optional[float] = ..., instance: _Optional[str] = ..., checkpoint_every_s: _Optional[float] = ..., injection_allowed: bool = ..., checkpoints_secondary: _Optional[str] = ..., checkpoints_secondary_kept: _Optional[int] = ..., checkpoint_upload_bytes_per_s: _Optional[float] = ..., restart_patience: _Optional[float] = ..., from_scratch: bool = ..., adopt: bool = ..., continue_from: _Optional[int] = ..., versions: _Optional[_Mapping[str, str]] = ..., notify: _Optional[_Union[Notify, _Mapping]] = ..., loss_policy: _Optional[_Union[LossPolicy, _Mapping]] = ..., on_hang: _Optional[_Union[HangAction, str]] = ..., auto: bool = ..., ras_off: bool = ..., restores: bool = ..., replicate_every_s: _Optional[float] = ..., replica_bytes_per_s: _Optional[float] = ..., left_out: _Optional[_Iterable[_Union[_session_pb2.LeftOut, _Mapping]]] = ..., min_replicas: _Optional[int] = ..., resize_after_s: _Optional[float] = ..., checks_nodes: bool = ..., quarantines: bool = ...) -> None: ...

class LossRule(_message.Message):
    __slots__ = ("action", "budget")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    action: LossAction
    budget: int
    def __init__(self, action: _Optional[_Union[LossAction, str]] = ..., budget: _Optional[int] = ...) -> None: ...

class LossPolicy(_message.Message):
    __slots__ = ("blip", "spike", "slow_rise", "divergence", "non_finite", "roll_backs", "further_steps")
    BLIP_FIELD_NUMBER: _ClassVar[int]
    SPIKE_FIELD_NUMBER: _ClassVar[int]
    SLOW_RISE_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    ROLL_BACKS_FIELD_NUMBER: _ClassVar[int]
    FURTHER_STEPS_FIELD_NUMBER: _ClassVar[int]
    blip: LossRule
    spike: LossRule
    slow_rise: LossRule
    divergence: LossRule
    non_finite: LossRule
    roll_backs: int
    further_steps: int
    def __init__(self, blip: _Optional[_Union[LossRule, _Mapping]] = ..., spike: _Optional[_Union[LossRule, _Mapping]] = ..., slow_rise: _Optional[_Union[LossRule, _Mapping]] = ..., divergence: _Optional[_Union[LossRule, _Mapping]] = ..., non_finite: _Optional[_Union[LossRule, _Mapping]] = ..., roll_backs: _Optional[int] = ..., further_steps: _Optional[int] = ...) -> None: ...

class LossCounts(_message.Message):
    __slots__ = ("blips", "spikes", "rises", "diverged", "nonfinite", "divergence_answered", "nonfinite_answered", "judged_step", "nonfinite_since", "finite_step", "finite_loss", "stopped_by", "roll_backs")
    BLIPS_FIELD_NUMBER: _ClassVar[int]
    SPIKES_FIELD_NUMBER: _ClassVar[int]
    RISES_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    JUDGED_STEP_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_SINCE_FIELD_NUMBER: _ClassVar[int]
    FINITE_STEP_FIELD_NUMBER: _ClassVar[int]
    FINITE_LOSS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    ROLL_BACKS_FIELD_NUMBER: _ClassVar[int]
    blips: int
    spikes: int
    rises: int
    diverged: int
    nonfinite: int
    divergence_answered: bool
    nonfinite_answered: bool
    judged_step: int
    nonfinite_since: int
    finite_step: int
    finite_loss: float
    stopped_by: LossTier
    roll_backs: int
    def __init__(self, blips: _Optional[int] = ..., spikes: _Optional[int] = ..., rises: _Optional[int] = ..., diverged: _Optional[int] = ..., nonfinite: _Optional[int] = ..., divergence_answered: bool = ..., nonfinite_answered: bool = ..., judged_step: _Optional[int] = ..., nonfinite_since: _Optional[int] = ..., finite_step: _Optional[int] = ..., finite_loss: _Optional[float] = ..., stopped_by: _Optional[_Union[LossTier, str]] = ..., roll_backs: _Optional[int] = ...) -> None: ...

class RollBack(_message.Message):
    __slots__ = ("before_step", "last_data", "generation")
    BEFORE_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_DATA_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    before_step: int
    last_data: int
    generation: int
    def __init__(self, before_step: _Optional[int] = ..., last_data: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Notify(_message.Message):
    __slots__ = ("on", "ignored", "min_interval_s", "console_url", "channels", "heartbeat")
    ON_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    MIN_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    CONSOLE_URL_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    on: _containers.RepeatedScalarFieldContainer[str]
    ignored: _containers.RepeatedScalarFieldContainer[str]
    min_interval_s: float
    console_url: str
    channels: _containers.RepeatedCompositeFieldContainer[NotifyChannel]
    heartbeat: Heartbeat
    def __init__(self, on: _Optional[_Iterable[str]] = ..., ignored: _Optional[_Iterable[str]] = ..., min_interval_s: _Optional[float] = ..., console_url: _Optional[str] = ..., channels: _Optional[_Iterable[_Union[NotifyChannel, _Mapping]]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class NotifyChannel(_message.Message):
    __slots__ = ("name", "webhook", "slack", "discord", "command", "email")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    SLACK_FIELD_NUMBER: _ClassVar[int]
    DISCORD_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    EMAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    webhook: WebhookChannel
    slack: UrlFile
    discord: UrlFile
    command: CommandChannel
    email: EmailChannel
    def __init__(self, name: _Optional[str] = ..., webhook: _Optional[_Union[WebhookChannel, _Mapping]] = ..., slack: _Optional[_Union[UrlFile, _Mapping]] = ..., discord: _Optional[_Union[UrlFile, _Mapping]] = ..., command: _Optional[_Union[CommandChannel, _Mapping]] = ..., email: _Optional[_Union[EmailChannel, _Mapping]] = ...) -> None: ...

class WebhookChannel(_message.Message):
    __slots__ = ("url", "url_file", "bearer_token_file")
    URL_FIELD_NUMBER: _ClassVar[int]
    URL_FILE_FIELD_NUMBER: _ClassVar[int]
    BEARER_TOKEN_FILE_FIELD_NUMBER: _ClassVar[int]
    url: str
    url_file: str
    bearer_token_file: str
    def __init__(self, url: _Optional[str] = ..., url_file: _Optional[str] = ..., bearer_token_file: _Optional[str] = ...) -> None: ...

class UrlFile(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class CommandChannel(_message.Message):
    __slots__ = ("argv", "timeout_s")
    ARGV_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    argv: _containers.RepeatedScalarFieldContainer[str]
    timeout_s: float
    def __init__(self, argv: _Optional[_Iterable[str]] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class EmailChannel(_message.Message):
    __slots__ = ("host", "port", "security", "user", "password_file", "sender", "to")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FILE_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    security: str
    user: str
    password_file: str
    sender: str
    to: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., security: _Optional[str] = ..., user: _Optional[str] = ..., password_file: _Optional[str] = ..., sender: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("url_file", "fail_url_file", "every_s")
    URL_FILE_FIELD_NUMBER: _ClassVar[int]
    FAIL_URL_FILE_FIELD_NUMBER: _ClassVar[int]
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    url_file: str
    fail_url_file: str
    every_s: float
    def __init__(self, url_file: _Optional[str] = ..., fail_url_file: _Optional[str] = ..., every_s: _Optional[float] = ...) -> None: ...

class RankExit(_message.Message):
    __slots__ = ("code", "signal", "last_words", "step", "phase", "exited_unix_s", "order", "finished", "out_of_memory", "kernel_line", "never_attached", "steps_until", "gpu_fault")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LAST_WORDS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EXITED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    KERNEL_LINE_FIELD_NUMBER: _ClassVar[int]
    NEVER_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    STEPS_UNTIL_FIELD_NUMBER: _ClassVar[int]
    GPU_FAULT_FIELD_NUMBER: _ClassVar[int]
    code: int
    signal: int
    last_words: str
    step: int
    phase: _common_pb2.Phase
    exited_unix_s: float
    order: int
    finished: bool
    out_of_memory: bool
    kernel_line: str
    never_attached: bool
    steps_until: int
    gpu_fault: GpuFault
    def __init__(self, code: _Optional[int] = ..., signal: _Optional[int] = ..., last_words: _Optional[str] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[_common_pb2.Phase, str]] = ..., exited_unix_s: _Optional[float] = ..., order: _Optional[int] = ..., finished: bool = ..., out_of_memory: bool = ..., kernel_line: _Optional[str] = ..., never_attached: bool = ..., steps_until: _Optional[int] = ..., gpu_fault: _Optional[_Union[GpuFault, _Mapping]] = ...) -> None: ...

class GpuFault(_message.Message):
    __slots__ = ("gpu", "uuid", "xid", "meaning", "line", "unix_s", "fatal")
    GPU_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    FATAL_FIELD_NUMBER: _ClassVar[int]
    gpu: int
    uuid: str
    xid: int
    meaning: str
    line: str
    unix_s: float
    fatal: bool
    def __init__(self, gpu: _Optional[int] = ..., uuid: _Optional[str] = ..., xid: _Optional[int] = ..., meaning: _Optional[str] = ..., line: _Optional[str] = ..., unix_s: _Optional[float] = ..., fatal: bool = ...) -> None: ...

class GpuState(_message.Message):
    __slots__ = ("gpu", "uuid", "fault", "throttles", "utilization_sum", "utilization_samples")
    GPU_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    THROTTLES_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_SUM_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    gpu: int
    uuid: str
    fault: GpuFault
    throttles: _containers.RepeatedScalarFieldContainer[str]
    utilization_sum: float
    utilization_samples: int
    def __init__(self, gpu: _Optional[int] = ..., uuid: _Optional[str] = ..., fault: _Optional[_Union[GpuFault, _Mapping]] = ..., throttles: _Optional[_Iterable[str]] = ..., utilization_sum: _Optional[float] = ..., utilization_samples: _Optional[int] = ...) -> None: ...

class RankState(_message.Message):
    __slots__ = ("rank", "pid", "life", "progress", "stalled_s", "silent_s", "process_state", "exit", "snapshots", "coordinates", "device", "first_step_ended_unix_s", "steps_done", "busy_s", "phase_s", "memory", "thread_state", "thread_syscall", "pending", "still_s", "moved", "traced", "workers", "left_training", "blocked_on", "launched_world_size", "own_wait_s", "device_own_s", "device_steps", "own_time_source", "own_time_reason", "recorders", "planned_steps", "gpu", "start_ticks", "sign_of_life", "sign_age_s", "dying", "lost_worker", "awaits_start", "replica_ranks")
    class CoordinatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PhaseSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STALLED_S_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    PROCESS_STATE_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_ENDED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    PHASE_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    THREAD_STATE_FIELD_NUMBER: _ClassVar[int]
    THREAD_SYSCALL_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    STILL_S_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    TRACED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LEFT_TRAINING_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_ON_FIELD_NUMBER: _ClassVar[int]
    LAUNCHED_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    OWN_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_OWN_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_STEPS_FIELD_NUMBER: _ClassVar[int]
    OWN_TIME_SOURCE_FIELD_NUMBER: _ClassVar[int]
    OWN_TIME_REASON_FIELD_NUMBER: _ClassVar[int]
    RECORDERS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_STEPS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    SIGN_OF_LIFE_FIELD_NUMBER: _ClassVar[int]
    SIGN_AGE_S_FIELD_NUMBER: _ClassVar[int]
    DYING_FIELD_NUMBER: _ClassVar[int]
    LOST_WORKER_FIELD_NUMBER: _ClassVar[int]
    AWAITS_START_FIELD_NUMBER: _ClassVar[int]
    REPLICA_RANKS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    life: Life
    progress: _common_pb2.Progress
    stalled_s: float
    silent_s: float
    process_state: str
    exit: RankExit
    snapshots: _containers.RepeatedScalarFieldContainer[int]
    coordinates: _containers.ScalarMap[str, int]
    device: str
    first_step_ended_unix_s: float
    steps_done: int
    busy_s: float
    phase_s: _containers.ScalarMap[int, float]
    memory: _session_pb2.MemoryStatus
    thread_state: str
    thread_syscall: int
    pending: _containers.RepeatedCompositeFieldContainer[_common_pb2.PendingCall]
    still_s: float
    moved: str
    traced: bool
    workers: int
    left_training: bool
    blocked_on: _common_pb2.BlockedOn
    launched_world_size: int
    own_wait_s: float
    device_own_s: float
    device_steps: int
    own_time_source: _common_pb2.OwnTimeSource
    own_time_reason: str
    recorders: _containers.RepeatedCompositeFieldContainer[_common_pb2.Recorder]
    planned_steps: int
    gpu: GpuState
    start_ticks: int
    sign_of_life: str
    sign_age_s: float
    dying: bool
    lost_worker: LostWorker
    awaits_start: bool
    replica_ranks: int
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., life: _Optional[_Union[Life, str]] = ..., progress: _Optional[_Union[_common_pb2.Progress, _Mapping]] = ..., stalled_s: _Optional[float] = ..., silent_s: _Optional[float] = ..., process_state: _Optional[str] = ..., exit: _Optional[_Union[RankExit, _Mapping]] = ..., snapshots: _Optional[_Iterable[int]] = ..., coordinates: _Optional[_Mapping[str, int]] = ..., device: _Optional[str] = ..., first_step_ended_unix_s: _Optional[float] = ..., steps_done: _Optional[int] = ..., busy_s: _Optional[float] = ..., phase_s: _Optional[_Mapping[int, float]] = ..., memory: _Optional[_Union[_session_pb2.MemoryStatus, _Mapping]] = ..., thread_state: _Optional[str] = ..., thread_syscall: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[_common_pb2.PendingCall, _Mapping]]] = ..., still_s: _Optional[float] = ..., moved: _Optional[str] = ..., traced: bool = ..., workers: _Optional[int] = ..., left_training: bool = ..., blocked_on: _Optional[_Union[_common_pb2.BlockedOn, _Mapping]] = ..., launched_world_size: _Optional[int] = ..., own_wait_s: _Optional[float] = ..., device_own_s: _Optional[float] = ..., device_steps: _Optional[int] = ..., own_time_source: _Optional[_Union[_common_pb2.OwnTimeSource, str]] = ..., own_time_reason: _Optional[str] = ..., recorders: _Optional[_Iterable[_Union[_common_pb2.Recorder, _Mapping]]] = ..., planned_steps: _Optional[int] = ..., gpu: _Optional[_Union[GpuState, _Mapping]] = ..., start_ticks: _Optional[int] = ..., sign_of_life: _Optional[str] = ..., sign_age_s: _Optional[float] = ..., dying: bool = ..., lost_worker: _Optional[_Union[LostWorker, _Mapping]] = ..., awaits_start: bool = ..., replica_ranks: _Optional[int] = ...) -> None: ...

class LostWorker(_message.Message):
    __slots__ = ("pid", "code")
    PID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    pid: int
    code: int
    def __init__(self, pid: _Optional[int] = ..., code: _Optional[int] = ...) -> None: ...

class NodeState(_message.Message):
    __slots__ = ("run", "node", "generation", "fence", "stopped", "ranks", "checkpoints", "reported_unix_s", "agent_pid", "ready", "instance", "incarnation", "failed_generation", "failure", "checkpoint_generation", "leave_in_s", "world_size", "relaunched", "refused_ranks", "history", "damaged_checkpoints", "protocol", "awaits_files", "checkpoints_are_old", "restored_generation", "restarts_left", "replicas", "left_out", "check")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    AGENT_PID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FAILED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEAVE_IN_S_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RELAUNCHED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_RANKS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AWAITS_FILES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_ARE_OLD_FIELD_NUMBER: _ClassVar[int]
    RESTORED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    run: str
    node: str
    generation: int
    fence: int
    stopped: bool
    ranks: _containers.RepeatedCompositeFieldContainer[RankState]
    checkpoints: _containers.RepeatedScalarFieldContainer[int]
    reported_unix_s: float
    agent_pid: int
    ready: bool
    instance: str
    incarnation: int
    failed_generation: int
    failure: str
    checkpoint_generation: int
    leave_in_s: float
    world_size: int
    relaunched: bool
    refused_ranks: str
    history: int
    damaged_checkpoints: _containers.RepeatedScalarFieldContainer[int]
    protocol: int
    awaits_files: bool
    checkpoints_are_old: bool
    restored_generation: int
    restarts_left: int
    replicas: NodeReplicas
    left_out: _containers.RepeatedCompositeFieldContainer[_session_pb2.LeftOut]
    check: NodeCheck
    def __init__(self, run: _Optional[str] = ..., node: _Optional[str] = ..., generation: _Optional[int] = ..., fence: _Optional[int] = ..., stopped: bool = ..., ranks: _Optional[_Iterable[_Union[RankState, _Mapping]]] = ..., checkpoints: _Optional[_Iterable[int]] = ..., reported_unix_s: _Optional[float] = ..., agent_pid: _Optional[int] = ..., ready: bool = ..., instance: _Optional[str] = ..., incarnation: _Optional[int] = ..., failed_generation: _Optional[int] = ..., failure: _Optional[str] = ..., checkpoint_generation: _Optional[int] = ..., leave_in_s: _Optional[float] = ..., world_size: _Optional[int] = ..., relaunched: bool = ..., refused_ranks: _Optional[str] = ..., history: _Optional[int] = ..., damaged_checkpoints: _Optional[_Iterable[int]] = ..., protocol: _Optional[int] = ..., awaits_files: bool = ..., checkpoints_are_old: bool = ..., restored_generation: _Optional[int] = ..., restarts_left: _Optional[int] = ..., replicas: _Optional[_Union[NodeReplicas, _Mapping]] = ..., left_out: _Optional[_Iterable[_Union[_session_pb2.LeftOut, _Mapping]]] = ..., check: _Optional[_Union[NodeCheck, _Mapping]] = ...) -> None: ...

class NodeCheck(_message.Message):
    __slots__ = ("id", "ended_unix_s", "took_s", "figures", "failures", "unmeasured")
    ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    UNMEASURED_FIELD_NUMBER: _ClassVar[int]
    id: str
    ended_unix_s: float
    took_s: float
    figures: _containers.RepeatedCompositeFieldContainer[CheckFigure]
    failures: _containers.RepeatedCompositeFieldContainer[CheckFailure]
    unmeasured: str
    def __init__(self, id: _Optional[str] = ..., ended_unix_s: _Optional[float] = ..., took_s: _Optional[float] = ..., figures: _Optional[_Iterable[_Union[CheckFigure, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[CheckFailure, _Mapping]]] = ..., unmeasured: _Optional[str] = ...) -> None: ...

class CheckFigure(_message.Message):
    __slots__ = ("kind", "device", "value")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    kind: CheckKind
    device: int
    value: float
    def __init__(self, kind: _Optional[_Union[CheckKind, str]] = ..., device: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class CheckFailure(_message.Message):
    __slots__ = ("kind", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: CheckKind
    reason: str
    def __init__(self, kind: _Optional[_Union[CheckKind, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeReplicas(_message.Message):
    __slots__ = ("address", "failure_domain", "held", "wanted_step", "failed", "replicated_step", "unusable_generation")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WANTED_STEP_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REPLICATED_STEP_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    address: str
    failure_domain: str
    held: _containers.RepeatedCompositeFieldContainer[HeldReplicas]
    wanted_step: int
    failed: bool
    replicated_step: int
    unusable_generation: int
    def __init__(self, address: _Optional[str] = ..., failure_domain: _Optional[str] = ..., held: _Optional[_Iterable[_Union[HeldReplicas, _Mapping]]] = ..., wanted_step: _Optional[int] = ..., failed: bool = ..., replicated_step: _Optional[int] = ..., unusable_generation: _Optional[int] = ...) -> None: ...

class HeldReplicas(_message.Message):
    __slots__ = ("step", "generation", "ranks", "world_size")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    step: int
    generation: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    world_size: int
    def __init__(self, step: _Optional[int] = ..., generation: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., world_size: _Optional[int] = ...) -> None: ...

class Mean(_message.Message):
    __slots__ = ("sum", "count")
    SUM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    sum: float
    count: int
    def __init__(self, sum: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class SamplesUsed(_message.Message):
    __slots__ = ("dp", "rank", "fingerprint")
    DP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    dp: int
    rank: int
    fingerprint: bytes
    def __init__(self, dp: _Optional[int] = ..., rank: _Optional[int] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class StepSummary(_message.Message):
    __slots__ = ("step", "generation", "loss_sum", "loss_count", "validation_loss", "grad_norm", "learning_rate", "tokens", "duration_s", "ended_unix_s", "nonfinite", "phase_s", "update_norm", "loss_scale", "overflow", "mfu", "pipeline_bubble", "balance_loss", "dropped_tokens", "samples", "replicas", "plain", "coverage", "replay")
    class PhaseSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    LOSS_COUNT_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    PHASE_S_FIELD_NUMBER: _ClassVar[int]
    UPDATE_NORM_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    MFU_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    BALANCE_LOSS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    step: int
    generation: int
    loss_sum: float
    loss_count: int
    validation_loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    duration_s: float
    ended_unix_s: float
    nonfinite: _containers.RepeatedCompositeFieldContainer[NonFinite]
    phase_s: _containers.ScalarMap[int, float]
    update_norm: float
    loss_scale: float
    overflow: bool
    mfu: Mean
    pipeline_bubble: Mean
    balance_loss: Mean
    dropped_tokens: int
    samples: _containers.RepeatedCompositeFieldContainer[SamplesUsed]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaHashes]
    plain: _containers.RepeatedCompositeFieldContainer[ReplicaHashes]
    coverage: _containers.RepeatedCompositeFieldContainer[RankCoverage]
    replay: ReplaySummary
    def __init__(self, step: _Optional[int] = ..., generation: _Optional[int] = ..., loss_sum: _Optional[float] = ..., loss_count: _Optional[int] = ..., validation_loss: _Optional[float] = ..., grad_norm: _Optional[float] = ..., learning_rate: _Optional[float] = ..., tokens: _Optional[int] = ..., duration_s: _Optional[float] = ..., ended_unix_s: _Optional[float] = ..., nonfinite: _Optional[_Iterable[_Union[NonFinite, _Mapping]]] = ..., phase_s: _Optional[_Mapping[int, float]] = ..., update_norm: _Optional[float] = ..., loss_scale: _Optional[float] = ..., overflow: bool = ..., mfu: _Optional[_Union[Mean, _Mapping]] = ..., pipeline_bubble: _Optional[_Union[Mean, _Mapping]] = ..., balance_loss: _Optional[_Union[Mean, _Mapping]] = ..., dropped_tokens: _Optional[int] = ..., samples: _Optional[_Iterable[_Union[SamplesUsed, _Mapping]]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaHashes, _Mapping]]] = ..., plain: _Optional[_Iterable[_Union[ReplicaHashes, _Mapping]]] = ..., coverage: _Optional[_Iterable[_Union[RankCoverage, _Mapping]]] = ..., replay: _Optional[_Union[ReplaySummary, _Mapping]] = ...) -> None: ...

class ReplaySummary(_message.Message):
    __slots__ = ("duration_s", "refusal", "differences")
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    duration_s: float
    refusal: str
    differences: _containers.RepeatedCompositeFieldContainer[RankReplay]
    def __init__(self, duration_s: _Optional[float] = ..., refusal: _Optional[str] = ..., differences: _Optional[_Iterable[_Union[RankReplay, _Mapping]]] = ...) -> None: ...

class RankReplay(_message.Message):
    __slots__ = ("rank", "part", "vote")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    part: str
    vote: _session_pb2.ReplayVote
    def __init__(self, rank: _Optional[int] = ..., part: _Optional[str] = ..., vote: _Optional[_Union[_session_pb2.ReplayVote, str]] = ...) -> None: ...

class RankCoverage(_message.Message):
    __slots__ = ("rank", "replica_bytes", "plain_bytes", "parameter_bytes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLAIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    replica_bytes: int
    plain_bytes: int
    parameter_bytes: int
    def __init__(self, rank: _Optional[int] = ..., replica_bytes: _Optional[int] = ..., plain_bytes: _Optional[int] = ..., parameter_bytes: _Optional[int] = ...) -> None: ...

class NonFinite(_message.Message):
    __slots__ = ("rank", "quantity", "module", "unix_s", "parameter")
    RANK_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    rank: int
    quantity: str
    module: str
    unix_s: float
    parameter: str
    def __init__(self, rank: _Optional[int] = ..., quantity: _Optional[str] = ..., module: _Optional[str] = ..., unix_s: _Optional[float] = ..., parameter: _Optional[str] = ...) -> None: ...

class ReplicaHashes(_message.Message):
    __slots__ = ("part", "hash", "ranks")
    PART_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    part: str
    hash: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, part: _Optional[str] = ..., hash: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("node", "generation", "unix_s", "rank_exited", "step_summary", "checkpoint_committed", "checkpoint_failed", "evidence_captured", "command_refused", "snapshot_memory_refused", "checkpoint_unreadable", "fault_injected", "fault_refused", "end_announced", "launcher_end", "stacks_taken", "profile_taken", "numbers_logged", "witness_words")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    RANK_EXITED_FIELD_NUMBER: _ClassVar[int]
    STEP_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FAILED_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_CAPTURED_FIELD_NUMBER: _ClassVar[int]
    COMMAND_REFUSED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_MEMORY_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    FAULT_INJECTED_FIELD_NUMBER: _ClassVar[int]
    FAULT_REFUSED_FIELD_NUMBER: _ClassVar[int]
    END_ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_END_FIELD_NUMBER: _ClassVar[int]
    STACKS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    PROFILE_TAKEN_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_LOGGED_FIELD_NUMBER: _ClassVar[int]
    WITNESS_WORDS_FIELD_NUMBER: _ClassVar[int]
    node: str
    generation: int
    unix_s: float
    rank_exited: RankExited
    step_summary: StepSummary
    checkpoint_committed: CheckpointCommitted
    checkpoint_failed: CheckpointFailed
    evidence_captured: EvidenceCaptured
    command_refused: CommandRefused
    snapshot_memory_refused: SnapshotMemoryRefused
    checkpoint_unreadable: CheckpointUnreadable
    fault_injected: FaultInjected
    fault_refused: FaultRefused
    end_announced: EndAnnounced
    launcher_end: LauncherEnd
    stacks_taken: StacksTaken
    profile_taken: ProfileTaken
    numbers_logged: NumbersLogged
    witness_words: _session_pb2.WitnessWords
    def __init__(self, node: _Optional[str] = ..., generation: _Optional[int] = ..., unix_s: _Optional[float] = ..., rank_exited: _Optional[_Union[RankExited, _Mapping]] = ..., step_summary: _Optional[_Union[StepSummary, _Mapping]] = ..., checkpoint_committed: _Optional[_Union[CheckpointCommitted, _Mapping]] = ..., checkpoint_failed: _Optional[_Union[CheckpointFailed, _Mapping]] = ..., evidence_captured: _Optional[_Union[EvidenceCaptured, _Mapping]] = ..., command_refused: _Optional[_Union[CommandRefused, _Mapping]] = ..., snapshot_memory_refused: _Optional[_Union[SnapshotMemoryRefused, _Mapping]] = ..., checkpoint_unreadable: _Optional[_Union[CheckpointUnreadable, _Mapping]] = ..., fault_injected: _Optional[_Union[FaultInjected, _Mapping]] = ..., fault_refused: _Optional[_Union[FaultRefused, _Mapping]] = ..., end_announced: _Optional[_Union[EndAnnounced, _Mapping]] = ..., launcher_end: _Optional[_Union[LauncherEnd, _Mapping]] = ..., stacks_taken: _Optional[_Union[StacksTaken, _Mapping]] = ..., profile_taken: _Optional[_Union[ProfileTaken, _Mapping]] = ..., numbers_logged: _Optional[_Union[NumbersLogged, _Mapping]] = ..., witness_words: _Optional[_Union[_session_pb2.WitnessWords, _Mapping]] = ...) -> None: ...

class NumbersLogged(_message.Message):
    __slots__ = ("numbers",)
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedCompositeFieldContainer[_common_pb2.LoggedNumber]
    def __init__(self, numbers: _Optional[_Iterable[_Union[_common_pb2.LoggedNumber, _Mapping]]] = ...) -> None: ...

class EndAnnounced(_message.Message):
    __slots__ = ("within_s",)
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    within_s: float
    def __init__(self, within_s: _Optional[float] = ...) -> None: ...

class LauncherEnd(_message.Message):
    __slots__ = ("code",)
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: int
    def __init__(self, code: _Optional[int] = ...) -> None: ...

class RankExited(_message.Message):
    __slots__ = ("rank", "exit")
    RANK_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    exit: RankExit
    def __init__(self, rank: _Optional[int] = ..., exit: _Optional[_Union[RankExit, _Mapping]] = ...) -> None: ...

class CheckpointCommitted(_message.Message):
    __slots__ = ("step", "raw_bytes", "stored_bytes", "duration_s")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    step: int
    raw_bytes: int
    stored_bytes: int
    duration_s: float
    def __init__(self, step: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., duration_s: _Optional[float] = ...) -> None: ...

class CheckpointFailed(_message.Message):
    __slots__ = ("step", "reason")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    step: int
    reason: str
    def __init__(self, step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CheckpointUnreadable(_message.Message):
    __slots__ = ("step", "reason")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    step: int
    reason: str
    def __init__(self, step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SnapshotMemoryRefused(_message.Message):
    __slots__ = ("needed_bytes", "free_bytes", "directory")
    NEEDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    needed_bytes: int
    free_bytes: int
    directory: str
    def __init__(self, needed_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., directory: _Optional[str] = ...) -> None: ...

class EvidenceCaptured(_message.Message):
    __slots__ = ("incident", "files", "pending", "stacks", "suspicion", "places", "recorders")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    SUSPICION_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    RECORDERS_FIELD_NUMBER: _ClassVar[int]
    incident: str
    files: _containers.RepeatedScalarFieldContainer[str]
    pending: _containers.RepeatedCompositeFieldContainer[_common_pb2.PendingCall]
    stacks: _containers.RepeatedCompositeFieldContainer[StackSummary]
    suspicion: str
    places: _containers.RepeatedCompositeFieldContainer[RankPlace]
    recorders: _containers.RepeatedCompositeFieldContainer[RankRecorder]
    def __init__(self, incident: _Optional[str] = ..., files: _Optional[_Iterable[str]] = ..., pending: _Optional[_Iterable[_Union[_common_pb2.PendingCall, _Mapping]]] = ..., stacks: _Optional[_Iterable[_Union[StackSummary, _Mapping]]] = ..., suspicion: _Optional[str] = ..., places: _Optional[_Iterable[_Union[RankPlace, _Mapping]]] = ..., recorders: _Optional[_Iterable[_Union[RankRecorder, _Mapping]]] = ...) -> None: ...

class RankRecorder(_message.Message):
    __slots__ = ("rank", "dump")
    RANK_FIELD_NUMBER: _ClassVar[int]
    DUMP_FIELD_NUMBER: _ClassVar[int]
    rank: int
    dump: _recorder_pb2.RecorderDump
    def __init__(self, rank: _Optional[int] = ..., dump: _Optional[_Union[_recorder_pb2.RecorderDump, _Mapping]] = ...) -> None: ...

class RankPlace(_message.Message):
    __slots__ = ("rank", "step", "phase")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    step: int
    phase: _common_pb2.Phase
    def __init__(self, rank: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[_common_pb2.Phase, str]] = ...) -> None: ...

class StackSummary(_message.Message):
    __slots__ = ("rank", "frame", "activity", "blocked_on")
    RANK_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_ON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    frame: str
    activity: _common_pb2.Activity
    blocked_on: _common_pb2.BlockedOn
    def __init__(self, rank: _Optional[int] = ..., frame: _Optional[str] = ..., activity: _Optional[_Union[_common_pb2.Activity, str]] = ..., blocked_on: _Optional[_Union[_common_pb2.BlockedOn, _Mapping]] = ...) -> None: ...

class StacksTaken(_message.Message):
    __slots__ = ("request", "frames", "ranks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    request: str
    frames: _containers.RepeatedCompositeFieldContainer[StackFrame]
    ranks: _containers.RepeatedCompositeFieldContainer[RankStacks]
    def __init__(self, request: _Optional[str] = ..., frames: _Optional[_Iterable[_Union[StackFrame, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[RankStacks, _Mapping]]] = ...) -> None: ...

class StackFrame(_message.Message):
    __slots__ = ("function", "file", "line")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    function: str
    file: str
    line: int
    def __init__(self, function: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ...) -> None: ...

class RankStacks(_message.Message):
    __slots__ = ("rank", "pid", "threads", "problem", "activity")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    threads: _containers.RepeatedCompositeFieldContainer[ThreadFrames]
    problem: str
    activity: _common_pb2.Activity
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., threads: _Optional[_Iterable[_Union[ThreadFrames, _Mapping]]] = ..., problem: _Optional[str] = ..., activity: _Optional[_Union[_common_pb2.Activity, str]] = ...) -> None: ...

class ThreadFrames(_message.Message):
    __slots__ = ("id", "name", "active", "owns_gil", "frames")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    OWNS_GIL_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    active: bool
    owns_gil: bool
    frames: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., active: bool = ..., owns_gil: bool = ..., frames: _Optional[_Iterable[int]] = ...) -> None: ...

class ProfileTaken(_message.Message):
    __slots__ = ("request", "rank", "files", "problem", "first_step", "last_step")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    request: str
    rank: int
    files: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    first_step: int
    last_step: int
    def __init__(self, request: _Optional[str] = ..., rank: _Optional[int] = ..., files: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ...) -> None: ...

class FaultInjected(_message.Message):
    __slots__ = ("fault", "step", "waits_for")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    fault: _fault_pb2.Fault
    step: int
    waits_for: str
    def __init__(self, fault: _Optional[_Union[_fault_pb2.Fault, _Mapping]] = ..., step: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...

class FaultRefused(_message.Message):
    __slots__ = ("fault", "reason")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    fault: _fault_pb2.Fault
    reason: str
    def __init__(self, fault: _Optional[_Union[_fault_pb2.Fault, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class CommandRefused(_message.Message):
    __slots__ = ("command_fence", "known_fence", "reason")
    COMMAND_FENCE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    command_fence: int
    known_fence: int
    reason: str
    def __init__(self, command_fence: _Optional[int] = ..., known_fence: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeCommand(_message.Message):
    __slots__ = ("id", "fence", "generation", "start", "stop", "gather_evidence", "take_checkpoint", "finish", "leave", "keep_checkpoint", "persist_snapshot", "inject_fault", "prove_checkpoint", "take_stacks", "take_profile", "end_ranks", "replicate", "spike_found", "persist_replicas", "check_node", "instance")
    ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    GATHER_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    TAKE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    KEEP_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PERSIST_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    INJECT_FAULT_FIELD_NUMBER: _ClassVar[int]
    PROVE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TAKE_STACKS_FIELD_NUMBER: _ClassVar[int]
    TAKE_PROFILE_FIELD_NUMBER: _ClassVar[int]
    END_RANKS_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    SPIKE_FOUND_FIELD_NUMBER: _ClassVar[int]
    PERSIST_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CHECK_NODE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    fence: int
    generation: int
    start: StartGeneration
    stop: StopGeneration
    gather_evidence: GatherEvidence
    take_checkpoint: TakeCheckpoint
    finish: FinishRun
    leave: LeaveAt
    keep_checkpoint: KeepCheckpoint
    persist_snapshot: PersistSnapshot
    inject_fault: _fault_pb2.Fault
    prove_checkpoint: ProveCheckpoint
    take_stacks: TakeStacks
    take_profile: TakeProfile
    end_ranks: EndRanks
    replicate: Replicate
    spike_found: _session_pb2.SpikeFound
    persist_replicas: PersistReplicas
    check_node: CheckNode
    instance: str
    def __init__(self, id: _Optional[str] = ..., fence: _Optional[int] = ..., generation: _Optional[int] = ..., start: _Optional[_Union[StartGeneration, _Mapping]] = ..., stop: _Optional[_Union[StopGeneration, _Mapping]] = ..., gather_evidence: _Optional[_Union[GatherEvidence, _Mapping]] = ..., take_checkpoint: _Optional[_Union[TakeCheckpoint, _Mapping]] = ..., finish: _Optional[_Union[FinishRun, _Mapping]] = ..., leave: _Optional[_Union[LeaveAt, _Mapping]] = ..., keep_checkpoint: _Optional[_Union[KeepCheckpoint, _Mapping]] = ..., persist_snapshot: _Optional[_Union[PersistSnapshot, _Mapping]] = ..., inject_fault: _Optional[_Union[_fault_pb2.Fault, _Mapping]] = ..., prove_checkpoint: _Optional[_Union[ProveCheckpoint, _Mapping]] = ..., take_stacks: _Optional[_Union[TakeStacks, _Mapping]] = ..., take_profile: _Optional[_Union[TakeProfile, _Mapping]] = ..., end_ranks: _Optional[_Union[EndRanks, _Mapping]] = ..., replicate: _Optional[_Union[Replicate, _Mapping]] = ..., spike_found: _Optional[_Union[_session_pb2.SpikeFound, _Mapping]] = ..., persist_replicas: _Optional[_Union[PersistReplicas, _Mapping]] = ..., check_node: _Optional[_Union[CheckNode, _Mapping]] = ..., instance: _Optional[str] = ...) -> None: ...

class CheckNode(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class StartGeneration(_message.Message):
    __slots__ = ("first_rank", "ranks", "world_size", "rendezvous_node", "source", "step", "history", "run_generation", "replica_generation", "replica_holders", "left_out", "pid")
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_NODE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    RUN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_HOLDERS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    first_rank: int
    ranks: int
    world_size: int
    rendezvous_node: str
    source: Source
    step: int
    history: History
    run_generation: int
    replica_generation: int
    replica_holders: _containers.RepeatedCompositeFieldContainer[ReplicaHolder]
    left_out: _containers.RepeatedCompositeFieldContainer[_session_pb2.LeftOut]
    pid: int
    def __init__(self, first_rank: _Optional[int] = ..., ranks: _Optional[int] = ..., world_size: _Optional[int] = ..., rendezvous_node: _Optional[str] = ..., source: _Optional[_Union[Source, str]] = ..., step: _Optional[int] = ..., history: _Optional[_Union[History, _Mapping]] = ..., run_generation: _Optional[int] = ..., replica_generation: _Optional[int] = ..., replica_holders: _Optional[_Iterable[_Union[ReplicaHolder, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[_session_pb2.LeftOut, _Mapping]]] = ..., pid: _Optional[int] = ...) -> None: ...

class ReplicaHolder(_message.Message):
    __slots__ = ("rank", "address")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    address: str
    def __init__(self, rank: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Replicate(_message.Message):
    __slots__ = ("step", "partner", "address", "kept_step")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PARTNER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KEPT_STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    partner: str
    address: str
    kept_step: int
    def __init__(self, step: _Optional[int] = ..., partner: _Optional[str] = ..., address: _Optional[str] = ..., kept_step: _Optional[int] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("number", "parent", "parent_step", "since_unix_s", "left_out")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PARENT_STEP_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    number: int
    parent: int
    parent_step: int
    since_unix_s: float
    left_out: _containers.RepeatedCompositeFieldContainer[_session_pb2.LeftOut]
    def __init__(self, number: _Optional[int] = ..., parent: _Optional[int] = ..., parent_step: _Optional[int] = ..., since_unix_s: _Optional[float] = ..., left_out: _Optional[_Iterable[_Union[_session_pb2.LeftOut, _Mapping]]] = ...) -> None: ...

class StopGeneration(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class GatherEvidence(_message.Message):
    __slots__ = ("incident", "stack_ranks", "flight_recorder", "suspicion", "file_ranks", "ras_pids")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    STACK_RANKS_FIELD_NUMBER: _ClassVar[int]
    FLIGHT_RECORDER_FIELD_NUMBER: _ClassVar[int]
    SUSPICION_FIELD_NUMBER: _ClassVar[int]
    FILE_RANKS_FIELD_NUMBER: _ClassVar[int]
    RAS_PIDS_FIELD_NUMBER: _ClassVar[int]
    incident: str
    stack_ranks: _containers.RepeatedScalarFieldContainer[int]
    flight_recorder: bool
    suspicion: str
    file_ranks: _containers.RepeatedScalarFieldContainer[int]
    ras_pids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incident: _Optional[str] = ..., stack_ranks: _Optional[_Iterable[int]] = ..., flight_recorder: bool = ..., suspicion: _Optional[str] = ..., file_ranks: _Optional[_Iterable[int]] = ..., ras_pids: _Optional[_Iterable[int]] = ...) -> None: ...

class TakeCheckpoint(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class LeaveAt(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class PersistSnapshot(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class PersistReplicas(_message.Message):
    __slots__ = ("step", "generation", "world_size", "ranks")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    step: int
    generation: int
    world_size: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step: _Optional[int] = ..., generation: _Optional[int] = ..., world_size: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class TakeStacks(_message.Message):
    __slots__ = ("request", "ranks", "native")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    request: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    native: bool
    def __init__(self, request: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., native: bool = ...) -> None: ...

class TakeProfile(_message.Message):
    __slots__ = ("request", "rank", "steps", "patience_s")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    request: str
    rank: int
    steps: int
    patience_s: float
    def __init__(self, request: _Optional[str] = ..., rank: _Optional[int] = ..., steps: _Optional[int] = ..., patience_s: _Optional[float] = ...) -> None: ...

class KeepCheckpoint(_message.Message):
    __slots__ = ("step", "reason")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    step: int
    reason: str
    def __init__(self, step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ProveCheckpoint(_message.Message):
    __slots__ = ("step", "finite_step")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FINITE_STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    finite_step: int
    def __init__(self, step: _Optional[int] = ..., finite_step: _Optional[int] = ...) -> None: ...

class BadLoss(_message.Message):
    __slots__ = ("from_step", "reason", "since_unix_s")
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    from_step: int
    reason: str
    since_unix_s: float
    def __init__(self, from_step: _Optional[int] = ..., reason: _Optional[str] = ..., since_unix_s: _Optional[float] = ...) -> None: ...

class EndedRank(_message.Message):
    __slots__ = ("rank", "pid", "start_ticks", "stalled_s", "node")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    STALLED_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    start_ticks: int
    stalled_s: float
    node: str
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., stalled_s: _Optional[float] = ..., node: _Optional[str] = ...) -> None: ...

class EndRanks(_message.Message):
    __slots__ = ("ranks",)
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[EndedRank]
    def __init__(self, ranks: _Optional[_Iterable[_Union[EndedRank, _Mapping]]] = ...) -> None: ...

class FinishRun(_message.Message):
    __slots__ = ("outcome", "succeeded", "patience_s", "bad_loss")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    BAD_LOSS_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    succeeded: bool
    patience_s: float
    bad_loss: BadLoss
    def __init__(self, outcome: _Optional[str] = ..., succeeded: bool = ..., patience_s: _Optional[float] = ..., bad_loss: _Optional[_Union[BadLoss, _Mapping]] = ...) -> None: ...

class WaitEdge(_message.Message):
    __slots__ = ("waiter", "awaited", "group", "seq", "op", "waiters")
    WAITER_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    waiter: int
    awaited: int
    group: str
    seq: int
    op: str
    waiters: int
    def __init__(self, waiter: _Optional[int] = ..., awaited: _Optional[int] = ..., group: _Optional[str] = ..., seq: _Optional[int] = ..., op: _Optional[str] = ..., waiters: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("kind", "culprits", "message", "confidence_ratio", "waits", "step", "phase", "group", "seq", "op", "activity", "node", "calls", "waiting_ranks", "death", "hang", "standstill", "mismatch", "transport", "lost_node", "late_exit", "data_share", "throughput", "memory", "allocator", "checkpoint", "program", "launcher", "loss_spike", "loss_rise", "missing_loss", "gradient_explosion", "overflow", "duplicate_samples", "non_finite", "straggler", "corruption", "loss_divergence", "device_call")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CULPRITS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_RATIO_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    WAITING_RANKS_FIELD_NUMBER: _ClassVar[int]
    DEATH_FIELD_NUMBER: _ClassVar[int]
    HANG_FIELD_NUMBER: _ClassVar[int]
    STANDSTILL_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    LOST_NODE_FIELD_NUMBER: _ClassVar[int]
    LATE_EXIT_FIELD_NUMBER: _ClassVar[int]
    DATA_SHARE_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    ALLOCATOR_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    LOSS_SPIKE_FIELD_NUMBER: _ClassVar[int]
    LOSS_RISE_FIELD_NUMBER: _ClassVar[int]
    MISSING_LOSS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_EXPLOSION_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    STRAGGLER_FIELD_NUMBER: _ClassVar[int]
    CORRUPTION_FIELD_NUMBER: _ClassVar[int]
    LOSS_DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CALL_FIELD_NUMBER: _ClassVar[int]
    kind: VerdictKind
    culprits: _containers.RepeatedScalarFieldContainer[int]
    message: str
    confidence_ratio: float
    waits: _containers.RepeatedCompositeFieldContainer[WaitEdge]
    step: int
    phase: _common_pb2.Phase
    group: str
    seq: int
    op: str
    activity: _common_pb2.Activity
    node: str
    calls: _containers.RepeatedScalarFieldContainer[str]
    waiting_ranks: int
    death: DeathDetail
    hang: HangDetail
    standstill: StandstillDetail
    mismatch: MismatchDetail
    transport: TransportDetail
    lost_node: LostNodeDetail
    late_exit: LateExitDetail
    data_share: DataShareDetail
    throughput: ThroughputDetail
    memory: MemoryDetail
    allocator: AllocatorDetail
    checkpoint: CheckpointDetail
    program: ProgramDetail
    launcher: LauncherDetail
    loss_spike: LossSpikeDetail
    loss_rise: LossRiseDetail
    missing_loss: MissingLossDetail
    gradient_explosion: GradientExplosionDetail
    overflow: OverflowDetail
    duplicate_samples: DuplicateSamplesDetail
    non_finite: NonFiniteDetail
    straggler: StragglerDetail
    corruption: CorruptionDetail
    loss_divergence: LossDivergenceDetail
    device_call: DeviceCallDetail
    def __init__(self, kind: _Optional[_Union[VerdictKind, str]] = ..., culprits: _Optional[_Iterable[int]] = ..., message: _Optional[str] = ..., confidence_ratio: _Optional[float] = ..., waits: _Optional[_Iterable[_Union[WaitEdge, _Mapping]]] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[_common_pb2.Phase, str]] = ..., group: _Optional[str] = ..., seq: _Optional[int] = ..., op: _Optional[str] = ..., activity: _Optional[_Union[_common_pb2.Activity, str]] = ..., node: _Optional[str] = ..., calls: _Optional[_Iterable[str]] = ..., waiting_ranks: _Optional[int] = ..., death: _Optional[_Union[DeathDetail, _Mapping]] = ..., hang: _Optional[_Union[HangDetail, _Mapping]] = ..., standstill: _Optional[_Union[StandstillDetail, _Mapping]] = ..., mismatch: _Optional[_Union[MismatchDetail, _Mapping]] = ..., transport: _Optional[_Union[TransportDetail, _Mapping]] = ..., lost_node: _Optional[_Union[LostNodeDetail, _Mapping]] = ..., late_exit: _Optional[_Union[LateExitDetail, _Mapping]] = ..., data_share: _Optional[_Union[DataShareDetail, _Mapping]] = ..., throughput: _Optional[_Union[ThroughputDetail, _Mapping]] = ..., memory: _Optional[_Union[MemoryDetail, _Mapping]] = ..., allocator: _Optional[_Union[AllocatorDetail, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointDetail, _Mapping]] = ..., program: _Optional[_Union[ProgramDetail, _Mapping]] = ..., launcher: _Optional[_Union[LauncherDetail, _Mapping]] = ..., loss_spike: _Optional[_Union[LossSpikeDetail, _Mapping]] = ..., loss_rise: _Optional[_Union[LossRiseDetail, _Mapping]] = ..., missing_loss: _Optional[_Union[MissingLossDetail, _Mapping]] = ..., gradient_explosion: _Optional[_Union[GradientExplosionDetail, _Mapping]] = ..., overflow: _Optional[_Union[OverflowDetail, _Mapping]] = ..., duplicate_samples: _Optional[_Union[DuplicateSamplesDetail, _Mapping]] = ..., non_finite: _Optional[_Union[NonFiniteDetail, _Mapping]] = ..., straggler: _Optional[_Union[StragglerDetail, _Mapping]] = ..., corruption: _Optional[_Union[CorruptionDetail, _Mapping]] = ..., loss_divergence: _Optional[_Union[LossDivergenceDetail, _Mapping]] = ..., device_call: _Optional[_Union[DeviceCallDetail, _Mapping]] = ...) -> None: ...

class DeviceCallDetail(_message.Message):
    __slots__ = ("what", "why", "next", "suspects", "recorders", "world_size", "by_counters", "cause", "ranks")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    RECORDERS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BY_COUNTERS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    what: str
    why: _containers.RepeatedScalarFieldContainer[str]
    next: str
    suspects: _containers.RepeatedScalarFieldContainer[int]
    recorders: int
    world_size: int
    by_counters: bool
    cause: DeviceCause
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, what: _Optional[str] = ..., why: _Optional[_Iterable[str]] = ..., next: _Optional[str] = ..., suspects: _Optional[_Iterable[int]] = ..., recorders: _Optional[int] = ..., world_size: _Optional[int] = ..., by_counters: bool = ..., cause: _Optional[_Union[DeviceCause, str]] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class CallPlace(_message.Message):
    __slots__ = ("group", "description", "seq", "op", "sizes", "dtypes")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    group: str
    description: str
    seq: int
    op: str
    sizes: str
    dtypes: str
    def __init__(self, group: _Optional[str] = ..., description: _Optional[str] = ..., seq: _Optional[int] = ..., op: _Optional[str] = ..., sizes: _Optional[str] = ..., dtypes: _Optional[str] = ...) -> None: ...

class RankEnd(_message.Message):
    __slots__ = ("rank", "cause", "code", "signal", "said", "out_of_memory", "expected_bytes", "got_bytes", "step", "phase", "raised", "gpu_fault")
    RANK_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    GPU_FAULT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    cause: EndCause
    code: int
    signal: int
    said: str
    out_of_memory: bool
    expected_bytes: int
    got_bytes: int
    step: int
    phase: _common_pb2.Phase
    raised: bool
    gpu_fault: GpuFault
    def __init__(self, rank: _Optional[int] = ..., cause: _Optional[_Union[EndCause, str]] = ..., code: _Optional[int] = ..., signal: _Optional[int] = ..., said: _Optional[str] = ..., out_of_memory: bool = ..., expected_bytes: _Optional[int] = ..., got_bytes: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[_common_pb2.Phase, str]] = ..., raised: bool = ..., gpu_fault: _Optional[_Union[GpuFault, _Mapping]] = ...) -> None: ...

class DeathDetail(_message.Message):
    __slots__ = ("ends", "stopped", "awaited")
    ENDS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[RankEnd]
    stopped: _containers.RepeatedCompositeFieldContainer[HeldRank]
    awaited: _containers.RepeatedCompositeFieldContainer[HeldRank]
    def __init__(self, ends: _Optional[_Iterable[_Union[RankEnd, _Mapping]]] = ..., stopped: _Optional[_Iterable[_Union[HeldRank, _Mapping]]] = ..., awaited: _Optional[_Iterable[_Union[HeldRank, _Mapping]]] = ...) -> None: ...

class HeldRank(_message.Message):
    __slots__ = ("rank", "state", "activity", "frame", "step", "phase", "missed", "waiters", "elsewhere", "blocked_on", "lost_worker", "gpu_fault")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_ON_FIELD_NUMBER: _ClassVar[int]
    LOST_WORKER_FIELD_NUMBER: _ClassVar[int]
    GPU_FAULT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    state: HeldState
    activity: _common_pb2.Activity
    frame: str
    step: int
    phase: _common_pb2.Phase
    missed: CallPlace
    waiters: _containers.RepeatedScalarFieldContainer[int]
    elsewhere: int
    blocked_on: _common_pb2.BlockedOn
    lost_worker: LostWorker
    gpu_fault: GpuFault
    def __init__(self, rank: _Optional[int] = ..., state: _Optional[_Union[HeldState, str]] = ..., activity: _Optional[_Union[_common_pb2.Activity, str]] = ..., frame: _Optional[str] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[_common_pb2.Phase, str]] = ..., missed: _Optional[_Union[CallPlace, _Mapping]] = ..., waiters: _Optional[_Iterable[int]] = ..., elsewhere: _Optional[int] = ..., blocked_on: _Optional[_Union[_common_pb2.BlockedOn, _Mapping]] = ..., lost_worker: _Optional[_Union[LostWorker, _Mapping]] = ..., gpu_fault: _Optional[_Union[GpuFault, _Mapping]] = ...) -> None: ...

class HangDetail(_message.Message):
    __slots__ = ("ranks", "in_start")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    IN_START_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[HeldRank]
    in_start: bool
    def __init__(self, ranks: _Optional[_Iterable[_Union[HeldRank, _Mapping]]] = ..., in_start: bool = ...) -> None: ...

class StandstillDetail(_message.Message):
    __slots__ = ("most", "ranks", "world_size", "all_stopped", "step", "phase", "only", "example")
    MOST_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ALL_STOPPED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    most: int
    ranks: int
    world_size: int
    all_stopped: bool
    step: int
    phase: _common_pb2.Phase
    only: HeldRank
    example: HeldRank
    def __init__(self, most: _Optional[int] = ..., ranks: _Optional[int] = ..., world_size: _Optional[int] = ..., all_stopped: bool = ..., step: _Optional[int] = ..., phase: _Optional[_Union[_common_pb2.Phase, str]] = ..., only: _Optional[_Union[HeldRank, _Mapping]] = ..., example: _Optional[_Union[HeldRank, _Mapping]] = ...) -> None: ...

class MismatchSide(_message.Message):
    __slots__ = ("ranks", "call", "step", "peer", "expected_bytes", "got_bytes", "missed_calls", "left", "past", "frame", "members")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MISSED_CALLS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    call: CallPlace
    step: int
    peer: int
    expected_bytes: int
    got_bytes: int
    missed_calls: int
    left: bool
    past: bool
    frame: str
    members: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., call: _Optional[_Union[CallPlace, _Mapping]] = ..., step: _Optional[int] = ..., peer: _Optional[int] = ..., expected_bytes: _Optional[int] = ..., got_bytes: _Optional[int] = ..., missed_calls: _Optional[int] = ..., left: bool = ..., past: bool = ..., frame: _Optional[str] = ..., members: _Optional[_Iterable[int]] = ...) -> None: ...

class MismatchDetail(_message.Message):
    __slots__ = ("form", "sides", "either")
    FORM_FIELD_NUMBER: _ClassVar[int]
    SIDES_FIELD_NUMBER: _ClassVar[int]
    EITHER_FIELD_NUMBER: _ClassVar[int]
    form: MismatchForm
    sides: _containers.RepeatedCompositeFieldContainer[MismatchSide]
    either: bool
    def __init__(self, form: _Optional[_Union[MismatchForm, str]] = ..., sides: _Optional[_Iterable[_Union[MismatchSide, _Mapping]]] = ..., either: bool = ...) -> None: ...

class TransportDetail(_message.Message):
    __slots__ = ("form", "call", "nodes", "sender", "receiver", "meeting_node", "said", "unseen_ranks")
    FORM_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    MEETING_NODE_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_RANKS_FIELD_NUMBER: _ClassVar[int]
    form: TransportForm
    call: CallPlace
    nodes: _containers.RepeatedScalarFieldContainer[str]
    sender: int
    receiver: int
    meeting_node: str
    said: str
    unseen_ranks: int
    def __init__(self, form: _Optional[_Union[TransportForm, str]] = ..., call: _Optional[_Union[CallPlace, _Mapping]] = ..., nodes: _Optional[_Iterable[str]] = ..., sender: _Optional[int] = ..., receiver: _Optional[int] = ..., meeting_node: _Optional[str] = ..., said: _Optional[str] = ..., unseen_ranks: _Optional[int] = ...) -> None: ...

class LostNodeDetail(_message.Message):
    __slots__ = ("node", "ranks", "trained_on", "has_none")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_ON_FIELD_NUMBER: _ClassVar[int]
    HAS_NONE_FIELD_NUMBER: _ClassVar[int]
    node: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    trained_on: bool
    has_none: bool
    def __init__(self, node: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., trained_on: bool = ..., has_none: bool = ...) -> None: ...

class ProgramDetail(_message.Message):
    __slots__ = ("world_size", "error")
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    world_size: int
    error: str
    def __init__(self, world_size: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class LauncherDetail(_message.Message):
    __slots__ = ("launched_world_size", "world_size")
    LAUNCHED_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    launched_world_size: int
    world_size: int
    def __init__(self, launched_world_size: _Optional[int] = ..., world_size: _Optional[int] = ...) -> None: ...

class LateExitDetail(_message.Message):
    __slots__ = ("since_s",)
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    since_s: float
    def __init__(self, since_s: _Optional[float] = ...) -> None: ...

class DataShareDetail(_message.Message):
    __slots__ = ("share_ratio", "all_alike")
    SHARE_RATIO_FIELD_NUMBER: _ClassVar[int]
    ALL_ALIKE_FIELD_NUMBER: _ClassVar[int]
    share_ratio: float
    all_alike: bool
    def __init__(self, share_ratio: _Optional[float] = ..., all_alike: bool = ...) -> None: ...

class ThroughputDetail(_message.Message):
    __slots__ = ("since_step", "step_s", "step_before_s", "mfu_ratio", "mfu_before_ratio", "bottleneck")
    SINCE_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    STEP_BEFORE_S_FIELD_NUMBER: _ClassVar[int]
    MFU_RATIO_FIELD_NUMBER: _ClassVar[int]
    MFU_BEFORE_RATIO_FIELD_NUMBER: _ClassVar[int]
    BOTTLENECK_FIELD_NUMBER: _ClassVar[int]
    since_step: int
    step_s: float
    step_before_s: float
    mfu_ratio: float
    mfu_before_ratio: float
    bottleneck: Bottleneck
    def __init__(self, since_step: _Optional[int] = ..., step_s: _Optional[float] = ..., step_before_s: _Optional[float] = ..., mfu_ratio: _Optional[float] = ..., mfu_before_ratio: _Optional[float] = ..., bottleneck: _Optional[_Union[Bottleneck, str]] = ...) -> None: ...

class MemoryDetail(_message.Message):
    __slots__ = ("bytes_per_hour", "limit_bytes", "hours_left")
    BYTES_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOURS_LEFT_FIELD_NUMBER: _ClassVar[int]
    bytes_per_hour: float
    limit_bytes: int
    hours_left: float
    def __init__(self, bytes_per_hour: _Optional[float] = ..., limit_bytes: _Optional[int] = ..., hours_left: _Optional[float] = ...) -> None: ...

class AllocatorDetail(_message.Message):
    __slots__ = ("ran_out", "minutes", "of_minutes")
    RAN_OUT_FIELD_NUMBER: _ClassVar[int]
    MINUTES_FIELD_NUMBER: _ClassVar[int]
    OF_MINUTES_FIELD_NUMBER: _ClassVar[int]
    ran_out: bool
    minutes: int
    of_minutes: int
    def __init__(self, ran_out: bool = ..., minutes: _Optional[int] = ..., of_minutes: _Optional[int] = ...) -> None: ...

class CheckpointDetail(_message.Message):
    __slots__ = ("trouble", "reason", "node", "memory")
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    trouble: CheckpointTrouble
    reason: str
    node: str
    memory: SnapshotMemoryRefused
    def __init__(self, trouble: _Optional[_Union[CheckpointTrouble, str]] = ..., reason: _Optional[str] = ..., node: _Optional[str] = ..., memory: _Optional[_Union[SnapshotMemoryRefused, _Mapping]] = ...) -> None: ...

class LossSpikeDetail(_message.Message):
    __slots__ = ("loss", "level", "zscore", "high_steps", "of_steps", "resumed_after", "since_step")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ZSCORE_FIELD_NUMBER: _ClassVar[int]
    HIGH_STEPS_FIELD_NUMBER: _ClassVar[int]
    OF_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_AFTER_FIELD_NUMBER: _ClassVar[int]
    SINCE_STEP_FIELD_NUMBER: _ClassVar[int]
    loss: float
    level: float
    zscore: float
    high_steps: int
    of_steps: int
    resumed_after: int
    since_step: int
    def __init__(self, loss: _Optional[float] = ..., level: _Optional[float] = ..., zscore: _Optional[float] = ..., high_steps: _Optional[int] = ..., of_steps: _Optional[int] = ..., resumed_after: _Optional[int] = ..., since_step: _Optional[int] = ...) -> None: ...

class LossRiseDetail(_message.Message):
    __slots__ = ("loss", "lowest", "lowest_step", "losses")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    LOWEST_STEP_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    loss: float
    lowest: float
    lowest_step: int
    losses: int
    def __init__(self, loss: _Optional[float] = ..., lowest: _Optional[float] = ..., lowest_step: _Optional[int] = ..., losses: _Optional[int] = ...) -> None: ...

class LossDivergenceDetail(_message.Message):
    __slots__ = ("loss", "lowest", "lowest_step", "usual_step", "losses")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    LOWEST_STEP_FIELD_NUMBER: _ClassVar[int]
    USUAL_STEP_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    loss: float
    lowest: float
    lowest_step: int
    usual_step: int
    losses: int
    def __init__(self, loss: _Optional[float] = ..., lowest: _Optional[float] = ..., lowest_step: _Optional[int] = ..., usual_step: _Optional[int] = ..., losses: _Optional[int] = ...) -> None: ...

class MissingLossDetail(_message.Message):
    __slots__ = ("newest_step", "steps", "norm_steps")
    NEWEST_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NORM_STEPS_FIELD_NUMBER: _ClassVar[int]
    newest_step: int
    steps: int
    norm_steps: int
    def __init__(self, newest_step: _Optional[int] = ..., steps: _Optional[int] = ..., norm_steps: _Optional[int] = ...) -> None: ...

class GradientExplosionDetail(_message.Message):
    __slots__ = ("norm", "median_ratio", "high_steps", "of_steps")
    NORM_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_RATIO_FIELD_NUMBER: _ClassVar[int]
    HIGH_STEPS_FIELD_NUMBER: _ClassVar[int]
    OF_STEPS_FIELD_NUMBER: _ClassVar[int]
    norm: float
    median_ratio: float
    high_steps: int
    of_steps: int
    def __init__(self, norm: _Optional[float] = ..., median_ratio: _Optional[float] = ..., high_steps: _Optional[int] = ..., of_steps: _Optional[int] = ...) -> None: ...

class OverflowDetail(_message.Message):
    __slots__ = ("steps", "loss_scale")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    steps: int
    loss_scale: float
    def __init__(self, steps: _Optional[int] = ..., loss_scale: _Optional[float] = ...) -> None: ...

class DuplicateSamplesDetail(_message.Message):
    __slots__ = ("indices", "earlier_step")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    EARLIER_STEP_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    earlier_step: int
    def __init__(self, indices: _Optional[_Iterable[int]] = ..., earlier_step: _Optional[int] = ...) -> None: ...

class NonFiniteDetail(_message.Message):
    __slots__ = ("quantity", "ranks", "finite_ranks", "world_size", "module", "parameter", "also", "good_checkpoint")
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FINITE_RANKS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    GOOD_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    quantity: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    finite_ranks: int
    world_size: int
    module: str
    parameter: str
    also: _containers.RepeatedScalarFieldContainer[str]
    good_checkpoint: int
    def __init__(self, quantity: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., finite_ranks: _Optional[int] = ..., world_size: _Optional[int] = ..., module: _Optional[str] = ..., parameter: _Optional[str] = ..., also: _Optional[_Iterable[str]] = ..., good_checkpoint: _Optional[int] = ...) -> None: ...

class StragglerDetail(_message.Message):
    __slots__ = ("kind", "own_s", "usual_s", "by_peers", "throttles", "gpu", "utilization_ratio", "peers_utilization_ratio", "side")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OWN_S_FIELD_NUMBER: _ClassVar[int]
    USUAL_S_FIELD_NUMBER: _ClassVar[int]
    BY_PEERS_FIELD_NUMBER: _ClassVar[int]
    THROTTLES_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    PEERS_UTILIZATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    kind: OwnTimeKind
    own_s: float
    usual_s: float
    by_peers: bool
    throttles: _containers.RepeatedScalarFieldContainer[str]
    gpu: int
    utilization_ratio: float
    peers_utilization_ratio: float
    side: SlowSide
    def __init__(self, kind: _Optional[_Union[OwnTimeKind, str]] = ..., own_s: _Optional[float] = ..., usual_s: _Optional[float] = ..., by_peers: bool = ..., throttles: _Optional[_Iterable[str]] = ..., gpu: _Optional[int] = ..., utilization_ratio: _Optional[float] = ..., peers_utilization_ratio: _Optional[float] = ..., side: _Optional[_Union[SlowSide, str]] = ...) -> None: ...

class CorruptionDetail(_message.Message):
    __slots__ = ("part", "more_parts", "has_majority", "equal_step", "vote")
    PART_FIELD_NUMBER: _ClassVar[int]
    MORE_PARTS_FIELD_NUMBER: _ClassVar[int]
    HAS_MAJORITY_FIELD_NUMBER: _ClassVar[int]
    EQUAL_STEP_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    part: str
    more_parts: int
    has_majority: bool
    equal_step: int
    vote: _session_pb2.ReplayVote
    def __init__(self, part: _Optional[str] = ..., more_parts: _Optional[int] = ..., has_majority: bool = ..., equal_step: _Optional[int] = ..., vote: _Optional[_Union[_session_pb2.ReplayVote, str]] = ...) -> None: ...

class HangAbort(_message.Message):
    __slots__ = ("ranks", "sent_unix_s", "reaction", "after_s", "generation", "code", "without_culprit")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REACTION_FIELD_NUMBER: _ClassVar[int]
    AFTER_S_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_CULPRIT_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[EndedRank]
    sent_unix_s: float
    reaction: LauncherReaction
    after_s: float
    generation: int
    code: int
    without_culprit: bool
    def __init__(self, ranks: _Optional[_Iterable[_Union[EndedRank, _Mapping]]] = ..., sent_unix_s: _Optional[float] = ..., reaction: _Optional[_Union[LauncherReaction, str]] = ..., after_s: _Optional[float] = ..., generation: _Optional[int] = ..., code: _Optional[int] = ..., without_culprit: bool = ...) -> None: ...

class IncidentAction(_message.Message):
    __slots__ = ("unix_s", "what")
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    unix_s: float
    what: str
    def __init__(self, unix_s: _Optional[float] = ..., what: _Optional[str] = ...) -> None: ...

class CulpritPlace(_message.Message):
    __slots__ = ("rank", "node", "pid")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node: str
    pid: int
    def __init__(self, rank: _Optional[int] = ..., node: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Incident(_message.Message):
    __slots__ = ("id", "run", "generation", "verdict", "last_progress_unix_s", "detected_unix_s", "recovered_unix_s", "reached_step", "resumed_step", "lost_steps", "source", "state", "actions", "evidence", "notify", "loss_tier", "culprits", "nodes", "acknowledged_unix_s", "abort", "superseded", "lost_unknown")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    LAST_PROGRESS_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DETECTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REACHED_STEP_FIELD_NUMBER: _ClassVar[int]
    RESUMED_STEP_FIELD_NUMBER: _ClassVar[int]
    LOST_STEPS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    LOSS_TIER_FIELD_NUMBER: _ClassVar[int]
    CULPRITS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    LOST_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: str
    generation: int
    verdict: Verdict
    last_progress_unix_s: float
    detected_unix_s: float
    recovered_unix_s: float
    reached_step: int
    resumed_step: int
    lost_steps: int
    source: Source
    state: IncidentState
    actions: _containers.RepeatedCompositeFieldContainer[IncidentAction]
    evidence: _containers.RepeatedScalarFieldContainer[str]
    notify: bool
    loss_tier: LossTier
    culprits: _containers.RepeatedCompositeFieldContainer[CulpritPlace]
    nodes: int
    acknowledged_unix_s: float
    abort: HangAbort
    superseded: int
    lost_unknown: bool
    def __init__(self, id: _Optional[str] = ..., run: _Optional[str] = ..., generation: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., last_progress_unix_s: _Optional[float] = ..., detected_unix_s: _Optional[float] = ..., recovered_unix_s: _Optional[float] = ..., reached_step: _Optional[int] = ..., resumed_step: _Optional[int] = ..., lost_steps: _Optional[int] = ..., source: _Optional[_Union[Source, str]] = ..., state: _Optional[_Union[IncidentState, str]] = ..., actions: _Optional[_Iterable[_Union[IncidentAction, _Mapping]]] = ..., evidence: _Optional[_Iterable[str]] = ..., notify: bool = ..., loss_tier: _Optional[_Union[LossTier, str]] = ..., culprits: _Optional[_Iterable[_Union[CulpritPlace, _Mapping]]] = ..., nodes: _Optional[int] = ..., acknowledged_unix_s: _Optional[float] = ..., abort: _Optional[_Union[HangAbort, _Mapping]] = ..., superseded: _Optional[int] = ..., lost_unknown: bool = ...) -> None: ...

class CoordinatorState(_message.Message):
    __slots__ = ("run", "phase", "generation", "source", "resumed_step", "nodes", "open_incident", "restarts_without_progress", "restarts_total", "newest_step", "unreadable_checkpoints", "outcome", "phase_since_unix_s", "last_event_id", "incident_count", "step_at_restart", "fence", "leave_by_unix_s", "leave_step", "left_step", "checkpoint_since_unix_s", "checkpoint_outage", "standstill_incident", "uncertain_restarts", "restart_is_uncertain", "known_pauses", "longest_phase_s", "history", "trained", "failed_reads", "read_again_unix_s", "reads_incident", "history_is_known", "failed_checkpoint", "refused", "pinned", "wanted", "time_use", "loss_counts", "proven", "bad_loss", "event_numbers", "counts_anew", "unusable_replica", "replica_generation", "left_out", "roll_back", "line", "resize", "replica_ranks", "shrunk_incident", "trained_world_size", "trained_generation", "failed_growths", "node_histories")
    class LongestPhaseSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    class EventNumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RESUMED_STEP_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OPEN_INCIDENT_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_WITHOUT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEWEST_STEP_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PHASE_SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_AT_RESTART_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_BY_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    LEAVE_STEP_FIELD_NUMBER: _ClassVar[int]
    LEFT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_OUTAGE_FIELD_NUMBER: _ClassVar[int]
    STANDSTILL_INCIDENT_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    RESTART_IS_UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_PAUSES_FIELD_NUMBER: _ClassVar[int]
    LONGEST_PHASE_S_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    FAILED_READS_FIELD_NUMBER: _ClassVar[int]
    READ_AGAIN_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    READS_INCIDENT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    FAILED_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    TIME_USE_FIELD_NUMBER: _ClassVar[int]
    LOSS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    BAD_LOSS_FIELD_NUMBER: _ClassVar[int]
    EVENT_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_ANEW_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_REPLICA_FIELD_NUMBER: _ClassVar[int]
    REPLICA_GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ROLL_BACK_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_RANKS_FIELD_NUMBER: _ClassVar[int]
    SHRUNK_INCIDENT_FIELD_NUMBER: _ClassVar[int]
    TRAINED_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRAINED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FAILED_GROWTHS_FIELD_NUMBER: _ClassVar[int]
    NODE_HISTORIES_FIELD_NUMBER: _ClassVar[int]
    run: str
    phase: RunPhase
    generation: int
    source: Source
    resumed_step: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    open_incident: str
    restarts_without_progress: int
    restarts_total: int
    newest_step: int
    unreadable_checkpoints: _containers.RepeatedScalarFieldContainer[int]
    outcome: str
    phase_since_unix_s: float
    last_event_id: str
    incident_count: int
    step_at_restart: int
    fence: int
    leave_by_unix_s: float
    leave_step: int
    left_step: int
    checkpoint_since_unix_s: float
    checkpoint_outage: CheckpointOutage
    standstill_incident: str
    uncertain_restarts: int
    restart_is_uncertain: bool
    known_pauses: _containers.RepeatedCompositeFieldContainer[KnownPause]
    longest_phase_s: _containers.ScalarMap[int, float]
    history: History
    trained: bool
    failed_reads: int
    read_again_unix_s: float
    reads_incident: str
    history_is_known: bool
    failed_checkpoint: int
    refused: bool
    pinned: _containers.RepeatedCompositeFieldContainer[PinnedCheckpoint]
    wanted: _containers.RepeatedCompositeFieldContainer[WantedCheckpoint]
    time_use: TimeUse
    loss_counts: LossCounts
    proven: ProvenSteps
    bad_loss: BadLoss
    event_numbers: _containers.ScalarMap[str, int]
    counts_anew: bool
    unusable_replica: int
    replica_generation: int
    left_out: _containers.RepeatedCompositeFieldContainer[_session_pb2.LeftOut]
    roll_back: RollBack
    line: Line
    resize: Resize
    replica_ranks: int
    shrunk_incident: str
    trained_world_size: int
    trained_generation: int
    failed_growths: int
    node_histories: _containers.RepeatedCompositeFieldContainer[NodeHistory]
    def __init__(self, run: _Optional[str] = ..., phase: _Optional[_Union[RunPhase, str]] = ..., generation: _Optional[int] = ..., source: _Optional[_Union[Source, str]] = ..., resumed_step: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., open_incident: _Optional[str] = ..., restarts_without_progress: _Optional[int] = ..., restarts_total: _Optional[int] = ..., newest_step: _Optional[int] = ..., unreadable_checkpoints: _Optional[_Iterable[int]] = ..., outcome: _Optional[str] = ..., phase_since_unix_s: _Optional[float] = ..., last_event_id: _Optional[str] = ..., incident_count: _Optional[int] = ..., step_at_restart: _Optional[int] = ..., fence: _Optional[int] = ..., leave_by_unix_s: _Optional[float] = ..., leave_step: _Optional[int] = ..., left_step: _Optional[int] = ..., checkpoint_since_unix_s: _Optional[float] = ..., checkpoint_outage: _Optional[_Union[CheckpointOutage, _Mapping]] = ..., standstill_incident: _Optional[str] = ..., uncertain_restarts: _Optional[int] = ..., restart_is_uncertain: bool = ..., known_pauses: _Optional[_Iterable[_Union[KnownPause, _Mapping]]] = ..., longest_phase_s: _Optional[_Mapping[int, float]] = ..., history: _Optional[_Union[History, _Mapping]] = ..., trained: bool = ..., failed_reads: _Optional[int] = ..., read_again_unix_s: _Optional[float] = ..., reads_incident: _Optional[str] = ..., history_is_known: bool = ..., failed_checkpoint: _Optional[int] = ..., refused: bool = ..., pinned: _Optional[_Iterable[_Union[PinnedCheckpoint, _Mapping]]] = ..., wanted: _Optional[_Iterable[_Union[WantedCheckpoint, _Mapping]]] = ..., time_use: _Optional[_Union[TimeUse, _Mapping]] = ..., loss_counts: _Optional[_Union[LossCounts, _Mapping]] = ..., proven: _Optional[_Union[ProvenSteps, _Mapping]] = ..., bad_loss: _Optional[_Union[BadLoss, _Mapping]] = ..., event_numbers: _Optional[_Mapping[str, int]] = ..., counts_anew: bool = ..., unusable_replica: _Optional[int] = ..., replica_generation: _Optional[int] = ..., left_out: _Optional[_Iterable[_Union[_session_pb2.LeftOut, _Mapping]]] = ..., roll_back: _Optional[_Union[RollBack, _Mapping]] = ..., line: _Optional[_Union[Line, _Mapping]] = ..., resize: _Optional[_Union[Resize, _Mapping]] = ..., replica_ranks: _Optional[int] = ..., shrunk_incident: _Optional[str] = ..., trained_world_size: _Optional[int] = ..., trained_generation: _Optional[int] = ..., failed_growths: _Optional[int] = ..., node_histories: _Optional[_Iterable[_Union[NodeHistory, _Mapping]]] = ...) -> None: ...

class NodeHistory(_message.Message):
    __slots__ = ("node", "faults", "quarantine", "since_unix_s", "released_unix_s", "repeats")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    RELEASED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    node: str
    faults: _containers.RepeatedCompositeFieldContainer[NodeFault]
    quarantine: str
    since_unix_s: float
    released_unix_s: float
    repeats: bool
    def __init__(self, node: _Optional[str] = ..., faults: _Optional[_Iterable[_Union[NodeFault, _Mapping]]] = ..., quarantine: _Optional[str] = ..., since_unix_s: _Optional[float] = ..., released_unix_s: _Optional[float] = ..., repeats: bool = ...) -> None: ...

class NodeFault(_message.Message):
    __slots__ = ("unix_s", "kind", "run", "incident")
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    unix_s: float
    kind: VerdictKind
    run: str
    incident: str
    def __init__(self, unix_s: _Optional[float] = ..., kind: _Optional[_Union[VerdictKind, str]] = ..., run: _Optional[str] = ..., incident: _Optional[str] = ...) -> None: ...

class Resize(_message.Message):
    __slots__ = ("world_size", "since_unix_s", "step", "snapshot_generation", "failed", "generation", "nodes", "fewer")
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FEWER_FIELD_NUMBER: _ClassVar[int]
    world_size: int
    since_unix_s: float
    step: int
    snapshot_generation: int
    failed: bool
    generation: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    fewer: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, world_size: _Optional[int] = ..., since_unix_s: _Optional[float] = ..., step: _Optional[int] = ..., snapshot_generation: _Optional[int] = ..., failed: bool = ..., generation: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., fewer: _Optional[_Iterable[str]] = ...) -> None: ...

class Line(_message.Message):
    __slots__ = ("since_generation", "starts")
    SINCE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    since_generation: int
    starts: _containers.RepeatedCompositeFieldContainer[LineStart]
    def __init__(self, since_generation: _Optional[int] = ..., starts: _Optional[_Iterable[_Union[LineStart, _Mapping]]] = ...) -> None: ...

class LineStart(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class ProvenSteps(_message.Message):
    __slots__ = ("before_step", "open")
    BEFORE_STEP_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    before_step: int
    open: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, before_step: _Optional[int] = ..., open: _Optional[_Iterable[int]] = ...) -> None: ...

class TimeUse(_message.Message):
    __slots__ = ("since_unix_s", "settled_s", "reached_step", "generation_step", "progress_unix_s", "judged_unix_s", "restarted", "ended_unix_s")
    class SettledSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SINCE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SETTLED_S_FIELD_NUMBER: _ClassVar[int]
    REACHED_STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_STEP_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    JUDGED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    since_unix_s: float
    settled_s: _containers.ScalarMap[str, float]
    reached_step: int
    generation_step: int
    progress_unix_s: float
    judged_unix_s: float
    restarted: bool
    ended_unix_s: float
    def __init__(self, since_unix_s: _Optional[float] = ..., settled_s: _Optional[_Mapping[str, float]] = ..., reached_step: _Optional[int] = ..., generation_step: _Optional[int] = ..., progress_unix_s: _Optional[float] = ..., judged_unix_s: _Optional[float] = ..., restarted: bool = ..., ended_unix_s: _Optional[float] = ...) -> None: ...

class PinnedCheckpoint(_message.Message):
    __slots__ = ("kind", "step")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    kind: VerdictKind
    step: int
    def __init__(self, kind: _Optional[_Union[VerdictKind, str]] = ..., step: _Optional[int] = ...) -> None: ...

class WantedCheckpoint(_message.Message):
    __slots__ = ("incident", "before_step")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_STEP_FIELD_NUMBER: _ClassVar[int]
    incident: str
    before_step: int
    def __init__(self, incident: _Optional[str] = ..., before_step: _Optional[int] = ...) -> None: ...

class KnownPause(_message.Message):
    __slots__ = ("kind", "longest_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LONGEST_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    longest_s: float
    def __init__(self, kind: _Optional[str] = ..., longest_s: _Optional[float] = ...) -> None: ...

class CheckpointOutage(_message.Message):
    __slots__ = ("incident", "committed_step")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_STEP_FIELD_NUMBER: _ClassVar[int]
    incident: str
    committed_step: int
    def __init__(self, incident: _Optional[str] = ..., committed_step: _Optional[int] = ...) -> None: ...

class KeptState(_message.Message):
    __slots__ = ("spec", "record", "nodes")
    class NodesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: NodeState
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[NodeState, _Mapping]] = ...) -> None: ...
    SPEC_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    spec: RunSpec
    record: CoordinatorState
    nodes: _containers.MessageMap[str, NodeState]
    def __init__(self, spec: _Optional[_Union[RunSpec, _Mapping]] = ..., record: _Optional[_Union[CoordinatorState, _Mapping]] = ..., nodes: _Optional[_Mapping[str, NodeState]] = ...) -> None: ...
