"""The replica snapshots of one node: those that it makes, holds, gives to others and restores from."""

import logging
from dataclasses import dataclass

from holdfast_agent.agent_options import AgentOptions
from holdfast_agent.processes.containment import Errors
from holdfast_agent.replicas.replica_restorer import ReplicaRestorer
from holdfast_agent.replicas.replica_server import ReplicaServer
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_agent.replicas.replicator import Replicator
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base.sockets import address_towards, split_address
from holdfast_base.text import reason_of
from holdfast_checkpoint.store.object_store import Bandwidth
from holdfast_proto.run_key import RunKeyFile
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

_LOCAL = "127.0.0.1"
"""Default of the agent's --address: it says nothing about where other nodes find this one."""


@dataclass(frozen=True)
class ReplicaService:
    """Everything about replica snapshots that an agent has."""

    replicas: ReplicaStore
    server: ReplicaServer
    replicator: Replicator
    restorer: ReplicaRestorer
    address: str
    """Host and port at which other nodes reach this one."""
    failure_domain: str

    def state(self) -> store.NodeReplicas:
        """Return what the node's state says of them."""
        message = store.NodeReplicas(
            address=self.address,
            failure_domain=self.failure_domain,
            held=self.replicas.held(),
            unusable_generation=self.restorer.failed_generation,
        )
        self.replicator.describe(message)
        return message

    def begin_generation(self, step: int) -> None:
        """Forget the states after ``step``, from which a generation begins; -1: all states.

        A partner may still get one that was under way. That does no harm: a step and a generation name one state of
        the whole run, and it can be chosen only if all its parts are there.
        """
        self.replicator.forget()
        self.replicas.drop_after(step)

    def close(self) -> None:
        """End server, workers and threads. What is in memory stays for the next agent of this node."""
        self.server.close()
        self.replicator.close()


def open_replicas(
    options: AgentOptions, spec: store.RunSpec, memory: SnapshotMemory, errors: Errors
) -> ReplicaService | None:
    """Return the service of a node that is to make and take replica snapshots; None: it cannot.

    Without it, the run trains, and a lost node costs the steps since the last checkpoint.
    """
    replicas = ReplicaStore(memory.replica_directory, options.shm_directory, spec.run)
    try:
        seal = RunKeyFile(options.run_key, spec.run).read().seal_of(spec.instance)
        host, port = _place(options)
    except ValueError as error:  # a RunKeyError, too
        log.error("no replica snapshots: %s", error)
        return None
    try:
        server = ReplicaServer(replicas, seal, host, port)
    except (OSError, UnicodeError) as error:  # the second one: a host whose name cannot be one
        why = f"{host}:{port} cannot be used: {reason_of(error)}"
        log.error("no replica snapshots: %s: set --replica-address to an address of this node", why)
        return None
    address = f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}"
    replicator = Replicator(
        replicas,
        memory,
        seal,
        errors,
        run=spec.run,
        address=address,
        bandwidth=Bandwidth(spec.replica_bytes_per_s),
        compression=options.checkpoint_compression,
        writers=spec.ranks_per_node,
    )
    restorer = ReplicaRestorer(replicas, memory, seal)
    return ReplicaService(replicas, server, replicator, restorer, address, options.topology)


def _place(options: AgentOptions) -> tuple[str, int]:
    """Return the host and the port at which the other nodes reach this one; port 0: any free one. Raises ValueError."""
    if options.replica_address:
        return split_address(options.replica_address)
    return (address_towards(options.store_url) if options.address == _LOCAL else options.address), 0
