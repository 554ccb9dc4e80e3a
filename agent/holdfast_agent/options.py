"""What an agent must be told."""

from dataclasses import dataclass
from pathlib import Path

from holdfast_checkpoint.codec.registry import Compression
from holdfast_proto.rank_context import ObservedNode, black_box_path


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """Settings of one agent; everything else it learns from the run's RunSpec."""

    run: str
    node: str
    store_url: str
    store_password_file: Path | None = None
    directory: Path
    """The run's directory: logs, incidents, this agent's record."""
    runtime_directory: Path
    """For sockets: short path, mode 0700."""
    shm_directory: Path = Path("/dev/shm")
    address: str = "127.0.0.1"
    """On which the other nodes reach this one."""
    metrics_address: str = "127.0.0.1"
    metrics_port: int = 0
    """0: the kernel chooses."""
    preemption_grace_s: float = 30.0
    """From SIGTERM to the end of the run, for a last checkpoint; 0: end at once."""
    checkpoint_full_every: int = 8
    """Every so many checkpoints one that can be read alone; those between are stored as differences to it."""
    checkpoint_compression: Compression = Compression.AUTO
    checkpoint_staging: Path | None = None
    """Folder of this node for shards on their way to and from an object store; None: in ``node_directory``."""

    @property
    def node_directory(self) -> Path:
        """For files of this agent alone."""
        return self.directory / f"node-{self.node}"

    @property
    def record(self) -> Path:
        """AgentRecord."""
        return self.node_directory / "record.pb"

    @property
    def session_socket(self) -> Path:
        """On which ranks open their sessions."""
        return self.runtime_directory / f"agent-{self.node}.sock"

    @property
    def parent_socket(self) -> Path:
        """On which the warm parent takes requests."""
        return self.runtime_directory / f"warm-parent-{self.node}.sock"

    @property
    def endpoint_file(self) -> Path:
        """JSON that says where this agent serves, once it does."""
        return self.runtime_directory / f"agent-{self.node}.json"

    def black_box(self, generation: int, rank: int) -> Path:
        """Where a rank of a generation keeps its black box."""
        return black_box_path(self.black_boxes, generation, rank)

    @property
    def black_boxes(self) -> Path:
        """Folder of this node's black boxes."""
        return self.node_directory / "black-boxes"

    @property
    def observed_node(self) -> ObservedNode:
        """What ranks need to know that somebody else launches on this node."""
        return ObservedNode(run=self.run, agent=f"unix:{self.session_socket}", black_boxes=str(self.black_boxes))

    def rank_log(self, generation: int, rank: int) -> Path:
        """Where a rank's stdout and stderr go."""
        return self.directory / "logs" / f"generation-{generation:04}" / f"rank-{rank:05}.log"

    def incident_directory(self, incident: str) -> Path:
        """Where evidence of an incident goes; a daemon with the same directory keeps its story there, too."""
        return self.directory / "incidents" / self.run / incident

    def suspicion_directory(self, suspicion: str) -> Path:
        """Where evidence of what may yet turn out to be no incident goes."""
        return self.directory / "suspicions" / suspicion
