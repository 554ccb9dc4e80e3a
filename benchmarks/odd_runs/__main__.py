"""One rank of an odd run. A step takes about 30 ms. Most of it is waiting, as for a device."""

import atexit
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast_hooks
from holdfast_hooks import Phase
from holdfast_proto.rank_context import RankContext

from .activities import ACTIVITIES
from .case import OddCase, Place
from .cases import CASES
from .meetings import MEETINGS
from .pause import Pause, PauseLog
from .scene import CASE, FOLDER, TWIN, Scene

DATA_S = 0.004
DEVICE_S = 0.012
DIM = 16
SHORT_PHASE_EVERY = 4
"""Steps between short stays in the phase of the pause, so that the run knows that phase before the pause."""


class OddRank:
    """A plain training script with one odd moment."""

    def __init__(self, case: OddCase, *, twin: bool, generation: int) -> None:
        self._case = case.as_twin() if twin else case
        self._twin = twin
        self._rank = int(os.environ.get("RANK", "0"))
        self._pauses = self._rank in self._case.culprits() and not (twin and generation > 1)
        self._phase = Phase[case.phase] if case.phase else None
        self._log = PauseLog(Path(os.environ[FOLDER]), rank=self._rank, generation=generation)

    def run(self) -> None:
        """Train from the first step to the last."""
        dist.init_process_group("gloo")
        self._pause_at(Place.BEFORE_ATTACH)
        model = torch.nn.Linear(DIM, DIM)
        with holdfast_hooks.attach(state={"model": model}) as hooks:
            self._pause_at(Place.BEFORE_STEPS)
            for step in hooks.steps(until=self._case.last_step + 1):
                self._train(hooks, model, step)
            if self._phase is not None and self._case.place is Place.AFTER_LOOP:
                hooks.enter(self._phase)
            self._pause_at(Place.AFTER_LOOP)
        self._pause_at(Place.AFTER_CLOSE)
        if self._case.place is Place.AT_EXIT:
            atexit.register(self._pause_at, Place.AT_EXIT)
        if self._case.place is Place.IN_THREAD:
            threading.Thread(target=self._pause_at, args=(Place.IN_THREAD,)).start()
        else:
            dist.destroy_process_group()

    def _train(self, hooks: holdfast_hooks.Hooks, model: torch.nn.Linear, step: int) -> None:
        hooks.enter(Phase.DATA)
        if self._phase is Phase.DATA:
            self._pause_in(step)
        time.sleep(DATA_S)
        hooks.enter(Phase.FORWARD_BACKWARD)
        loss = model(torch.ones(4, DIM)).square().mean()
        loss.backward()
        time.sleep(DEVICE_S)
        if self._phase is None:
            self._pause_in(step)
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        hooks.enter(Phase.OPTIMIZER)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=1e-3)
        model.zero_grad()
        hooks.report(loss=loss.item())
        if self._phase not in (None, Phase.DATA):
            self._stay_in_phase(hooks, step)

    def _stay_in_phase(self, hooks: holdfast_hooks.Hooks, step: int) -> None:
        assert self._phase is not None
        if step not in self._case.steps:
            if step % SHORT_PHASE_EVERY == 0:
                hooks.enter(self._phase)
                time.sleep(DATA_S)
            return
        if self._rank in self._case.culprits():
            hooks.enter(self._phase)
        self._pause_in(step)

    def _pause_in(self, step: int) -> None:
        if self._case.place is Place.STEP and step in self._case.steps:
            endless = self._twin and step == max(self._case.steps)
            self._pause(endless=endless)
            if self._phase is not Phase.DATA:  # in DATA, the others wait where they need the batch
                MEETINGS[self._case.waiters]()

    def _pause_at(self, place: Place) -> None:
        if self._case.place is place:
            self._pause(endless=self._twin)
            if place in (Place.BEFORE_ATTACH, Place.BEFORE_STEPS):
                MEETINGS[self._case.waiters]()

    def _pause(self, *, endless: bool) -> None:
        if self._pauses:
            pause = Pause(self._log, lasts_s=self._case.lasts_s, endless=endless)
            with pause:
                ACTIVITIES[self._case.activity](Scene(self._rank, pause))


def main() -> None:
    """Train the case that the environment names."""
    torch.set_num_threads(1)
    context = RankContext.from_environment(rank=int(os.environ.get("RANK", "0")))
    assert context is not None, "start this under an agent"
    OddRank(CASES[os.environ[CASE]], twin=os.environ[TWIN] == "1", generation=context.generation).run()


if __name__ == "__main__":
    main()
