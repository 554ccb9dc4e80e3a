"""What the host thread of a rank does: the words in which programs of training are written."""

from dataclasses import dataclass
from math import inf

Sizes = tuple[tuple[int, ...], ...]
"""Shapes of a call's tensors."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. ``name`` and ``desc`` are those that the recorder prints."""

    name: str
    desc: str
    members: tuple[int, ...]
    """Global ranks, in the order of their ranks in the group."""


@dataclass(slots=True)
class Collective:
    """One call of a collective, or a coalesced group of them."""

    group: int
    op: str
    """Name without its prefix: ``all_reduce``."""
    inputs: Sizes
    outputs: Sizes
    fits: tuple[object, ...]
    """What must be equal on all members. Sizes of an all_to_all may differ between healthy ranks."""
    handle: int | None = None
    """A number if the call is asynchronous: a later ``Wait`` names it. None: it runs on the current stream."""
    coalesced: tuple[str, ...] = ()
    """Names of the members of a coalesced group. ``op`` is then the name of the entry that closes it."""
    blocks_host: bool = False
    """Whether the host waits for the kernel, as in ``barrier()``."""
    never_ends: bool = False
    """Whether its operation never ends on this rank, though it ends on the others."""
    stuck_in_call: bool = False
    """Whether the host never comes back from the NCCL call."""


@dataclass(frozen=True, slots=True)
class Message:
    """One send or receive."""

    is_send: bool
    peer: int
    """Global rank of the other side."""
    numel: int


@dataclass(slots=True)
class Messages:
    """A batch of sends and receives, or a single one."""

    group: int
    parts: tuple[Message, ...]
    batched: bool
    handle: int


@dataclass(slots=True)
class Wait:
    """Let the current stream wait for asynchronous calls. The host waits only with blocking wait."""

    handles: tuple[int, ...]


@dataclass(slots=True)
class Kernel:
    """Enqueue a kernel on the current stream. Infinite seconds: it never ends."""

    seconds: float


@dataclass(slots=True)
class Replay:
    """Launch a CUDA graph with collectives in it. The recorder sees nothing of it."""

    calls: tuple[Collective, ...]
    seconds: float


@dataclass(slots=True)
class Capture:
    """Capture calls into a CUDA graph. They are counted and do not run."""

    calls: tuple[Collective, ...]
    noted: Collective
    """A call of the coalesced fast path: it gets an entry under capture, which then never moves."""


@dataclass(slots=True)
class Sync:
    """Let the host wait for the current stream, as ``.item()`` does."""

    place: str = "item"


@dataclass(slots=True)
class Python:
    """Keep the host busy. Infinite seconds: forever."""

    seconds: float
    place: str = "user"
    """``user``, ``data``, ``teardown``, ``gone`` (the process has ended) or ``stopped``."""


@dataclass(slots=True)
class NewGroups:
    """Create the groups of one dimension of a mesh. Every rank of the world takes part."""

    groups: tuple[int, ...]


Action = Collective | Messages | Wait | Kernel | Capture | Replay | Sync | Python | NewGroups


@dataclass
class Program:
    """What all ranks do, and the groups in which they do it. Group 0 is the world."""

    groups: list[Group]
    ranks: list[list[Action]]
    """Actions by rank."""
    layout: str

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


FOREVER = inf
