"""The steps of a Hugging Face Trainer: where they begin and end, and how its loop continues from a restored state."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from accelerate import skip_first_batches

import holdfast_hooks
from holdfast_hooks.frameworks.trainer_position import TrainerPosition
from holdfast_hooks.identity import Identity
from holdfast_hooks.phases import Phase
from holdfast_hooks.restore.starting_point import has_starting_point
from holdfast_hooks.state.encoding import Stateful
from holdfast_hooks.state.sampling import Sampling, freeze_random, thaw_random
from holdfast_proto.rank_context import RankContext

_log = logging.getLogger("holdfast")

TRAINER_METHODS = (
    "_inner_training_loop",
    "_init_training_state",
    "_prepare_for_training",
    "_load_rng_state",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_scaler",
    "_maybe_log_save_evaluate",
    "_run_epoch",
    "set_initial_training_values",
    "training_step",
)
"""Methods of Trainer that this wraps or calls, most of them private. A contract test names those that are missing. The
attributes are in ``trainer_position.py``."""
_RESUMED = "holdfast"
"""What the Trainer is told to resume from, in place of a folder. It only asks whether there is one."""


class _DataLeftOutError(Exception):
    """Ends a pass over the data between two steps, so that it begins again behind data that are left out."""


class TrainerSteps:
    """Connects one ``train()`` to Holdfast. Training thread only.

    The Trainer decides where its loop begins before it has a model on its device, an optimizer and a scheduler. A state
    is restored into these. So the Trainer is made to prepare them first, when it is asked for the beginning.
    """

    def __init__(self, trainer: Any, state: Mapping[str, Stateful]) -> None:
        if taken := _RESERVED & state.keys():
            raise holdfast_hooks.ConfigurationError(
                f"HoldfastCallback(state=...): the name {min(taken)} is taken by the Trainer's own state; use another"
            )
        self._trainer = trainer
        self._own_state = state
        self._sampling = Sampling()
        self._position = TrainerPosition(trainer, self._sampling)
        self._hooks: holdfast_hooks.Hooks | None = None
        self._context: RankContext | None = None
        self._prepared: Any = None
        self._random: dict[str, Any] | None = None
        """The random states of the restored step, until training has begun."""
        self._updates_per_epoch = 0
        self._updates = 0
        """Optimizer steps of this epoch."""
        self._open = False
        self._trained = False
        """Whether the open step has changed the parameters."""
        self._epoch_over = False
        self._loss: Any = None
        self._tokens = 0
        self._tokens_before = 0

    def run(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the Trainer's inner loop; return its result."""
        trainer = self._trainer
        context = self._context = RankContext.from_environment(rank=Identity.from_environment().rank)
        # A rank of another launcher learns later whether there is a state. To resume without one changes nothing.
        may_learn = context is not None and context.restores and context.saves
        continues = may_learn or (context is not None and has_starting_point(context))
        if continues and kwargs.get("resume_from_checkpoint") is None:
            kwargs["resume_from_checkpoint"] = _RESUMED
        wrappers: dict[str, Callable[..., Any]] = {
            "set_initial_training_values": self._note_loader,
            "_init_training_state": self._init_training_state,
            "_prepare_for_training": self._take_prepared,
            "_load_rng_state": self._load_rng_state,
            "_run_epoch": self._run_epoch,
            "_maybe_log_save_evaluate": self._log_save_evaluate,
            "training_step": self._training_step,
        }
        own = {name: vars(trainer)[name] for name in wrappers if name in vars(trainer)}
        evaluates_first = trainer.args.eval_on_start
        for name, wrapper in wrappers.items():
            setattr(trainer, name, _bind(wrapper, getattr(trainer, name)))
        try:
            return inner(*args, **kwargs)
        finally:
            trainer.args.eval_on_start = evaluates_first
            for name in wrappers:
                delattr(trainer, name)
            vars(trainer).update(own)

    def _note_loader(self, original: Callable[..., Any], args: Any, loader: Any) -> Any:
        self._sampling.loader = loader
        return original(args, loader)

    def _init_training_state(self, original: Callable[..., Any], *args: Any) -> tuple[int, int]:
        """Restore all, and return the epoch and the batch at which training continues."""
        max_steps, updates_per_epoch, epochs, resume, trial = args
        trainer = self._trainer
        own = None if resume == _RESUMED else resume
        beginning: tuple[int, int] = original(max_steps, updates_per_epoch, epochs, own, trial)
        self._updates_per_epoch = updates_per_epoch
        self._prepared = trainer._prepare_for_training.original(max_steps, self._sampling.loader, own)
        self._sampling.loader = self._prepared[1]
        self._hooks = hooks = holdfast_hooks.attach(state=self._state(self._context), check_data_position=False)
        step = hooks.restore(until=max_steps)
        updates = trainer.args.gradient_accumulation_steps
        self._position.epoch, self._position.batches = beginning
        if self._position.restored is not None:
            if own is not None and step < trainer.state.global_step and not self._position.has_left_out:
                self._reload(own, step)
            else:
                self._random = freeze_random()
                self._position.apply(updates)
                trainer.args.eval_on_start = False  # it came before the first step
                _log.info("HoldfastCallback: continuing after step %d", step - 1)
                is_over = step >= max_steps or self._position.stopped_early
                beginning = (epochs, 0) if is_over else (self._position.epoch, self._position.batches)
        self._updates = self._position.batches // updates
        self._tokens_before = trainer.state.num_input_tokens_seen
        return beginning

    def _reload(self, folder: str, step: int) -> None:
        """Load the script's own checkpoint again: it is newer than the state that Holdfast has."""
        trainer = self._trainer
        _log.warning(
            "HoldfastCallback: resume_from_checkpoint=%s is at step %d, Holdfast's state at step %d: the newer one is"
            " used",
            folder,
            trainer.state.global_step,
            step,
        )
        self._position.restored = None
        trainer._load_from_checkpoint(folder, trainer.model_wrapped if trainer.is_fsdp_enabled else None)
        trainer._load_optimizer_and_scheduler(folder)
        trainer._load_scaler(folder)

    def _take_prepared(self, original: Callable[..., Any], *args: Any) -> Any:
        prepared, self._prepared = self._prepared, None
        return original(*args) if prepared is None else prepared

    def _state(self, context: RankContext | None) -> dict[str, Any]:
        trainer = self._trainer
        if trainer.is_deepspeed_enabled or (
            trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.fsdp_version != 2
        ):
            if context is not None and context.saves:
                also = f" and nothing of state=({', '.join(self._own_state)})" if self._own_state else ""
                _log.warning(
                    "HoldfastCallback saves nothing of this training%s, because DeepSpeed and FSDP 1 spread the state"
                    " over the ranks: set save_steps, and resume_from_checkpoint after a restart",
                    also,
                )
            return {}
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        state: dict[str, Any] = {
            **self._own_state,
            "model": trainer.model,
            "optimizer": _named(optimizer, trainer.model),
            "scheduler": trainer.lr_scheduler,
            "trainer": self._position,
        }
        if trainer.accelerator.scaler is not None:
            state["scaler"] = trainer.accelerator.scaler
        return state

    def _load_rng_state(self, original: Callable[..., Any], checkpoint: str | None) -> None:
        if self._random is not None:
            self._thaw()
        elif checkpoint != _RESUMED:
            original(checkpoint)

    def _thaw(self) -> None:
        if self._random is not None:
            thaw_random(self._random)
            self._random = None

    def _run_epoch(self, original: Callable[..., Any], **given: Any) -> None:
        """Run an epoch. The Trainer can skip data only at its beginning, so it begins again where data are left out."""
        while True:
            if self._position.left_out:
                given |= self._leave_out(given["train_dataloader"], given["steps_in_epoch"])
                given["epochs_trained"] = given["epoch"]
            try:
                original(**given)
            except _DataLeftOutError:
                continue
            return

    def _leave_out(self, loader: Any, batches_of_epoch: int) -> dict[str, Any]:
        """Move past data that are left out; return what the Trainer gets, as after a restart."""
        position, batches_of_update = self._position, self._trainer.args.gradient_accumulation_steps
        if position.batches:
            self._random = freeze_random() if self._random is None else self._random
            self._sampling.begin_again()
        else:
            self._random = None  # the epoch has begun with it, and draws its order from it
        is_over = position.leave_out(batches_of_update, self._updates_per_epoch, batches_of_epoch)
        self._updates = self._updates_per_epoch if is_over else position.batches // batches_of_update
        if is_over:
            for _ in skip_first_batches(loader, position.batches):
                pass  # no batch is left, but samplers draw the order to its end: that of the next epoch follows from it
            self._thaw()
        else:
            self._begin()
        return {"steps_trained_in_current_epoch": position.batches, "resume_from_checkpoint": _RESUMED}

    def train_begins(self) -> None:
        """Put the Trainer's counts back, which it has set to zero."""
        if self._position.restored is not None:
            self._position.apply_counts()

    def epoch_begins(self) -> None:
        """Have the order of the samples drawn as at the first time, if the epoch was trained in part."""
        position = self._position
        if self._random is not None and position.batches:
            self._sampling.begin_again()
        else:
            if self._random is not None:
                thaw_random(self._random)
                self._sampling.restore_samplers()
            self._sampling.note()
        self._epoch_over = False
        self._begin()

    def batches_fetched(self) -> None:
        """Note that the batches of the step are there."""
        if self._hooks is not None:
            self._hooks.enter(Phase.FORWARD_BACKWARD)

    def batch_ends(self) -> None:
        """Count a micro-batch."""
        self._position.batches += 1

    def optimizer_begins(self) -> None:
        """Note that gradients are complete."""
        if self._hooks is not None:
            self._hooks.enter(Phase.OPTIMIZER)

    def step_trained(self) -> None:
        """Note that the optimizer has done its step."""
        self._position.batches += 1
        self._updates += 1
        self._trained = True

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Report the loss of an evaluation."""
        if self._hooks is not None and self._open:
            loss = metrics.get("eval_loss")
            self._hooks.report(validation_loss=None if loss is None else float(loss))
            self._hooks.enter(Phase.CHECKPOINT)

    def logged(self, logs: Mapping[str, Any]) -> None:
        """Show what the Trainer logs, under its own names. What Holdfast watches is reported in every step."""
        if self._hooks is not None:
            self._hooks.log(logs)

    def epoch_ends(self) -> None:
        """Note that the epoch's own log, evaluation and checkpoint come next."""
        self._epoch_over = True

    def close(self) -> None:
        """Leave training."""
        if self._hooks is not None:
            self._hooks.close()

    def _training_step(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = inputs.get("input_ids") if hasattr(inputs, "get") else None
        loss = original(model, inputs, *args, **kwargs)
        self._loss = loss if self._loss is None else self._loss + loss
        if tokens is not None:
            self._tokens += tokens.numel()
        return loss

    def _log_save_evaluate(
        self, original: Callable[..., Any], tr_loss: Any, grad_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Report the step, let the Trainer log, evaluate and save it, and end it: its state is complete then."""
        hooks, control = self._hooks, self._trainer.control
        if hooks is None:
            original(tr_loss, grad_norm, *args, **kwargs)
            return
        if self._trained and not self._epoch_over:
            self._report(hooks, grad_norm, kwargs.get("learning_rate"))
        if control.should_evaluate:
            hooks.enter(Phase.EVAL)
        elif control.should_save:
            hooks.enter(Phase.CHECKPOINT)
        original(tr_loss, grad_norm, *args, **kwargs)
        if self._epoch_over:
            # A loop that stops inside an epoch leaves its rest to a run with more steps.
            if self._is_epoch_complete() or not control.should_training_stop:
                self._position.epoch, self._position.batches, self._updates = self._position.epoch + 1, 0, 0
                self._sampling.note_samplers()
            self._end(hooks)
        elif not (self._is_epoch_complete() or control.should_training_stop):
            # The last step of an epoch ends after what the Trainer does for the epoch. A restart would leave that out.
            self._end(hooks)
            if not control.should_training_stop:
                self._begin()
                if self._position.left_out:
                    raise _DataLeftOutError

    def _is_epoch_complete(self) -> bool:
        return self._updates >= self._updates_per_epoch or bool(self._trainer.control.should_epoch_stop)

    def _report(self, hooks: "holdfast_hooks.Hooks", grad_norm: Any, learning_rate: float | None) -> None:
        trainer = self._trainer
        tokens = self._tokens
        if trainer.args.include_num_input_tokens_seen != "no":
            seen = int(trainer.state.num_input_tokens_seen)
            tokens, self._tokens_before = (seen - self._tokens_before) // trainer.args.world_size, seen
        overflow = trainer.accelerator.optimizer_step_was_skipped if trainer.accelerator.scaler is not None else None
        hooks.report(
            loss=self._loss, grad_norm=grad_norm, learning_rate=learning_rate, tokens=tokens or None, overflow=overflow
        )
        self._loss, self._tokens = None, 0

    def _begin(self) -> None:
        # A step whose data come after those that are left out begins behind them: the training may end before that.
        if self._hooks is not None and not self._open and not self._position.left_out:
            self._hooks.begin_step(self._trainer.state.global_step)
            self._hooks.enter(Phase.DATA)
            self._open = True

    def _end(self, hooks: "holdfast_hooks.Hooks") -> None:
        if not self._trained:
            return
        self._open = self._trained = False
        if hooks.end_step():
            self._trainer.control.should_training_stop = True


_RESERVED = {"model", "optimizer", "scheduler", "trainer", "scaler"}


def _bind(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def bound(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    bound.original = original  # type: ignore[attr-defined]
    return bound


def _named(optimizer: Any, model: Any) -> Any:
    """Return the optimizer's state by names, or by numbers if it has parameters that the model lacks."""
    try:
        return holdfast_hooks.by_name(optimizer, model)
    except ValueError:
        return optimizer
