"""Stories of runs, shown to the core alone."""

import pytest

from holdfast_core.model import CheckpointRequest, StopRequest
from holdfast_core.naming import kind_name
from holdfast_core.texts.incident_lines import places_text, what_line
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import end_ranks, hung, restart, running, send_event
from tests.support.core_world import World


def test_a_run_starts_from_its_seed_when_all_nodes_are_ready() -> None:
    world = World(nodes=2)
    world.node_states["node1"].ready = False
    world.tick()
    assert world.phase == "waiting"
    world.node_states["node1"].ready = True
    world.tick()
    starts = world.sent("start")
    assert [(start.start.first_rank, start.start.world_size) for start in starts] == [(0, 8), (4, 8)]
    assert {start.start.source for start in starts} == {store.SOURCE_SEED}
    assert {start.start.rendezvous_node for start in starts} == {"node0"}


def test_a_run_starts_from_the_newest_checkpoint_there_is() -> None:
    world = World(checkpoints=[19, 39])
    world.tick()
    start = world.sent("start")[0].start
    assert (start.source, start.step) == (store.SOURCE_CHECKPOINT, 39)


def test_an_unreadable_checkpoint_is_reported_and_the_one_before_is_taken() -> None:
    world = World(checkpoints=[19, 39])
    world.obeys = False
    world.tick()
    node = world.node_states["node0"]
    node.failed_generation, node.failure = 1, "rank-00002.shard: tensor model.w: digest differs"
    unreadable = store.CheckpointUnreadable(step=39, reason=node.failure)
    world.events.append(store.Event(node="node0", checkpoint_unreadable=unreadable))
    world.events.append(world.events[0])  # another node has found the same
    world.tick()
    world.tick()
    start = world.sent("start")[-1]
    assert (start.generation, start.start.step) == (2, 19)
    assert list(world.state.record.unreadable_checkpoints) == [39]
    assert "rank-00002.shard" in world.incidents[0].verdict.message


def test_a_killed_rank_is_named_and_the_run_continues_from_memory() -> None:
    world = running()
    world.end(2, signal=9)
    world.tick()
    incident = world.incidents[0]
    assert (list(incident.verdict.culprits), incident.verdict.kind) == ([2], store.VERDICT_KIND_DEAD_RANK)
    world.until("starting")
    start = world.sent("start")[-1]
    assert (start.generation, start.start.source, start.start.step) == (2, store.SOURCE_MEMORY, 4)
    world.train()
    incident = world.incidents[0]
    assert (incident.state, incident.resumed_step, incident.lost_steps) == (store.INCIDENT_STATE_RECOVERED, 4, 0)
    assert incident.recovered_unix_s >= incident.detected_unix_s


def test_a_hung_collective_is_blamed_on_the_rank_that_is_missing() -> None:
    world = hung()
    world.rank(1).process_state = "T"
    world.tick(seconds=0.5)
    assert world.incidents == []
    world.tick(seconds=1.0)
    verdict = world.incidents[0].verdict
    assert (verdict.kind, list(verdict.culprits)) == (store.VERDICT_KIND_HUNG_COLLECTIVE, [1])
    assert "rank 1 is stopped" in verdict.message
    assert "ranks 0, 2, 3 wait for it" in verdict.message
    gathered = world.sent("gather_evidence")[0].gather_evidence
    assert gathered.flight_recorder
    assert next(iter(gathered.stack_ranks)) == 1


def test_a_node_that_others_wait_for_is_lost_with_its_ranks() -> None:
    world = running(nodes=2)
    world.node_states.pop("node1")
    world.until("gathering")
    verdict = world.incidents[0].verdict
    assert (kind_name(verdict.kind), verdict.node, list(verdict.culprits)) == ("lost_node", "node1", [4, 5, 6, 7])
    assert verdict.message == "node node1 is lost, and with it ranks 4, 5, 6, 7"


