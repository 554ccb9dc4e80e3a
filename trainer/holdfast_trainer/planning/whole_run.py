"""A whole run: its time and price, what further replicas gain, and what failures cost."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast_trainer import config_checks, flops
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.planning.formulas import Formula
from holdfast_trainer.planning.hardware import Cluster
from holdfast_trainer.planning.parameters import rank_parameters
from holdfast_trainer.planning.plan import Plan, make_plan, pipeline_places
from holdfast_trainer.planning.state_memory import state_bytes_per_parameter

_MTBF = Formula("time between failures of the run", "s", "gpu_hours_to_failure * 3600 / gpus")
_COPY = Formula("copy of the state to the host", "s", "bytes_per_parameter * parameters / host_rate")
_YOUNG = Formula("checkpoint interval by Young", "s", "sqrt(2 * checkpoint_s * mtbf_s)")
_DALY = Formula(
    "checkpoint interval by Daly",
    "s",
    "sqrt(2 * checkpoint_s * mtbf_s)"
    " * (1 + sqrt(checkpoint_s / (2 * mtbf_s)) / 3 + checkpoint_s / (2 * mtbf_s) / 9) - checkpoint_s",
)
_SAVING = Formula("share of time for checkpoints", "share", "checkpoint_s / (interval_s + checkpoint_s)")
_LOST = Formula(
    "share of time lost to failures", "share", "min(1, ((interval_s + checkpoint_s) / 2 + restart_s) / mtbf_s)"
)
_GOODPUT = Formula("goodput", "share", "(1 - saving) * (1 - lost)")
_TRAINING_FLOP = Formula("operations of the run", "FLOP", "flop_per_token * tokens")
_RUN = Formula("time of the run", "s", "operations / (gpus * peak * mfu) / goodput")
_PRICE = Formula("price of the run", "", "gpus * run_s / 3600 * gpu_hour_price")


@dataclass(frozen=True)
class Failures:
    """The cost of failures, in seconds and shares of time."""

    mtbf_s: float
    """Mean time between failures of the whole run."""
    checkpoint_s: float
    """Time for which a checkpoint stops training."""
    young_s: float
    """Best interval of checkpoints by Young, "A First Order Approximation to the Optimum Checkpoint Interval", 1974."""
    daly_s: float
    """The same by Daly, "A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps", 2006."""
    interval_s: float
    """Daly's interval, or a step if that is longer."""
    saving: float
    lost: float
    """Share for restarts, and for steps done again: half of an interval for each failure, on average."""
    goodput: float
    """Share of time that moves the run forward, with this interval."""


@dataclass(frozen=True)
class WholeRun:
    """A run over a number of tokens."""

    tokens: float
    operations: float
    """Operations of the model, as MFU counts them."""
    duration_s: float | None
    """Time with failures and checkpoints; None: it fails too often to come to an end."""
    price: float
    """0: no price of a GPU is known, or the run does not end."""


@dataclass(frozen=True)
class Scale:
    """The same layout with another number of data-parallel replicas, and the same batch."""

    gpus: int
    tokens_per_s: float
    efficiency: float
    """Tokens/s of a GPU, relative to the fewest GPUs."""


def failures(plan: Plan, cluster: Cluster) -> Failures:
    """Return what failures cost a run of this plan."""
    config = plan.config
    hardware = config.hardware
    mtbf_s = _MTBF(gpu_hours_to_failure=hardware.gpu_hours_to_failure, gpus=config.parallel.ranks)
    checkpoint_s = hardware.checkpoint_s or _COPY(
        bytes_per_parameter=state_bytes_per_parameter(config),
        parameters=max(rank_parameters(config, stages).sharded_elements for stages in pipeline_places(config)),
        host_rate=cluster.host_bytes_per_s,
    )
    both = {"checkpoint_s": checkpoint_s, "mtbf_s": mtbf_s}
    # Daly's series holds for checkpoints that are short. A longer one is taken once between two failures.
    daly_s = _DALY(**both) if checkpoint_s < 2 * mtbf_s else mtbf_s
    interval_s = max(daly_s, plan.time.total_s)
    saving = _SAVING(checkpoint_s=checkpoint_s, interval_s=interval_s)
    lost = _LOST(**both, interval_s=interval_s, restart_s=hardware.restart_s)
    goodput = _GOODPUT(saving=saving, lost=lost)
    return Failures(mtbf_s, checkpoint_s, _YOUNG(**both), daly_s, interval_s, saving, lost, goodput)


def whole_run(plan: Plan, cluster: Cluster, *, tokens: float, goodput: float) -> WholeRun:
    """Return time and price of training on ``tokens`` tokens, if ``goodput`` of the time moves the run forward."""
    config, gpus = plan.config, plan.config.parallel.ranks
    per_token = flops.flops_per_token(config.model, sequence=config.data.sequence)
    operations = _TRAINING_FLOP(flop_per_token=per_token, tokens=tokens)
    if goodput <= 0.0:
        return WholeRun(tokens, operations, None, 0.0)
    peak = cluster.peak_flops_per_s(config.precision)
    run_s = _RUN(operations=operations, gpus=gpus, peak=peak, mfu=plan.mfu, goodput=goodput)
    hour_price = config.hardware.gpu_hour_price
    price = _PRICE(gpus=gpus, run_s=run_s, gpu_hour_price=hour_price) if hour_price else 0.0
    return WholeRun(tokens, operations, run_s, price)


def scaling(plan: Plan, cluster: Cluster) -> Iterator[Scale]:
    """Yield the layout with 1, 2, 4 ... of its replicas, and all of them. The batch and the microbatches stay.

    Replicas may share experts or state: then the fewest are as many as do.
    """
    whole = plan.config
    known, first = config_checks.problems(whole), None
    for dp in (count for count in range(1, whole.parallel.dp + 1) if _is_step(count, whole.parallel.dp)):
        fewer = _with_replicas(whole, dp)
        if any(problem not in known for problem in config_checks.problems(fewer)):
            continue
        smaller = make_plan(fewer, cluster, pipeline_places(whole))
        gpus = smaller.config.parallel.ranks
        tokens_per_s = whole.train.global_batch * whole.data.sequence / smaller.time.total_s
        efficiency = tokens_per_s / gpus / (first.tokens_per_s / first.gpus) if first is not None else 1.0
        first = first or Scale(gpus, tokens_per_s, efficiency)
        yield Scale(gpus, tokens_per_s, efficiency)


def _is_step(count: int, all_replicas: int) -> bool:
    return all_replicas % count == 0 and (count & (count - 1) == 0 or count == all_replicas)


def _with_replicas(config: TrainerConfig, dp: int) -> TrainerConfig:
    """Return the configuration with ``dp`` replicas, each of which computes more of the batch."""
    parallel = config.parallel
    microbatches = parallel.microbatches * parallel.dp // dp
    changes = {"dp": dp, "dp_shard": min(parallel.dp_shard, dp), "microbatches": microbatches}
    return config.model_copy(update={"parallel": parallel.model_copy(update=changes)})
