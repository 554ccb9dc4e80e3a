"""A recording carries the policy on bad losses, so that a replay comes to the same verdict and the same end."""

from typing import Any

import pytest

from holdfast_core import coordinator
from holdfast_core.model import CoreState, Observation
from holdfast_daemon.incidents import incident_folder
from holdfast_daemon.incidents.incident_folder import read_recording
from holdfast_daemon.replay.recording import Recording
from holdfast_daemon.replay.replaying import replay
from holdfast_proto.v1 import store_pb2 as store
from tests.support.core_world import World


@pytest.mark.parametrize(
    ("action", "phase"), [(store.LOSS_ACTION_NOTIFY, "running"), (store.LOSS_ACTION_STOP, "failed")]
)
def test_a_replay_of_a_blip_comes_to_its_verdict(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, action: "store.LossAction", phase: str
) -> None:
    recording, step = Recording(), coordinator.step

    def noting(state: CoreState, now: float, observation: Observation, *rest: Any) -> Any:
        recording.note(state, now, observation)
        return step(state, now, observation, *rest)

    monkeypatch.setattr(coordinator, "step", noting)
    world = World(ranks_per_node=1)
    world.spec.loss_policy.blip.action = action
    world.until("starting")
    world.train(60)
    world.train(1, loss=50.0)
    (incident,) = world.incidents
    assert (incident.loss_tier, incident.notify, world.phase) == (store.LOSS_TIER_BLIP, True, phase)
    excerpt = recording.excerpt()
    assert excerpt is not None
    incident_folder.write_story(tmp_path, incident)
    incident_folder.write_recording(tmp_path, excerpt, incident.verdict, dropped_ticks=0)
    result = replay(read_recording(tmp_path))
    assert result.agrees
    assert result.replayed == incident.verdict
