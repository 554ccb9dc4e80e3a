"""The number of ranks while no node is missing, and what a script says so that a run may train with fewer of them."""

from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.identity import Identity
from holdfast_proto.rank_context import RankContext

_OR = "or start the run without --min-replicas"


def full_world_size(present: int) -> int:
    """Return the number of ranks while no node is missing. ``present``: size of the world now, if nobody says more.

    A run that was started with ``--min-replicas`` may train without some of its nodes for a while. Derive the global
    batch from this number: it then stays the same, and each rank does more micro-batches while there are fewer.
    Raises ConfigurationError if the agent's context is not valid.
    """
    context = context_of(Identity.from_environment())
    return (context.full_world_size if context is not None else 0) or present


def context_of(identity: Identity) -> RankContext | None:
    """Return the agent's context of this rank; None without an agent. Raises ConfigurationError."""
    try:
        return RankContext.from_environment(rank=identity.rank)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def check_replica_ranks(replica_ranks: int | None, context: RankContext, world_size: int) -> None:
    """Raise ConfigurationError if the run may train with fewer replicas, and the script has not promised that it can.

    ``replica_ranks``: as :func:`attach` takes it.
    """
    if replica_ranks is not None and replica_ranks < 1:
        raise ConfigurationError(f"replica_ranks is {replica_ranks}: give attach() 1 or more")
    if not (context.min_replicas and context.saves):
        return
    least, full = context.min_replicas, context.full_world_size or world_size
    if replica_ranks is None:
        what = "1 under plain data parallelism, tp x pp otherwise"
        raise ConfigurationError(
            f"--min-replicas {least} needs a script that can train with fewer replicas: pass attach(replica_ranks=...),"
            f" the number of ranks of one data-parallel replica ({what}), {_OR}"
        )
    for size in sorted({full, world_size}):
        if size % replica_ranks:
            raise ConfigurationError(
                f"--min-replicas {least}: a world of {size} ranks is not a whole number of replicas of {replica_ranks}"
                f" ranks: fix replica_ranks of attach(), {_OR}"
            )
    replicas = full // replica_ranks
    if replicas <= least:
        raise ConfigurationError(
            f"--min-replicas {least} leaves none out: {full} ranks are {replicas} replicas of {replica_ranks} ranks:"
            f" set it below {replicas}, {_OR}"
        )
