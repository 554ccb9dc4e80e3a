"""The settings of an agent."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_proto import run_files
from holdfast_proto.rank_context import ObservedNode
from holdfast_proto.v1.store_pb2 import RunSpec
from holdfast_proto.vocabulary import rolls_back


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The settings of one agent; the rest is in the run's RunSpec. Their defaults are those of `holdfast agent`."""

    run: str
    node: str
    store_url: str
    store_password_file: Path | None = None
    run_key_file: Path | None = None
    """File with the key of the run; None: the one in ``directory``."""
    directory: Path
    """Directory of the run: logs, incidents, this agent's record."""
    share_group: bool = False
    """Whether the group of ``directory`` may read it, if this agent makes it."""
    runtime_directory: Path
    """Directory of the sockets, mode 0700. Its path must be short, because the kernel limits a socket's path."""
    shm_directory: Path
    """Memory file system for snapshots."""
    address: str
    """Address at which the other nodes reach this one."""
    metrics_address: str
    metrics_port: int
    """Port of /metrics; 0: the kernel chooses."""
    metrics_config: Path | None = None
    """File with TLS and passwords for /metrics; None: plain HTTP for everybody."""
    preemption_grace_s: float
    """Seconds from SIGTERM to the end of the run, for a last checkpoint; 0: end immediately."""
    preemption_warnings: Collection[Signals]
    """Those of PREEMPTION_WARNINGS that ask for a planned stop; the others are ignored."""
    checkpoint_full_every: int
    """Every N-th checkpoint can be read alone; those between are stored as differences from it."""
    checkpoint_compression: Compression
    topology: str = ""
    """Failure domain of the node, such as its rack; empty: the node is one of its own."""
    replica_address: str = ""
    """HOST[:PORT] at which other nodes reach this one for replica snapshots; empty: the agent finds it."""
    system_root: Path = Path("/")
    """Root of the file system with the driver's devices and files, and the kernel's log."""
    checkpoint_staging: Path | None = None
    """Folder for shards on their way to and from an object store; None: in ``node_directory``."""

    @property
    def node_directory(self) -> Path:
        """Directory for files of this agent alone."""
        return run_files.node_directory(self.directory, self.node)

    @property
    def run_key(self) -> Path:
        """File with the key of the run."""
        return self.run_key_file or run_files.run_key(self.directory, self.run)

    @property
    def record(self) -> Path:
        """Path of the AgentRecord."""
        return run_files.agent_record(self.directory, self.node)

    @property
    def session_socket(self) -> Path:
        """Path of the socket on which ranks open their sessions."""
        return run_files.session_socket(self.runtime_directory, self.node)

    @property
    def parent_socket(self) -> Path:
        """Path of the socket on which the warm parent takes requests."""
        return run_files.warm_parent_socket(self.runtime_directory, self.node)

    @property
    def endpoint_file(self) -> Path:
        """Path of the JSON file that says where this agent serves; written once it does."""
        return run_files.agent_endpoint(self.runtime_directory, self.node)

    @property
    def recorder_scratch(self) -> Path:
        """Folder for dumps of recorders that are read and not kept."""
        return run_files.recorder_scratch(self.runtime_directory, self.node)

    def black_box(self, generation: int, rank: int) -> Path:
        """Return the path of a rank's black box."""
        return run_files.black_box(self.black_boxes, generation, rank)

    @property
    def black_boxes(self) -> Path:
        """Folder of this node's black boxes."""
        return run_files.black_boxes(self.directory, self.node)

    def observed_node(self, spec: RunSpec) -> ObservedNode:
        """Return the settings for ranks that another launcher starts on this node."""
        return ObservedNode.of(
            self.run,
            self.node,
            directory=self.directory,
            runtime=self.runtime_directory,
            auto=spec.auto,
            restores=spec.restores,
            snapshot_every=spec.snapshot_every,
            checkpoint_every=spec.checkpoint_every,
            rolls_back=spec.restores and rolls_back(spec),
        )

    def rank_log(self, generation: int, rank: int) -> Path:
        """Return the path of the log with a rank's stdout and stderr."""
        return run_files.rank_log(self.directory, generation, rank)

    def incident_directory(self, incident: str) -> Path:
        """Return the folder for an incident's evidence; a daemon with the same directory keeps its incident there."""
        return run_files.incidents(self.directory, self.run) / incident

    def suspicion_directory(self, suspicion: str) -> Path:
        """Return the folder for the evidence of a suspicion, which may not become an incident."""
        return run_files.suspicions(self.directory) / suspicion

    def profile_directory(self, request: str) -> Path:
        """Return the folder for the files of the profile that an operator has requested."""
        return run_files.profiles(self.directory) / request
