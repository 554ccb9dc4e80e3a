"""The library inside a training process: telemetry, progress, snapshots, commands.

::

    import holdfast_hooks

    with holdfast_hooks.attach(state={"model": model, "optimizer": optimizer}) as hooks:
        for step in hooks.steps(until=1000):
            loss = train_step(next(batches))
            hooks.report(loss=loss, tokens=n)
"""

from holdfast_hooks.full_world import full_world_size
from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.hooks import Hooks, attach
from holdfast_hooks.phases import Phase
from holdfast_hooks.state.encoding import Stateful
from holdfast_hooks.state.merged_modules import merged
from holdfast_hooks.state.named_optimizer import by_name
from holdfast_hooks.state.resumable_loader import ResumableLoader
from holdfast_hooks.updates.update_check import Spike

__all__ = [
    "ConfigurationError",
    "Hooks",
    "Phase",
    "ResumableLoader",
    "Spike",
    "Stateful",
    "attach",
    "by_name",
    "full_world_size",
    "merged",
]