def test_a_spare_node_takes_the_place_of_a_lost_one_and_the_lost_one_lets_its_ranks_go() -> None:
    world = running(nodes=2)
    lost = world.node_states.pop("node1")
    world.node_states["node2"] = store.NodeState(run="r", node="node2", ready=True, stopped=True, instance="i")
    restart(world)
    assert list(world.state.record.nodes) == ["node0", "node2"]
    assert [name for name, command in world.commands if command.WhichOneof("kind") == "start"][-2:] == [
        "node0",
        "node2",
    ]
    world.train(2)
    assert world.phase == "running"
    world.node_states["node1"] = lost
    world.tick()
    stray = [command for name, command in world.commands if name == "node1"][-1]
    assert (stray.WhichOneof("kind"), stray.generation) == ("stop", 1)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("generation", [0, 1])
def test_a_node_whose_agent_has_none_of_its_ranks_is_lost_at_once_and_takes_part_in_the_restart(
    nodes: int, generation: int
) -> None:
    world = running(nodes=nodes)
    world.end(0, code=1)
    restart(world)
    world.train(3)
    last = world.rank(0).pid
    world.node_states["node0"] = store.NodeState(
        run="r", node="node0", ready=True, stopped=True, instance="i", generation=generation
    )
    world.tick()
    assert world.phase == "gathering"
    incident = world.incidents[-1]
    assert kind_name(incident.verdict.kind) == "lost_node"
    assert incident.verdict.message == (
        "node node0 has lost ranks 0, 1, 2, 3: its agent was started again and found no usable record of them"
    )
    assert [(place.node, place.pid) for place in incident.culprits][:1] == [("node0", last)]
    assert incident.verdict.step == world.state.record.newest_step + 1
    if generation:
        world.node_states["node0"].failed_generation = 2  # as an agent says that has to stop a newer generation
    world.until("starting")
    assert world.state.record.generation == 3
    world.train(2)
    assert world.phase == "running"
    assert world.incidents[-1].state == store.INCIDENT_STATE_RECOVERED


def test_a_node_that_still_starts_its_ranks_has_not_lost_them() -> None:
    world = running(nodes=2)
    world.end(0, code=1)
    restart(world)
    started = list(world.incidents)
    behind = world.node_states["node1"]
    del behind.ranks[:]
    behind.generation = 1
    world.stand(0.5)
    assert world.phase == "starting"
    world.empty_store()  # the next leader takes over what it sees
    world.obeys = False
    world.stand(1.0)
    assert (world.phase, world.incidents) == ("running", [])
    assert len(started) == 1


def test_a_new_leader_repeats_commands_that_may_have_been_lost() -> None:
    world = running()
    world.obeys = False
    world.end(2, signal=9)
    world.tick()
    world.lose_leader()
    world.obeys = True
    world.tick(seconds=7.0)
    world.until("starting")
    world.train()
    assert (world.phase, world.state.record.generation) == ("running", 2)
    assert len([c for c in world.sent("start") if c.generation == 2]) == 1


def test_an_emptied_store_does_not_disturb_a_healthy_run() -> None:
    world = running()
    world.empty_store()
    commands = len(world.commands)
    world.tick()
    world.train(3)
    assert (world.phase, world.state.record.generation, len(world.commands)) == ("running", 1, commands)


def test_the_run_finishes_when_every_rank_has_left_with_code_0() -> None:
    world = running()
    end_ranks(world, *range(4), code=0)
    world.tick()
    assert (world.phase, world.sent("finish")[0].finish.outcome, world.incidents) == ("finished", "finished", [])


def test_summaries_that_come_twice_are_counted_once() -> None:
    world = running()
    before = world.state.totals.steps
    summary = store.StepSummary(step=5, generation=1, loss_sum=2.0, loss_count=1, tokens=10)
    for _ in range(2):
        send_event(world, generation=1, step_summary=summary)
    assert (world.state.totals.steps, world.state.totals.tokens) == (before + 1, 10)


