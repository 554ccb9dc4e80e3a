from holdfast_proto.v1 import common_pb2 as _common_pb2
from holdfast_proto.v1 import fault_pb2 as _fault_pb2
from holdfast_proto.v1 import limits_pb2 as _limits_pb2
from holdfast_proto.v1 import session_pb2 as _session_pb2
from holdfast_proto.v1 import store_pb2 as _store_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RankSort(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANK_SORT_UNSPECIFIED: _ClassVar[RankSort]
    RANK_SORT_ODD_FIRST: _ClassVar[RankSort]
    RANK_SORT_RANK: _ClassVar[RankSort]
    RANK_SORT_STEP: _ClassVar[RankSort]
    RANK_SORT_STALLED: _ClassVar[RankSort]
    RANK_SORT_MEMORY: _ClassVar[RankSort]
    RANK_SORT_NODE: _ClassVar[RankSort]

class NodeRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_ROLE_UNSPECIFIED: _ClassVar[NodeRole]
    NODE_ROLE_MEMBER: _ClassVar[NodeRole]
    NODE_ROLE_MISSING: _ClassVar[NodeRole]
    NODE_ROLE_SPARE: _ClassVar[NodeRole]
    NODE_ROLE_ABSENT: _ClassVar[NodeRole]
    NODE_ROLE_READY: _ClassVar[NodeRole]
    NODE_ROLE_STARTING: _ClassVar[NodeRole]

class RankHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANK_HEALTH_UNSPECIFIED: _ClassVar[RankHealth]
    RANK_HEALTH_OK: _ClassVar[RankHealth]
    RANK_HEALTH_STARTING: _ClassVar[RankHealth]
    RANK_HEALTH_WAITING: _ClassVar[RankHealth]
    RANK_HEALTH_STALLED: _ClassVar[RankHealth]
    RANK_HEALTH_CULPRIT: _ClassVar[RankHealth]
    RANK_HEALTH_EXITED: _ClassVar[RankHealth]
    RANK_HEALTH_LEFT: _ClassVar[RankHealth]

class RankOddity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANK_ODDITY_UNSPECIFIED: _ClassVar[RankOddity]
    RANK_ODDITY_EXITED: _ClassVar[RankOddity]
    RANK_ODDITY_CULPRIT: _ClassVar[RankOddity]
    RANK_ODDITY_STOPPED: _ClassVar[RankOddity]
    RANK_ODDITY_STALLED: _ClassVar[RankOddity]
    RANK_ODDITY_BEHIND: _ClassVar[RankOddity]
    RANK_ODDITY_SLOW: _ClassVar[RankOddity]
    RANK_ODDITY_STARTING: _ClassVar[RankOddity]
    RANK_ODDITY_WAITING: _ClassVar[RankOddity]
    RANK_ODDITY_RUNNING: _ClassVar[RankOddity]
    RANK_ODDITY_ENDED: _ClassVar[RankOddity]
RANK_SORT_UNSPECIFIED: RankSort
RANK_SORT_ODD_FIRST: RankSort
RANK_SORT_RANK: RankSort
RANK_SORT_STEP: RankSort
RANK_SORT_STALLED: RankSort
RANK_SORT_MEMORY: RankSort
RANK_SORT_NODE: RankSort
NODE_ROLE_UNSPECIFIED: NodeRole
NODE_ROLE_MEMBER: NodeRole
NODE_ROLE_MISSING: NodeRole
NODE_ROLE_SPARE: NodeRole
NODE_ROLE_ABSENT: NodeRole
NODE_ROLE_READY: NodeRole
NODE_ROLE_STARTING: NodeRole
RANK_HEALTH_UNSPECIFIED: RankHealth
RANK_HEALTH_OK: RankHealth
RANK_HEALTH_STARTING: RankHealth
RANK_HEALTH_WAITING: RankHealth
RANK_HEALTH_STALLED: RankHealth
RANK_HEALTH_CULPRIT: RankHealth
RANK_HEALTH_EXITED: RankHealth
RANK_HEALTH_LEFT: RankHealth
RANK_ODDITY_UNSPECIFIED: RankOddity
RANK_ODDITY_EXITED: RankOddity
RANK_ODDITY_CULPRIT: RankOddity
RANK_ODDITY_STOPPED: RankOddity
RANK_ODDITY_STALLED: RankOddity
RANK_ODDITY_BEHIND: RankOddity
RANK_ODDITY_SLOW: RankOddity
RANK_ODDITY_STARTING: RankOddity
RANK_ODDITY_WAITING: RankOddity
RANK_ODDITY_RUNNING: RankOddity
RANK_ODDITY_ENDED: RankOddity

class GetStatusRequest(_message.Message):
    __slots__ = ("run", "most_ranks", "search", "skip_ranks", "only_odd", "sort", "is_reversed")
    RUN_FIELD_NUMBER: _ClassVar[int]
    MOST_RANKS_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    SKIP_RANKS_FIELD_NUMBER: _ClassVar[int]
    ONLY_ODD_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELD_NUMBER: _ClassVar[int]
    IS_REVERSED_FIELD_NUMBER: _ClassVar[int]
    run: str
    most_ranks: int
    search: str
    skip_ranks: int
    only_odd: bool
    sort: RankSort
    is_reversed: bool
    def __init__(self, run: _Optional[str] = ..., most_ranks: _Optional[int] = ..., search: _Optional[str] = ..., skip_ranks: _Optional[int] = ..., only_odd: bool = ..., sort: _Optional[_Union[RankSort, str]] = ..., is_reversed: bool = ...) -> None: ...

class ListIncidentsRequest(_message.Message):
    __slots__ = ("run", "most_incidents", "skip_incidents")
    RUN_FIELD_NUMBER: _ClassVar[int]
    MOST_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    SKIP_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    most_incidents: int
    skip_incidents: int
    def __init__(self, run: _Optional[str] = ..., most_incidents: _Optional[int] = ..., skip_incidents: _Optional[int] = ...) -> None: ...

class ListIncidentsResponse(_message.Message):
    __slots__ = ("incidents", "count")
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    incidents: _containers.RepeatedCompositeFieldContainer[_store_pb2.Incident]
    count: int
    def __init__(self, incidents: _Optional[_Iterable[_Union[_store_pb2.Incident, _Mapping]]] = ..., count: _Optional[int] = ...) -> None: ...

class AcknowledgeIncidentRequest(_message.Message):
    __slots__ = ("run", "incident")
    RUN_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    run: str
    incident: str
    def __init__(self, run: _Optional[str] = ..., incident: _Optional[str] = ...) -> None: ...

class AcknowledgeIncidentResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeCheckpointRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class TakeCheckpointResponse(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ("run", "grace_s")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    run: str
    grace_s: float
    def __init__(self, run: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class StopRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LauncherEndedRequest(_message.Message):
    __slots__ = ("run", "code")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    run: str
    code: int
    def __init__(self, run: _Optional[str] = ..., code: _Optional[int] = ...) -> None: ...

class LauncherEndedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InjectFaultRequest(_message.Message):
    __slots__ = ("run", "fault")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    run: str
    fault: _fault_pb2.Fault
    def __init__(self, run: _Optional[str] = ..., fault: _Optional[_Union[_fault_pb2.Fault, _Mapping]] = ...) -> None: ...

class InjectFaultResponse(_message.Message):
    __slots__ = ("waits_for",)
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    waits_for: str
    def __init__(self, waits_for: _Optional[str] = ...) -> None: ...

class TakeStacksRequest(_message.Message):
    __slots__ = ("run", "ranks", "native")
    RUN_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    run: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    native: bool
    def __init__(self, run: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., native: bool = ...) -> None: ...

class TakeStacksResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStacks]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeStacks, _Mapping]]] = ...) -> None: ...

