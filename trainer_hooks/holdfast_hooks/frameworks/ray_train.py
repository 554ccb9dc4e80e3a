"""Watches the workers of a Ray Train run: one line in the training function.

::

    def train_loop_per_worker(config):
        with watch_worker() as watch:
            for batch in watch.batches(loader):
                ...

Ray's own processes start the workers, so this is for ``holdfast observe``. Holdfast saves and restores nothing: after a
failure Ray starts new workers, and they load the checkpoint that ``ray.train.report()`` has kept.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import holdfast_hooks
from holdfast_hooks.hook_errors import ConfigurationError
from holdfast_hooks.hooks import Hooks
from holdfast_hooks.phases import Phase
from holdfast_proto.limits import MOST_WITNESS_WORDS, WITNESS_WORDS_CHARACTERS
from holdfast_proto.rank_context import VARIABLE, RankContext
from holdfast_proto.v1.session_pb2 import RankWords, WitnessWords

try:
    from ray.train import UserCallback
except ImportError:  # an older Ray, or its first version of Train: the workers are watched all the same
    UserCallback = None

_logger = logging.getLogger("holdfast_hooks")

Batch = TypeVar("Batch")

REPORTED = {
    "loss": ("loss", "train_loss", "train/loss"),
    "validation_loss": ("eval_loss", "eval/loss", "val_loss", "val/loss", "validation_loss"),
    "grad_norm": ("grad_norm", "train/grad_norm"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate"),
    "tokens": ("tokens",),
}
"""Numbers that Holdfast watches, and the names under which scripts report them. The first that is there counts."""
_TELL_S = 2.0
_IDS = ("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:")
_ONLY_OBSERVE = (
    "Ray Train starts its workers itself, so `holdfast run` cannot start or restart them: put `holdfast observe --` in"
    " front of the command that starts the driver"
)


def watch_worker() -> "WorkerWatch":
    """Connect this worker of Ray Train to Holdfast. Use it in a ``with`` statement, in the training function.

    Without Holdfast the ``with`` statement changes nothing. Raises ConfigurationError under ``holdfast run``, or if
    the agent's context is not valid.
    """
    _refuse_run()
    return WorkerWatch(holdfast_hooks.attach(check_data_position=False))


class HoldfastUserCallback(UserCallback or object):  # type: ignore[misc]
    """Adds what Ray says of dead workers to the incident: ``RunConfig(callbacks=[HoldfastUserCallback()])``.

    Ray starts the workers and collects their ends, so that Holdfast often does not know why a worker has died. Make the
    callback in the driver's process. Without Holdfast it does nothing.
    """

    def __init__(self) -> None:
        # Ray copies the callback into its controller. In a cluster that ran before, that lacks the variable.
        self._context = os.environ.get(VARIABLE, "")

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, BaseException]) -> None:  # noqa: ARG002
        """Pass on why workers have ended. An error in here would end the run, so there is none."""
        if not self._context:
            return
        try:
            tell_agent(self._context, worker_exceptions)
        except Exception as error:  # noqa: BLE001 - see above
            code = getattr(error, "code", None)  # of gRPC
            what = code() if callable(code) else type(error).__name__
            _logger.warning("what Ray says of its workers does not reach Holdfast: %s", what)


def tell_agent(context: str, worker_exceptions: Mapping[int, BaseException]) -> None:
    """Tell the agent why workers have ended. ``context``: value of the context's variable.

    Raises ValueError if the context is not valid, and RpcError if no agent answers.
    """
    from holdfast_hooks.session.own_grpc import grpc  # first: it decides how gRPC is imported
    from holdfast_proto.v1.session_pb2_grpc import RankAgentStub

    observed = RankContext.from_environment({VARIABLE: context}, rank=0)
    if observed is None:
        return
    by_text: dict[str, list[int]] = {}
    for rank, error in sorted(worker_exceptions.items()):
        by_text.setdefault(_one_line(error), []).append(rank)
    words = [RankWords(ranks=ranks, text=text) for text, ranks in by_text.items()]
    said = WitnessWords(run=observed.run, witness="Ray Train", words=words[:MOST_WITNESS_WORDS])
    with grpc.insecure_channel(observed.agent) as channel:
        RankAgentStub(channel).Tell(said, timeout=_TELL_S)  # type: ignore[no-untyped-call]


def _one_line(error: BaseException) -> str:
    """Return why a worker has ended, as one short line of printable characters.

    Of a worker that is gone, Ray wraps the reason behind a long description of the worker, and names its ids first.
    """
    reason = getattr(error, "health_check_failure", None) or error
    lines = [line.strip() for line in str(reason).splitlines()]
    told = [line for line in lines if line and not line.startswith(_IDS)]
    text = " ".join([f"{type(reason).__name__}:", *told])
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= WITNESS_WORDS_CHARACTERS else f"{shown[: WITNESS_WORDS_CHARACTERS - 1]}…"


def reach_workers(run_config: Any) -> Any:
    """Return a ``ray.train.RunConfig`` with which the workers of a cluster that runs already get Holdfast's context.

    It also has a :class:`HoldfastUserCallback`. A cluster that the driver starts itself needs no such line: its workers
    inherit the driver's environment. Without Holdfast this returns ``run_config`` itself. Raises ConfigurationError
    under ``holdfast run``.
    """
    if VARIABLE not in os.environ:
        return run_config
    _refuse_run()
    given = run_config.worker_runtime_env or {}
    variables = {**given.get("env_vars", {}), VARIABLE: os.environ[VARIABLE]}
    callbacks = list(run_config.callbacks or [])
    if UserCallback is not None and not any(isinstance(callback, HoldfastUserCallback) for callback in callbacks):
        callbacks.append(HoldfastUserCallback())
    return dataclasses.replace(run_config, callbacks=callbacks, worker_runtime_env={**given, "env_vars": variables})


class WorkerWatch:
    """The steps of one worker. :func:`watch_worker` makes it. Only the thread of the training function uses it.

    A step goes from one batch to the next, so it includes what the script does between them: the optimizer, a report,
    the fetch of the next batch. The last step of a pass over the data ends when the next pass begins, or with the
    ``with`` statement.
    """

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        """For ``hooks.report(loss=...)`` and ``hooks.enter(...)``."""
        self._is_in_step = False
        self._phase = Phase.IDLE
        """Phase to return to after a report."""
        self._put_back: Callable[[], None] = _nothing

    def batches(self, loader: Iterable[Batch], *, per_step: int = 1) -> Iterator[Batch]:
        """Yield the batches of ``loader``, and count the steps.

        Args:
            loader: a DataLoader, what ``iter_torch_batches()`` returns, or any other iterable of batches.
            per_step: number of batches in one step, if the script accumulates gradients.
        """
        self._enter(Phase.DATA)
        for index, batch in enumerate(loader):
            if index % per_step == 0:
                self._begin_step()
            self._enter(Phase.FORWARD_BACKWARD)
            yield batch
            self._enter(Phase.DATA)
        self._enter(Phase.IDLE)

    def __enter__(self) -> "WorkerWatch":
        if self.hooks.is_open:
            self._follow_reports()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back()
        if error is None:
            self._end_step()
        self.hooks.__exit__(kind, error, trace)

    def _begin_step(self) -> None:
        self._end_step()
        self.hooks.begin_step()
        self._is_in_step = True

    def _end_step(self) -> None:
        if self._is_in_step:
            self._is_in_step = False
            self.hooks.end_step()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self.hooks.enter(phase)

    def _follow_reports(self) -> None:
        """Put a function in front of the one that ``ray.train.report()`` calls, under whatever name it was imported."""
        try:
            from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils

            utilities = get_train_fn_utils()
            report = utilities.report
        except (ImportError, AttributeError, RuntimeError) as error:
            _logger.warning("numbers of ray.train.report() are not passed on with this version of Ray: %r", error)
            return

        @functools.wraps(report)
        def noted_report(*arguments: Any, **options: Any) -> Any:
            self._note(options.get("metrics", arguments[0] if arguments else None))
            # Ray lets no worker go on before all have reported, and its controller looks every two seconds. So this
            # takes long for good reasons, with or without a checkpoint.
            self.hooks.enter(Phase.CHECKPOINT)
            try:
                return report(*arguments, **options)
            finally:
                self.hooks.enter(self._phase)

        utilities.report = noted_report
        self._put_back = functools.partial(_forget, utilities, noted_report)

    def _note(self, metrics: Any) -> None:
        if not isinstance(metrics, Mapping):
            return
        found = {
            ours: next((metrics[name] for name in names if metrics.get(name) is not None), None)
            for ours, names in REPORTED.items()
        }
        self.hooks.report(**found)
        self.hooks.log(metrics)


def _refuse_run() -> None:
    try:
        context = RankContext.from_environment()
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if context is not None and not context.observed:
        raise ConfigurationError(_ONLY_OBSERVE)


def _forget(utilities: Any, noted_report: Any) -> None:
    """Remove our function from Ray's object, unless something else has replaced it in the meantime."""
    if vars(utilities).get("report") is noted_report:
        del utilities.report


def _nothing() -> None:
    """Put nothing back: no function was replaced."""