def test_a_requested_checkpoint_is_set_for_a_step_that_no_rank_has_finished() -> None:
    world = running()
    world.tick(CheckpointRequest())
    step = world.checkpoint_answers[0].step
    assert step > max(world.rank(n).progress.step for n in range(4))
    assert {command.take_checkpoint.step for command in world.sent("take_checkpoint")} == {step}


def test_a_checkpoint_that_is_requested_in_a_hang_is_of_the_newest_state_in_memory() -> None:
    world = hung(2, stood_s=2.0)
    assert world.state.record.standstill_incident
    world.commands.clear()
    world.tick(CheckpointRequest())
    (answer,) = world.checkpoint_answers
    assert answer.step == min(max(world.rank(number).snapshots) for number in range(4)) >= 0
    assert {command.persist_snapshot.step for command in world.sent("persist_snapshot")} == {answer.step}
    world.node_states["node0"].checkpoints.append(answer.step)
    world.tick(CheckpointRequest())
    assert world.checkpoint_answers[1].step == -1
    assert f"no newer state than the checkpoint of step {answer.step}" in world.checkpoint_answers[1].reason
    assert world.sent("take_checkpoint") == []


def test_a_checkpoint_is_not_taken_while_the_run_starts() -> None:
    world = World()
    world.until("starting")
    world.tick(CheckpointRequest())
    assert world.checkpoint_answers[0].step == -1
    assert "starting" in world.checkpoint_answers[0].reason


def test_an_operator_ends_the_run() -> None:
    world = running()
    world.tick(StopRequest())
    assert (world.phase, world.state.record.outcome) == ("failed", "stopped by an operator")


def test_no_incident_stays_open_in_a_run_that_an_operator_ended() -> None:
    world = running()
    world.end(1, signal=9)
    world.until("gathering")
    assert [incident.state for incident in world.state.incidents.values()] == [store.INCIDENT_STATE_OPEN]
    world.tick(StopRequest())
    (incident,) = world.state.incidents.values()
    assert (incident.state, incident.actions[-1].what) == (store.INCIDENT_STATE_FAILED, "stopped by an operator")


def test_the_same_ticks_give_the_same_answers() -> None:
    def story() -> tuple[object, ...]:
        world = hung()
        for _ in range(30):
            world.tick()
        return tuple((node, command.SerializeToString(deterministic=True)) for node, command in world.commands)

    assert story() == story()


def test_an_incident_says_where_its_culprits_ran_and_keeps_that_after_the_restart() -> None:
    world = World(nodes=2, ranks_per_node=2)
    world.until("starting")
    world.train(3)
    world.end(3, signal=9)
    world.until("starting")
    for rank in world.node_states["node1"].ranks:
        rank.pid += 1000
    world.train(2)
    (incident,) = world.incidents
    assert incident.generation < world.state.record.generation
    assert list(incident.culprits) == [store.CulpritPlace(rank=3, node="node1", pid=103)]
    assert what_line(incident).endswith(" (rank 3: node1, pid 103)")
    incident.nodes = 1
    assert what_line(incident) == incident.verdict.message


def test_an_incident_of_a_lost_node_says_what_its_ranks_last_were() -> None:
    world = World(nodes=2, ranks_per_node=4)
    world.until("starting")
    world.train(3)
    world.hang(7)
    del world.node_states["node1"]
    for _ in range(1000):
        if world.incidents:
            break
        for node in world.node_states.values():
            for rank in node.ranks:
                rank.stalled_s += 1.0
        world.tick()
    (incident,) = world.incidents
    assert [(place.rank, place.node, place.pid) for place in incident.culprits] == [
        (rank, "node1", 100 + rank) for rank in range(4, 8)
    ]
    shown = "rank 4: node1, pid 104; rank 5: node1, pid 105; rank 6: node1, pid 106; and 1 more rank"
    assert places_text(incident) == shown
