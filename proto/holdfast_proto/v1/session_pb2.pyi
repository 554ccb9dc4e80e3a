from holdfast_proto.v1 import common_pb2 as _common_pb2
from holdfast_proto.v1 import fault_pb2 as _fault_pb2
from holdfast_proto.v1 import limits_pb2 as _limits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplayVote(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLAY_VOTE_UNSPECIFIED: _ClassVar[ReplayVote]
    REPLAY_VOTE_FIRST: _ClassVar[ReplayVote]
    REPLAY_VOTE_SECOND: _ClassVar[ReplayVote]
    REPLAY_VOTE_NEITHER: _ClassVar[ReplayVote]
    REPLAY_VOTE_NOT_TAKEN: _ClassVar[ReplayVote]
    REPLAY_VOTE_UNCLEAR: _ClassVar[ReplayVote]
REPLAY_VOTE_UNSPECIFIED: ReplayVote
REPLAY_VOTE_FIRST: ReplayVote
REPLAY_VOTE_SECOND: ReplayVote
REPLAY_VOTE_NEITHER: ReplayVote
REPLAY_VOTE_NOT_TAKEN: ReplayVote
REPLAY_VOTE_UNCLEAR: ReplayVote

class RankMessage(_message.Message):
    __slots__ = ("hello", "report", "slot_request", "ack", "profile_done")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SLOT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    PROFILE_DONE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    slot_request: SlotRequest
    ack: CommandAck
    profile_done: ProfileDone
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., slot_request: _Optional[_Union[SlotRequest, _Mapping]] = ..., ack: _Optional[_Union[CommandAck, _Mapping]] = ..., profile_done: _Optional[_Union[ProfileDone, _Mapping]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("welcome", "slot_grant", "command", "start_from")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SLOT_GRANT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    START_FROM_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    slot_grant: SlotGrant
    command: RankCommand
    start_from: StartFrom
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., slot_grant: _Optional[_Union[SlotGrant, _Mapping]] = ..., command: _Optional[_Union[RankCommand, _Mapping]] = ..., start_from: _Optional[_Union[StartFrom, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("run", "generation", "rank", "world_size", "local_rank", "pid", "device", "coordinates", "local_world_size", "store_port", "pid_namespace", "start_ticks", "protocol", "restarts_left", "awaits_start", "replica_ranks", "attachment", "training_thread")
    class CoordinatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    PID_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    AWAITS_START_FIELD_NUMBER: _ClassVar[int]
    REPLICA_RANKS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_THREAD_FIELD_NUMBER: _ClassVar[int]
    run: str
    generation: int
    rank: int
    world_size: int
    local_rank: int
    pid: int
    device: str
    coordinates: _containers.ScalarMap[str, int]
    local_world_size: int
    store_port: int
    pid_namespace: int
    start_ticks: int
    protocol: int
    restarts_left: int
    awaits_start: bool
    replica_ranks: int
    attachment: int
    training_thread: int
    def __init__(self, run: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., device: _Optional[str] = ..., coordinates: _Optional[_Mapping[str, int]] = ..., local_world_size: _Optional[int] = ..., store_port: _Optional[int] = ..., pid_namespace: _Optional[int] = ..., start_ticks: _Optional[int] = ..., protocol: _Optional[int] = ..., restarts_left: _Optional[int] = ..., awaits_start: bool = ..., replica_ranks: _Optional[int] = ..., attachment: _Optional[int] = ..., training_thread: _Optional[int] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("step", "ended_unix_s", "duration_s", "loss", "validation_loss", "grad_norm", "learning_rate", "tokens", "phase_s", "update_norm", "loss_scale", "overflow", "mfu", "pipeline_bubble", "balance_loss", "dropped_tokens", "samples", "replicas", "nonfinite_origin", "bad_gradient", "plain", "coverage", "replay")
    class PhaseSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
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
    NONFINITE_ORIGIN_FIELD_NUMBER: _ClassVar[int]
    BAD_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    step: int
    ended_unix_s: float
    duration_s: float
    loss: float
    validation_loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    phase_s: _containers.ScalarMap[int, float]
    update_norm: float
    loss_scale: float
    overflow: bool
    mfu: float
    pipeline_bubble: float
    balance_loss: float
    dropped_tokens: int
    samples: bytes
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaHash]
    nonfinite_origin: NonFiniteOrigin
    bad_gradient: BadGradient
    plain: _containers.RepeatedCompositeFieldContainer[ReplicaHash]
    coverage: ReplicaCoverage
    replay: ReplayCheck
    def __init__(self, step: _Optional[int] = ..., ended_unix_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., loss: _Optional[float] = ..., validation_loss: _Optional[float] = ..., grad_norm: _Optional[float] = ..., learning_rate: _Optional[float] = ..., tokens: _Optional[int] = ..., phase_s: _Optional[_Mapping[int, float]] = ..., update_norm: _Optional[float] = ..., loss_scale: _Optional[float] = ..., overflow: bool = ..., mfu: _Optional[float] = ..., pipeline_bubble: _Optional[float] = ..., balance_loss: _Optional[float] = ..., dropped_tokens: _Optional[int] = ..., samples: _Optional[bytes] = ..., replicas: _Optional[_Iterable[_Union[ReplicaHash, _Mapping]]] = ..., nonfinite_origin: _Optional[_Union[NonFiniteOrigin, _Mapping]] = ..., bad_gradient: _Optional[_Union[BadGradient, _Mapping]] = ..., plain: _Optional[_Iterable[_Union[ReplicaHash, _Mapping]]] = ..., coverage: _Optional[_Union[ReplicaCoverage, _Mapping]] = ..., replay: _Optional[_Union[ReplayCheck, _Mapping]] = ...) -> None: ...

class ReplayCheck(_message.Message):
    __slots__ = ("duration_s", "refusal", "part", "vote")
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    duration_s: float
    refusal: str
    part: str
    vote: ReplayVote
    def __init__(self, duration_s: _Optional[float] = ..., refusal: _Optional[str] = ..., part: _Optional[str] = ..., vote: _Optional[_Union[ReplayVote, str]] = ...) -> None: ...

class ReplicaCoverage(_message.Message):
    __slots__ = ("replica_bytes", "plain_bytes", "parameter_bytes")
    REPLICA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLAIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    replica_bytes: int
    plain_bytes: int
    parameter_bytes: int
    def __init__(self, replica_bytes: _Optional[int] = ..., plain_bytes: _Optional[int] = ..., parameter_bytes: _Optional[int] = ...) -> None: ...

class ReplicaHash(_message.Message):
    __slots__ = ("part", "hash")
    PART_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    part: str
    hash: int
    def __init__(self, part: _Optional[str] = ..., hash: _Optional[int] = ...) -> None: ...

class NonFiniteOrigin(_message.Message):
    __slots__ = ("module", "unix_s")
    MODULE_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    module: str
    unix_s: float
    def __init__(self, module: _Optional[str] = ..., unix_s: _Optional[float] = ...) -> None: ...

class BadGradient(_message.Message):
    __slots__ = ("parameter", "own", "unix_s")
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    parameter: str
    own: bool
    unix_s: float
    def __init__(self, parameter: _Optional[str] = ..., own: bool = ..., unix_s: _Optional[float] = ...) -> None: ...

class SnapshotTaken(_message.Message):
    __slots__ = ("step", "slot", "persist", "stall_s", "bytes", "unchanged_bytes", "replica")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PERSIST_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    step: int
    slot: int
    persist: bool
    stall_s: float
    bytes: int
    unchanged_bytes: int
    replica: bool
    def __init__(self, step: _Optional[int] = ..., slot: _Optional[int] = ..., persist: bool = ..., stall_s: _Optional[float] = ..., bytes: _Optional[int] = ..., unchanged_bytes: _Optional[int] = ..., replica: bool = ...) -> None: ...

class MemoryStatus(_message.Message):
    __slots__ = ("allocated_bytes", "reserved_bytes", "alloc_retries", "ooms", "limit_bytes")
    ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOC_RETRIES_FIELD_NUMBER: _ClassVar[int]
    OOMS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    allocated_bytes: int
    reserved_bytes: int
    alloc_retries: int
    ooms: int
    limit_bytes: int
    def __init__(self, allocated_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., alloc_retries: _Optional[int] = ..., ooms: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class WitnessWords(_message.Message):
    __slots__ = ("run", "witness", "words")
    RUN_FIELD_NUMBER: _ClassVar[int]
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    run: str
    witness: str
    words: _containers.RepeatedCompositeFieldContainer[RankWords]
    def __init__(self, run: _Optional[str] = ..., witness: _Optional[str] = ..., words: _Optional[_Iterable[_Union[RankWords, _Mapping]]] = ...) -> None: ...

class RankWords(_message.Message):
    __slots__ = ("ranks", "text")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class WitnessWordsTaken(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Report(_message.Message):
    __slots__ = ("progress", "steps", "snapshots", "memory", "dropped_total", "snapshots_skipped_total", "reporter_cpu_s", "modules", "last_words", "recorder_failures_total", "recorder_attempts_total", "finished", "pending", "outside_s", "device_uuid", "own_wait_s", "call_wait_s", "device", "device_own_s", "device_steps", "own_time_source", "own_time_reason", "steps_until", "recorders", "planned_steps", "worker_socket", "training_thread", "logged")
    class OutsideSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_SKIPPED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REPORTER_CPU_S_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    LAST_WORDS_FIELD_NUMBER: _ClassVar[int]
    RECORDER_FAILURES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RECORDER_ATTEMPTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    OWN_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    CALL_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_OWN_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_STEPS_FIELD_NUMBER: _ClassVar[int]
    OWN_TIME_SOURCE_FIELD_NUMBER: _ClassVar[int]
    OWN_TIME_REASON_FIELD_NUMBER: _ClassVar[int]
    STEPS_UNTIL_FIELD_NUMBER: _ClassVar[int]
    RECORDERS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_STEPS_FIELD_NUMBER: _ClassVar[int]
    WORKER_SOCKET_FIELD_NUMBER: _ClassVar[int]
    TRAINING_THREAD_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    progress: _common_pb2.Progress
    steps: _containers.RepeatedCompositeFieldContainer[StepRecord]
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotTaken]
    memory: MemoryStatus
    dropped_total: int
    snapshots_skipped_total: int
    reporter_cpu_s: float
    modules: _containers.RepeatedScalarFieldContainer[str]
    last_words: str
    recorder_failures_total: int
    recorder_attempts_total: int
    finished: bool
    pending: _containers.RepeatedCompositeFieldContainer[_common_pb2.PendingCall]
    outside_s: _containers.ScalarMap[int, float]
    device_uuid: str
    own_wait_s: float
    call_wait_s: float
    device: str
    device_own_s: float
    device_steps: int
    own_time_source: _common_pb2.OwnTimeSource
    own_time_reason: str
    steps_until: int
    recorders: _containers.RepeatedCompositeFieldContainer[_common_pb2.Recorder]
    planned_steps: int
    worker_socket: str
    training_thread: int
    logged: _containers.RepeatedCompositeFieldContainer[_common_pb2.LoggedNumber]
    def __init__(self, progress: _Optional[_Union[_common_pb2.Progress, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[StepRecord, _Mapping]]] = ..., snapshots: _Optional[_Iterable[_Union[SnapshotTaken, _Mapping]]] = ..., memory: _Optional[_Union[MemoryStatus, _Mapping]] = ..., dropped_total: _Optional[int] = ..., snapshots_skipped_total: _Optional[int] = ..., reporter_cpu_s: _Optional[float] = ..., modules: _Optional[_Iterable[str]] = ..., last_words: _Optional[str] = ..., recorder_failures_total: _Optional[int] = ..., recorder_attempts_total: _Optional[int] = ..., finished: bool = ..., pending: _Optional[_Iterable[_Union[_common_pb2.PendingCall, _Mapping]]] = ..., outside_s: _Optional[_Mapping[int, float]] = ..., device_uuid: _Optional[str] = ..., own_wait_s: _Optional[float] = ..., call_wait_s: _Optional[float] = ..., device: _Optional[str] = ..., device_own_s: _Optional[float] = ..., device_steps: _Optional[int] = ..., own_time_source: _Optional[_Union[_common_pb2.OwnTimeSource, str]] = ..., own_time_reason: _Optional[str] = ..., steps_until: _Optional[int] = ..., recorders: _Optional[_Iterable[_Union[_common_pb2.Recorder, _Mapping]]] = ..., planned_steps: _Optional[int] = ..., worker_socket: _Optional[str] = ..., training_thread: _Optional[int] = ..., logged: _Optional[_Iterable[_Union[_common_pb2.LoggedNumber, _Mapping]]] = ...) -> None: ...

class SlotRequest(_message.Message):
    __slots__ = ("bytes_per_slot", "slots")
    BYTES_PER_SLOT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    bytes_per_slot: int
    slots: int
    def __init__(self, bytes_per_slot: _Optional[int] = ..., slots: _Optional[int] = ...) -> None: ...

class SlotGrant(_message.Message):
    __slots__ = ("paths", "on_disk", "reason")
    PATHS_FIELD_NUMBER: _ClassVar[int]
    ON_DISK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    on_disk: bool
    reason: str
    def __init__(self, paths: _Optional[_Iterable[str]] = ..., on_disk: bool = ..., reason: _Optional[str] = ...) -> None: ...

class StartFrom(_message.Message):
    __slots__ = ("generation", "step", "slot", "checkpoint", "refusal", "preparing", "left_out")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PREPARING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    slot: str
    checkpoint: str
    refusal: str
    preparing: bool
    left_out: _containers.RepeatedCompositeFieldContainer[LeftOut]
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., slot: _Optional[str] = ..., checkpoint: _Optional[str] = ..., refusal: _Optional[str] = ..., preparing: bool = ..., left_out: _Optional[_Iterable[_Union[LeftOut, _Mapping]]] = ...) -> None: ...

class LeftOut(_message.Message):
    __slots__ = ("first", "steps")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    first: int
    steps: int
    def __init__(self, first: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("report_interval_s",)
    REPORT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    report_interval_s: float
    def __init__(self, report_interval_s: _Optional[float] = ...) -> None: ...

class RankCommand(_message.Message):
    __slots__ = ("id", "generation", "capture_evidence", "snapshot_at", "stop_at", "inject_fault", "profile_steps", "spike_found")
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AT_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_FIELD_NUMBER: _ClassVar[int]
    INJECT_FAULT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_STEPS_FIELD_NUMBER: _ClassVar[int]
    SPIKE_FOUND_FIELD_NUMBER: _ClassVar[int]
    id: int
    generation: int
    capture_evidence: CaptureEvidence
    snapshot_at: SnapshotAt
    stop_at: StopAt
    inject_fault: _fault_pb2.Fault
    profile_steps: ProfileSteps
    spike_found: SpikeFound
    def __init__(self, id: _Optional[int] = ..., generation: _Optional[int] = ..., capture_evidence: _Optional[_Union[CaptureEvidence, _Mapping]] = ..., snapshot_at: _Optional[_Union[SnapshotAt, _Mapping]] = ..., stop_at: _Optional[_Union[StopAt, _Mapping]] = ..., inject_fault: _Optional[_Union[_fault_pb2.Fault, _Mapping]] = ..., profile_steps: _Optional[_Union[ProfileSteps, _Mapping]] = ..., spike_found: _Optional[_Union[SpikeFound, _Mapping]] = ...) -> None: ...

class SpikeFound(_message.Message):
    __slots__ = ("tier", "step")
    TIER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    tier: str
    step: int
    def __init__(self, tier: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class ProfileSteps(_message.Message):
    __slots__ = ("request", "steps", "directory", "patience_s")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    request: str
    steps: int
    directory: str
    patience_s: float
    def __init__(self, request: _Optional[str] = ..., steps: _Optional[int] = ..., directory: _Optional[str] = ..., patience_s: _Optional[float] = ...) -> None: ...

class ProfileDone(_message.Message):
    __slots__ = ("request", "files", "problem", "first_step", "last_step")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    request: str
    files: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    first_step: int
    last_step: int
    def __init__(self, request: _Optional[str] = ..., files: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ...) -> None: ...

class CaptureEvidence(_message.Message):
    __slots__ = ("directory",)
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    directory: str
    def __init__(self, directory: _Optional[str] = ...) -> None: ...

class SnapshotAt(_message.Message):
    __slots__ = ("step", "replica")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    step: int
    replica: bool
    def __init__(self, step: _Optional[int] = ..., replica: bool = ...) -> None: ...

class StopAt(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class CommandAck(_message.Message):
    __slots__ = ("id", "accepted", "detail")
    ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    id: int
    accepted: bool
    detail: str
    def __init__(self, id: _Optional[int] = ..., accepted: bool = ..., detail: _Optional[str] = ...) -> None: ...