class NodeStacks(_message.Message):
    __slots__ = ("node", "taken")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    node: str
    taken: _store_pb2.StacksTaken
    def __init__(self, node: _Optional[str] = ..., taken: _Optional[_Union[_store_pb2.StacksTaken, _Mapping]] = ...) -> None: ...

class TakeProfileRequest(_message.Message):
    __slots__ = ("run", "rank", "steps", "patience_s")
    RUN_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    run: str
    rank: int
    steps: int
    patience_s: float
    def __init__(self, run: _Optional[str] = ..., rank: _Optional[int] = ..., steps: _Optional[int] = ..., patience_s: _Optional[float] = ...) -> None: ...

class TakeProfileResponse(_message.Message):
    __slots__ = ("node", "taken")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    node: str
    taken: _store_pb2.ProfileTaken
    def __init__(self, node: _Optional[str] = ..., taken: _Optional[_Union[_store_pb2.ProfileTaken, _Mapping]] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeView]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeView, _Mapping]]] = ...) -> None: ...

class ReleaseNodeRequest(_message.Message):
    __slots__ = ("run", "node")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    run: str
    node: str
    def __init__(self, run: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class ReleaseNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeView(_message.Message):
    __slots__ = ("node", "role", "check", "history", "slow")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    node: str
    role: NodeRole
    check: _store_pb2.NodeCheck
    history: _store_pb2.NodeHistory
    slow: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., role: _Optional[_Union[NodeRole, str]] = ..., check: _Optional[_Union[_store_pb2.NodeCheck, _Mapping]] = ..., history: _Optional[_Union[_store_pb2.NodeHistory, _Mapping]] = ..., slow: _Optional[_Iterable[str]] = ...) -> None: ...

class GetDaemonRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DaemonStatus(_message.Message):
    __slots__ = ("version", "daemon", "uptime_s", "leader_of", "store_up", "store_operations", "store_failures", "ticks", "ticks_failed", "tick_p50_s", "tick_p99_s", "detectors", "refused", "agents", "now_unix_s")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DAEMON_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    LEADER_OF_FIELD_NUMBER: _ClassVar[int]
    STORE_UP_FIELD_NUMBER: _ClassVar[int]
    STORE_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    STORE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    TICKS_FIELD_NUMBER: _ClassVar[int]
    TICKS_FAILED_FIELD_NUMBER: _ClassVar[int]
    TICK_P50_S_FIELD_NUMBER: _ClassVar[int]
    TICK_P99_S_FIELD_NUMBER: _ClassVar[int]
    DETECTORS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    version: str
    daemon: str
    uptime_s: float
    leader_of: _containers.RepeatedScalarFieldContainer[str]
    store_up: bool
    store_operations: int
    store_failures: int
    ticks: int
    ticks_failed: int
    tick_p50_s: float
    tick_p99_s: float
    detectors: _containers.RepeatedCompositeFieldContainer[DetectorUse]
    refused: _containers.ScalarMap[str, int]
    agents: _containers.RepeatedCompositeFieldContainer[HeardAgent]
    now_unix_s: float
    def __init__(self, version: _Optional[str] = ..., daemon: _Optional[str] = ..., uptime_s: _Optional[float] = ..., leader_of: _Optional[_Iterable[str]] = ..., store_up: bool = ..., store_operations: _Optional[int] = ..., store_failures: _Optional[int] = ..., ticks: _Optional[int] = ..., ticks_failed: _Optional[int] = ..., tick_p50_s: _Optional[float] = ..., tick_p99_s: _Optional[float] = ..., detectors: _Optional[_Iterable[_Union[DetectorUse, _Mapping]]] = ..., refused: _Optional[_Mapping[str, int]] = ..., agents: _Optional[_Iterable[_Union[HeardAgent, _Mapping]]] = ..., now_unix_s: _Optional[float] = ...) -> None: ...

class DetectorUse(_message.Message):
    __slots__ = ("name", "seconds", "failures")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    failures: int
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ..., failures: _Optional[int] = ...) -> None: ...

