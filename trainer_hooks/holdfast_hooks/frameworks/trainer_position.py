"""What a Hugging Face Trainer knows besides its tensors: counts, log, callbacks, and the position in the data."""

import json
from typing import Any

from holdfast_hooks.state.sampling import Sampling

KEPT_FIELDS = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""Fields of TrainerState that training changes. ``log_history`` is one, too; the others follow from the arguments."""
TRAINER_COUNTS = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")
"""Numbers that the Trainer itself, or a trainer of TRL, gathers between two lines of its log, in addition to
``_tr_loss``."""
TRAINER_STARTS = ("_initial_global_step", "_initial_num_input_tokens_seen")
"""Where the Trainer's own averages begin."""
TRL_COUNTS = ("_total_train_tokens",)


class TrainerPosition:
    """The Trainer's own state, as a Stateful. It is loaded in two parts: now, and when the Trainer has set its counts.

    Args:
        trainer: the Trainer.
        sampling: the random states from which the current epoch's order was drawn.
    """

    def __init__(self, trainer: Any, sampling: Sampling) -> None:
        self._trainer = trainer
        self._sampling = sampling
        self.epoch = 0
        """Epoch of the next batch."""
        self.batches = 0
        """Batches of that epoch that this rank has trained on."""
        self.stopped_early = False
        """Whether a callback, such as early stopping, has ended the training that was restored."""
        self.restored: dict[str, Any] | None = None
        """The state that was loaded."""
        self.left_out = 0
        """Steps whose data are left out before the next step."""
        self.has_left_out = False
        """Whether data were left out before. Checkpoints of the Trainer may then be of steps that were undone."""
        # Only these can: others begin an epoch anew after a restart, or train on samples that they have generated.
        if not (trainer.args.ignore_data_skip or hasattr(trainer, "_buffered_inputs")):
            self.skip = self._skip
        self._history: list[tuple[dict[str, Any], str]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON, and the loss that is not logged yet as the live tensor."""
        trainer = self._trainer
        values = {
            "epoch": self.epoch,
            "stopped_early": trainer.control.should_training_stop
            and trainer.state.global_step < trainer.state.max_steps,
            "left_out": self.left_out,
            "has_left_out": self.has_left_out,
            "samples": self.batches * self._samples_per_batch(),
            "state": {name: getattr(trainer.state, name) for name in KEPT_FIELDS},
            "counts": {name: getattr(trainer, name) for name in self._names_of_counts()},
            "callbacks": [[type(one).__name__, one.state()] for one in self._exportable()],
        }
        return {
            "values": json.dumps(values, default=_plain),
            "history": self._encoded_history(),
            "metrics": json.dumps(getattr(trainer, "_metrics", None), default=_plain),
            "loss": _unlogged_loss(trainer),
            "sampling": self._sampling.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the state. :meth:`apply` and :meth:`apply_counts` put it into the Trainer."""
        self.restored = {**state, **json.loads(state["values"])}
        self.restored["log_history"] = json.loads(state["history"])
        self.left_out = self.restored.get("left_out", 0)  # older states have none
        self.has_left_out = self.restored.get("has_left_out", False)

    def apply(self, batches_of_update: int) -> None:
        """Put the restored state into the Trainer, and find the batch to continue with.

        Args:
            batches_of_update: micro-batches of one step. The position is rounded down to whole steps of this size.
        """
        saved, trainer = self._loaded(), self._trainer
        for name, value in saved["state"].items():
            setattr(trainer.state, name, value)
        trainer.state.log_history[:] = saved["log_history"]
        self._load_callbacks(saved["callbacks"])
        self._sampling.load_state_dict(saved["sampling"])
        self.epoch = saved["epoch"]
        self.stopped_early = saved["stopped_early"]
        if not trainer.args.ignore_data_skip:
            self.batches = saved["samples"] // self._samples_per_batch() // batches_of_update * batches_of_update

    def _skip(self, steps: int) -> None:
        """Leave out the data of the next ``steps`` steps."""
        self.left_out += steps
        self.has_left_out = True

    def leave_out(self, batches_of_update: int, updates_of_epoch: int, batches_of_epoch: int) -> bool:
        """Move the position past the data that are left out. Return whether the epoch ends with them.

        The data of the next epoch stay left out until it begins. The last step of an epoch may have fewer batches.
        """
        updates = self.batches // batches_of_update
        left_out = min(self.left_out, updates_of_epoch - updates)
        self.left_out -= left_out
        self.batches = min((updates + left_out) * batches_of_update, batches_of_epoch)
        return updates + left_out >= updates_of_epoch

    def apply_counts(self) -> None:
        """Put back the counts that the Trainer has just set to zero."""
        saved, trainer = self._loaded(), self._trainer
        for name, value in saved["counts"].items():
            setattr(trainer, name, value)
        trainer._tr_loss = saved["loss"].clone()
        metrics = json.loads(saved["metrics"])
        if metrics is not None and hasattr(trainer, "_metrics"):
            for mode, lists in metrics.items():
                trainer._metrics[mode].clear()
                trainer._metrics[mode].update(lists)

    def _loaded(self) -> dict[str, Any]:
        if self.restored is None:
            raise RuntimeError("nothing was restored")
        return self.restored

    def _names_of_counts(self) -> list[str]:
        names = (*TRAINER_COUNTS, *TRAINER_STARTS, *TRL_COUNTS)
        return [name for name in names if hasattr(self._trainer, name)]

    def _samples_per_batch(self) -> int:
        args = self._trainer.args
        return int(args.train_batch_size * args.world_size)

    def _exportable(self) -> list[Any]:
        from transformers.trainer_callback import ExportableState

        trainer = self._trainer
        return [
            one for one in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(one, ExportableState)
        ]

    def _load_callbacks(self, saved: list[list[Any]]) -> None:
        """Set what callbacks have counted. Trainer's own way would replace the objects that the script has."""
        left = [tuple(one) for one in saved]
        for callback in self._exportable():
            found = next((one for one in left if one[0] == type(callback).__name__), None)
            if found is None:
                continue
            left.remove(found)
            values = found[1]["args"] if callback is self._trainer.control else found[1]["attributes"]
            for name, value in values.items():
                setattr(callback, name, value)

    def _encoded_history(self) -> str:
        """Encode the log. A line is encoded once, because a long run has many and every snapshot has all."""
        live, known = self._trainer.state.log_history, self._history
        if len(known) > len(live) or (known and known[-1][0] is not live[len(known) - 1]):
            known.clear()  # it is another log
        known += [(line, json.dumps(line, default=_plain)) for line in live[len(known) :]]
        return f"[{','.join(text for _, text in known)}]"


def _unlogged_loss(trainer: Any) -> Any:
    """Return the live sum of the losses that no line of the log has. Reading its value would wait for the GPU."""
    import torch

    loss = getattr(trainer, "_tr_loss", None)
    return torch.zeros((), device=trainer.args.device) if loss is None else loss


def _plain(value: Any) -> Any:
    """Return a number of numpy or torch as Python's own, and anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)
