"""The evidence that is kept when a run seems to stand still."""

from holdfast_core.model import StopRequest
from holdfast_core.recovery.suspicion import PERSIST_EVERY_S
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import hung, running
from tests.support.core_world import World


def stand_still(world: World, seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        world.tick()


def persisted(world: World) -> list[int]:
    return [command.persist_snapshot.step for command in world.sent("persist_snapshot")]


def newest_snapshot(world: World) -> int:
    return max(world.rank(0).snapshots)


def test_the_newest_common_snapshot_is_persisted_before_the_verdict() -> None:
    world = running()
    world.rank(3).snapshots[:] = world.rank(3).snapshots[:1]
    common = world.rank(3).snapshots[0]
    world.hang(culprit=1)
    while not persisted(world):
        assert world.phase == "running"
        world.tick()
    assert (world.incidents, persisted(world)) == ([], [common])
    while not world.incidents:
        world.tick()
    assert persisted(world) == [common]


def test_a_slow_step_of_a_healthy_run_persists_nothing() -> None:
    world = running()
    stand_still(world, 0.4)
    world.train()
    assert persisted(world) == []


def test_one_rank_that_moves_allays_the_suspicion() -> None:
    world = hung()
    for _ in range(8):
        world.rank(2).stalled_s = 0.0
        world.tick()
    assert persisted(world) == []


def test_what_is_committed_already_is_not_persisted_again() -> None:
    world = running()
    world.node_states["node0"].checkpoints[:] = [newest_snapshot(world)]
    world.hang(culprit=1)
    world.until("gathering")
    assert persisted(world) == []


def test_a_run_that_stumbles_again_and_again_persists_now_and_then() -> None:
    world = running(mode=store.MODE_OBSERVE)
    for _ in range(3):
        stand_still(world, 1.0)
        world.train()
    assert len(persisted(world)) == 1
    world.now += PERSIST_EVERY_S
    stand_still(world, 1.0)
    assert len(persisted(world)) == 2
    assert persisted(world)[0] < persisted(world)[1]


def test_a_run_that_hangs_while_it_stops_keeps_what_it_has_in_memory() -> None:
    world = running()
    world.tick(StopRequest(grace_s=30.0))
    world.hang(culprit=1)
    stand_still(world, 2.0)
    assert (world.phase, persisted(world)) == ("leaving", [newest_snapshot(world)])


def suspicions(world: World) -> dict[str, int]:
    return dict(world.state.totals.suspicions)


def test_a_suspicion_that_resolves_is_counted_and_not_reported() -> None:
    world = hung()
    while not suspicions(world):
        world.tick()
    commands = [command.gather_evidence for command in world.sent("gather_evidence")]
    assert [(command.suspicion != "", command.incident, list(command.stack_ranks)) for command in commands] == [
        (True, "", [1, 0])
    ]
    world.train()
    world.tick()
    assert (suspicions(world), world.incidents) == ({"raised": 1, "resolved": 1}, [])


def test_a_suspicion_that_a_verdict_confirms_goes_with_the_incident() -> None:
    world = hung()
    world.until("gathering")
    suspected, confirmed = (command.gather_evidence for command in world.sent("gather_evidence")[:2])
    assert (confirmed.incident, confirmed.suspicion) == (world.incidents[0].id, suspected.suspicion)
    assert suspicions(world) == {"raised": 1, "confirmed": 1}


def test_a_hang_that_may_only_be_observed_is_suspected_once_while_it_lasts() -> None:
    world = hung(mode=store.MODE_OBSERVE)
    stand_still(world, 20.0)
    assert (len(world.incidents), suspicions(world)) == (1, {"raised": 1, "confirmed": 1})
    world.train()
    world.hang(culprit=1)
    stand_still(world, 20.0)
    assert len(world.incidents) == 1  # a pause of a kind that this run has shown before
    stand_still(world, 21.0)
    assert (len(world.incidents), suspicions(world)) == (2, {"raised": 2, "confirmed": 2})


def test_of_a_large_run_only_nodes_of_chosen_ranks_gather_and_only_they_are_waited_for() -> None:
    world = hung(culprit=99, nodes=20, ranks_per_node=8)
    node_of = {rank.rank: name for name, node in world.node_states.items() for rank in node.ranks}
    world.until("gathering")
    (culprit,) = world.incidents[0].verdict.culprits
    for suspected in (True, False):
        sent = [
            (node, command.gather_evidence)
            for node, command in world.commands
            if command.HasField("gather_evidence") and bool(command.gather_evidence.incident) is not suspected
        ]
        files = {rank for _, gather in sent for rank in gather.file_ranks}
        assert {culprit, *sent[0][1].stack_ranks} <= files
        assert {node_of[rank] for rank in files} == {node for node, _ in sent}
        assert 5 < len({node for node, _ in sent}) < 20
    world.tick()
    assert world.phase == "stopping"


def asked(world: World) -> dict[str, list[int]]:
    """Return the pids that the agent of each node asks NCCL's RAS about at a suspicion."""
    world.hang(culprit=1)
    while not suspicions(world):
        world.tick()
    gathered = {
        node: command.gather_evidence for node, command in world.commands if command.HasField("gather_evidence")
    }
    assert gathered.keys() == {"node0", "node1"}
    return {node: list(gather.ras_pids) for node, gather in gathered.items() if gather.ras_pids}


def test_one_agent_of_a_run_on_nccl_asks_its_witness() -> None:
    world = running(nodes=2, ranks_per_node=2)
    for number in (2, 3):
        world.rank(number).recorders.add(backend="nccl")
    for number in range(4):
        world.rank(number).pid = 70 + number
    assert asked(world) == {"node1": [70, 71, 72, 73]}


def test_nobody_asks_in_a_run_without_nccl_or_with_the_setting_off() -> None:
    world = running(nodes=2, ranks_per_node=2)
    world.rank(0).recorders.add(backend="gloo")
    assert asked(world) == {}
    world = running(nodes=2, ranks_per_node=2)
    world.rank(0).recorders.add(backend="nccl")
    world.state.spec.ras_off = True
    assert asked(world) == {}


def test_what_the_witness_says_is_a_line_of_the_story_and_brings_no_restart() -> None:
    world = hung(moving={1})
    while not world.incidents:
        world.tick()
    generation = world.state.record.generation
    for number, text in ((generation, "gives no answer"), (generation - 1, "is dead")):
        words = session.WitnessWords(witness="NCCL's RAS", words=[session.RankWords(ranks=[1], text=text)])
        world.events.append(store.Event(node="node0", generation=number, witness_words=words))
    stand_still(world, 30.0)
    said = [action.what for action in world.incidents[0].actions if action.what.startswith("NCCL")]
    assert said == ["NCCL's RAS says of rank 1: gives no answer"]
    assert world.phase == "running"