class HeardAgent(_message.Message):
    __slots__ = ("node", "run", "reported_unix_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    REPORTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    run: str
    reported_unix_s: float
    def __init__(self, node: _Optional[str] = ..., run: _Optional[str] = ..., reported_unix_s: _Optional[float] = ...) -> None: ...

class RankView(_message.Message):
    __slots__ = ("rank", "node", "life", "step", "phase", "process_state", "stalled_s", "coordinates", "pid", "exit", "memory_bytes", "memory_limit_bytes", "recorders", "own_time_source", "own_time_reason", "own_time_s", "own_steps", "gpu_use_sum", "gpu_use_samples", "health", "is_behind", "oddity")
    class CoordinatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_STATE_FIELD_NUMBER: _ClassVar[int]
    STALLED_S_FIELD_NUMBER: _ClassVar[int]
    COORDINATES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORDERS_FIELD_NUMBER: _ClassVar[int]
    OWN_TIME_SOURCE_FIELD_NUMBER: _ClassVar[int]
    OWN_TIME_REASON_FIELD_NUMBER: _ClassVar[int]
    OWN_TIME_S_FIELD_NUMBER: _ClassVar[int]
    OWN_STEPS_FIELD_NUMBER: _ClassVar[int]
    GPU_USE_SUM_FIELD_NUMBER: _ClassVar[int]
    GPU_USE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    IS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    ODDITY_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node: str
    life: _store_pb2.Life
    step: int
    phase: _common_pb2.Phase
    process_state: str
    stalled_s: float
    coordinates: _containers.ScalarMap[str, int]
    pid: int
    exit: _store_pb2.RankExit
    memory_bytes: int
    memory_limit_bytes: int
    recorders: _containers.RepeatedCompositeFieldContainer[_common_pb2.Recorder]
    own_time_source: _common_pb2.OwnTimeSource
    own_time_reason: str
    own_time_s: float
    own_steps: int
    gpu_use_sum: float
    gpu_use_samples: int
    health: RankHealth
    is_behind: bool
    oddity: RankOddity
    def __init__(self, rank: _Optional[int] = ..., node: _Optional[str] = ..., life: _Optional[_Union[_store_pb2.Life, str]] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[_common_pb2.Phase, str]] = ..., process_state: _Optional[str] = ..., stalled_s: _Optional[float] = ..., coordinates: _Optional[_Mapping[str, int]] = ..., pid: _Optional[int] = ..., exit: _Optional[_Union[_store_pb2.RankExit, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., recorders: _Optional[_Iterable[_Union[_common_pb2.Recorder, _Mapping]]] = ..., own_time_source: _Optional[_Union[_common_pb2.OwnTimeSource, str]] = ..., own_time_reason: _Optional[str] = ..., own_time_s: _Optional[float] = ..., own_steps: _Optional[int] = ..., gpu_use_sum: _Optional[float] = ..., gpu_use_samples: _Optional[int] = ..., health: _Optional[_Union[RankHealth, str]] = ..., is_behind: bool = ..., oddity: _Optional[_Union[RankOddity, str]] = ...) -> None: ...

class RankGroup(_message.Message):
    __slots__ = ("count", "like")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    count: int
    like: RankView
    def __init__(self, count: _Optional[int] = ..., like: _Optional[_Union[RankView, _Mapping]] = ...) -> None: ...

class RunSettings(_message.Message):
    __slots__ = ("mode", "ranks_per_node", "on_hang", "injection_allowed", "checkpoint_directory")
    MODE_FIELD_NUMBER: _ClassVar[int]
    RANKS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    ON_HANG_FIELD_NUMBER: _ClassVar[int]
    INJECTION_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    mode: _store_pb2.Mode
    ranks_per_node: int
    on_hang: _store_pb2.HangAction
    injection_allowed: bool
    checkpoint_directory: str
    def __init__(self, mode: _Optional[_Union[_store_pb2.Mode, str]] = ..., ranks_per_node: _Optional[int] = ..., on_hang: _Optional[_Union[_store_pb2.HangAction, str]] = ..., injection_allowed: bool = ..., checkpoint_directory: _Optional[str] = ...) -> None: ...

class RunStatus(_message.Message):
    __slots__ = ("run", "phase", "generation", "newest_step", "loss", "validation_loss", "grad_norm", "tokens_per_s", "ranks", "newest_checkpoint", "newest_snapshot", "incidents", "restarts", "loss_spikes", "leader", "outcome", "now_unix_s", "store_up", "newest_incident", "deadline_s", "left_step", "faults", "faults_refused", "failed_checkpoint", "resumed_step", "learning_rate", "replicas_note", "planned_steps", "refused", "time_use_s", "wall_s", "nonfinite_since", "finite_loss_step", "stopped_by_loss", "urgent_incident", "loss_is_acknowledged", "refused_ranks", "settings", "time_left_s", "checkpoints", "pipeline_bubble", "other_ranks", "rank_counts", "matching_ranks", "odd_ranks", "newest_replica", "nodes_note", "nodes_advice", "left_out", "logged")
    class TimeUseSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class RankCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LOSS_SPIKES_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    STORE_UP_FIELD_NUMBER: _ClassVar[int]
    NEWEST_INCIDENT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_STEP_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    RESUMED_STEP_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_NOTE_FIELD_NUMBER: _ClassVar[int]
    PLANNED_STEPS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TIME_USE_S_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_SINCE_FIELD_NUMBER: _ClassVar[int]
    FINITE_LOSS_STEP_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_LOSS_FIELD_NUMBER: _ClassVar[int]
    URGENT_INCIDENT_FIELD_NUMBER: _ClassVar[int]
    LOSS_IS_ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_RANKS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_BUBBLE_FIELD_NUMBER: _ClassVar[int]
    OTHER_RANKS_FIELD_NUMBER: _ClassVar[int]
    RANK_COUNTS_FIELD_NUMBER: _ClassVar[int]
    MATCHING_RANKS_FIELD_NUMBER: _ClassVar[int]
    ODD_RANKS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_REPLICA_FIELD_NUMBER: _ClassVar[int]
    NODES_NOTE_FIELD_NUMBER: _ClassVar[int]
    NODES_ADVICE_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    run: str
    phase: _store_pb2.RunPhase
    generation: int
    newest_step: int
    loss: float
    validation_loss: float
    grad_norm: float
    tokens_per_s: float
    ranks: _containers.RepeatedCompositeFieldContainer[RankView]
    newest_checkpoint: int
    newest_snapshot: int
    incidents: int
    restarts: int
    loss_spikes: int
    leader: bool
    outcome: str
    now_unix_s: float
    store_up: bool
    newest_incident: _store_pb2.Incident
    deadline_s: float
    left_step: int
    faults: _containers.RepeatedCompositeFieldContainer[_store_pb2.FaultInjected]
    faults_refused: _containers.RepeatedCompositeFieldContainer[_store_pb2.FaultRefused]
    failed_checkpoint: int
    resumed_step: int
    learning_rate: float
    replicas_note: str
    planned_steps: int
    refused: bool
    time_use_s: _containers.ScalarMap[str, float]
    wall_s: float
    nonfinite_since: int
    finite_loss_step: int
    stopped_by_loss: _store_pb2.LossTier
    urgent_incident: _store_pb2.Incident
    loss_is_acknowledged: bool
    refused_ranks: _containers.RepeatedScalarFieldContainer[str]
    settings: RunSettings
    time_left_s: float
    checkpoints: _containers.RepeatedScalarFieldContainer[int]
    pipeline_bubble: float
    other_ranks: _containers.RepeatedCompositeFieldContainer[RankGroup]
    rank_counts: _containers.ScalarMap[str, int]
    matching_ranks: int
    odd_ranks: int
    newest_replica: int
    nodes_note: str
    nodes_advice: str
    left_out: _containers.RepeatedCompositeFieldContainer[_session_pb2.LeftOut]
    logged: _containers.RepeatedCompositeFieldContainer[_common_pb2.LoggedNumber]
    def __init__(self, run: _Optional[str] = ..., phase: _Optional[_Union[_store_pb2.RunPhase, str]] = ..., generation: _Optional[int] = ..., newest_step: _Optional[int] = ..., loss: _Optional[float] = ..., validation_loss: _Optional[float] = ..., grad_norm: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., ranks: _Optional[_Iterable[_Union[RankView, _Mapping]]] = ..., newest_checkpoint: _Optional[int] = ..., newest_snapshot: _Optional[int] = ..., incidents: _Optional[int] = ..., restarts: _Optional[int] = ..., loss_spikes: _Optional[int] = ..., leader: bool = ..., outcome: _Optional[str] = ..., now_unix_s: _Optional[float] = ..., store_up: bool = ..., newest_incident: _Optional[_Union[_store_pb2.Incident, _Mapping]] = ..., deadline_s: _Optional[float] = ..., left_step: _Optional[int] = ..., faults: _Optional[_Iterable[_Union[_store_pb2.FaultInjected, _Mapping]]] = ..., faults_refused: _Optional[_Iterable[_Union[_store_pb2.FaultRefused, _Mapping]]] = ..., failed_checkpoint: _Optional[int] = ..., resumed_step: _Optional[int] = ..., learning_rate: _Optional[float] = ..., replicas_note: _Optional[str] = ..., planned_steps: _Optional[int] = ..., refused: bool = ..., time_use_s: _Optional[_Mapping[str, float]] = ..., wall_s: _Optional[float] = ..., nonfinite_since: _Optional[int] = ..., finite_loss_step: _Optional[int] = ..., stopped_by_loss: _Optional[_Union[_store_pb2.LossTier, str]] = ..., urgent_incident: _Optional[_Union[_store_pb2.Incident, _Mapping]] = ..., loss_is_acknowledged: bool = ..., refused_ranks: _Optional[_Iterable[str]] = ..., settings: _Optional[_Union[RunSettings, _Mapping]] = ..., time_left_s: _Optional[float] = ..., checkpoints: _Optional[_Iterable[int]] = ..., pipeline_bubble: _Optional[float] = ..., other_ranks: _Optional[_Iterable[_Union[RankGroup, _Mapping]]] = ..., rank_counts: _Optional[_Mapping[str, int]] = ..., matching_ranks: _Optional[int] = ..., odd_ranks: _Optional[int] = ..., newest_replica: _Optional[int] = ..., nodes_note: _Optional[str] = ..., nodes_advice: _Optional[str] = ..., left_out: _Optional[_Iterable[_Union[_session_pb2.LeftOut, _Mapping]]] = ..., logged: _Optional[_Iterable[_Union[_common_pb2.LoggedNumber, _Mapping]]] = ...) -> None: ...
