"""Losses, gradients, samples and weights that are not what they were, or not finite."""

from holdfast_core.naming import listed, ranks_named
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import GRADIENT


def loss_spike(verdict: store.Verdict) -> str:
    """Return how high the loss is, since when, and against what; after a restart, that the run has resumed badly."""
    detail, step = verdict.loss_spike, verdict.step
    if detail.HasField("resumed_after"):
        return (
            f"the run resumed badly after step {detail.resumed_after}: the loss is {detail.loss:.4g} at step {step},"
            f" and was {detail.level:.4g} before the restart: the state or the data may be other than before"
        )
    since = f", since step {detail.since_step}" if detail.HasField("since_step") else ""
    return (
        f"loss spike at step {step}{since}: {detail.loss:.4g}, {detail.zscore:.1f} robust standard deviations above its"
        f" level of {detail.level:.4g}, and high in {detail.high_steps} of {detail.of_steps} steps"
    )


def loss_rise(verdict: store.Verdict) -> str:
    """Return from which level to which the loss has risen, and between which steps."""
    detail = verdict.loss_rise
    return (
        f"the loss has risen slowly: its median over {detail.losses} losses is {detail.loss:.4g} at step"
        f" {verdict.step}, and was {detail.lowest:.4g} at step {detail.lowest_step}"
    )


def loss_divergence(verdict: store.Verdict) -> str:
    """Return from which level to which the loss has gone, and for how long it has not come back."""
    detail = verdict.loss_divergence
    return (
        f"the loss has diverged: its median is {detail.loss:.4g} at step {verdict.step}, was {detail.lowest:.4g} at"
        f" step {detail.lowest_step}, and has not come back for {detail.losses} losses"
    )


def missing_loss(verdict: store.Verdict) -> str:
    """Return since when no loss was reported, and what that may mean."""
    detail = verdict.missing_loss
    missing = f"no loss has been reported since step {detail.newest_step}"
    if detail.norm_steps:
        norms = f"although {detail.norm_steps} steps after it reported a gradient norm"
        return f"{missing}, {norms}: does the training loop still report the loss?"
    if detail.steps:
        return f"{missing}, in {detail.steps} steps: the run reports it much less often now, or no longer"
    return missing


def gradient_explosion(verdict: store.Verdict) -> str:
    """Return how large the gradient norm is, and against what."""
    detail = verdict.gradient_explosion
    return (
        f"early warning: the gradient norm is {detail.norm:.3g} at step {verdict.step}, {detail.median_ratio:.3g} times"
        f" its median, and was high in {detail.high_steps} of {detail.of_steps} steps: the loss may follow"
    )


def overflow(verdict: store.Verdict) -> str:
    """Return how many steps were skipped in a row."""
    detail = verdict.overflow
    at_scale = f" at a loss scale of {detail.loss_scale:g}" if detail.HasField("loss_scale") else ""
    skipped = f"the last {detail.steps} steps, up to step {verdict.step}, were all skipped{at_scale}"
    return f"{skipped}: gradients are not finite"


def duplicate_samples(verdict: store.Verdict) -> str:
    """Return who trained twice on the same samples."""
    detail = verdict.duplicate_samples
    if detail.earlier_step == verdict.step:
        return f"data-parallel indices {listed(detail.indices)} trained on the same samples in step {verdict.step}"
    return f"step {verdict.step} trained again on samples of step {detail.earlier_step}"


def corruption(verdict: store.Verdict) -> str:
    """Return who holds other values of what, and why they should be equal if nothing but their history shows it.

    If a replay has shown it, return what differed between the runs of the step, and whether the state is good.
    """
    detail, who = verdict.corruption, ranks_named(verdict.culprits)
    if detail.vote:
        return _of_replay(verdict)
    part = detail.part or "a sample of the parameters"
    more = f" and {detail.more_parts} more" if detail.more_parts else ""
    where = f"of {part}{more} at the end of step {verdict.step}"
    before = f", and the same at the end of step {detail.equal_step}" if detail.HasField("equal_step") else ""
    if detail.has_majority:
        verb = "holds" if len(verdict.culprits) == 1 else "hold"
        all_before = f"; at the end of step {detail.equal_step} all held the same" if before else ""
        return f"{who} {verb} other values than the replicas' majority {where}{all_before}"
    if before:
        either = "the memory of either is corrupted, or the training loop no longer keeps them equal"
        return f"{who} hold different values {where}{before}: {either}"
    return f"{who} hold different values {where}: without a majority, it is not known which are wrong"


def _of_replay(verdict: store.Verdict) -> str:
    detail, is_one = verdict.corruption, len(verdict.culprits) == 1
    if detail.vote == session.REPLAY_VOTE_NOT_TAKEN:
        other = (
            f"{ranks_named(verdict.culprits)} had another state before step {verdict.step} than in the snapshot of it"
        )
        return f"{other} ({detail.part}): the memory of one of the two is corrupted, or the script changes the state"
    part = detail.part if is_one else f"{ranks_named(verdict.culprits[:1])}: {detail.part}"
    if detail.vote == session.REPLAY_VOTE_UNCLEAR:
        either = "one of them made the difference, and the others received it"
        return (
            f"{ranks_named(verdict.culprits)} computed step {verdict.step} twice with different bits ({part}): {either}"
        )
    computed = f"{ranks_named(verdict.culprits)} computed step {verdict.step} twice with different bits ({part})"
    if not detail.has_majority:
        third = "a third run agrees with neither" if is_one else "a third run does not decide for all of them"
        return f"{computed}, and {third}: the state may be wrong since this step"
    run = "the first" if detail.vote == session.REPLAY_VOTE_FIRST else "the second"
    agreed = run if is_one else "one of them on each rank"
    return f"{computed}: a third run agrees with {agreed}, and training continues with it"


def non_finite(verdict: store.Verdict) -> str:
    """Return which number is not finite, on which ranks, and what is known about its origin."""
    detail = verdict.non_finite
    if detail.quantity == GRADIENT:
        return f"{_own_gradient(verdict)}{_of_the_run(detail)}{_way_back(detail)}"
    origin = "" if verdict.culprits else "; no rank is known as the origin"
    holder = (
        f"; rank {detail.ranks[0]} holds a gradient of {detail.parameter} that is not finite"
        if detail.parameter
        else ""
    )
    also = f"; {' and '.join(detail.also)} {'are' if len(detail.also) > 1 else 'is'} not finite either"
    return (
        f"{detail.quantity} is not finite since step {verdict.step}{_where(detail)}"
        f"{also if detail.also else ''}{holder}{origin}{_way_back(detail)}"
    )


def _own_gradient(verdict: store.Verdict) -> str:
    detail, step = verdict.non_finite, verdict.step
    first, others = f"rank {detail.ranks[0]}", detail.ranks[1:]
    if detail.module:
        later = f", before {ranks_named(others)}" if others else ""
        return f"{first} made a gradient that is not finite in {detail.module} at step {step}{later}"
    had = f"had a gradient of {detail.parameter} that was not finite at step {step}, before a sum over ranks"
    return f"{first} {had}; {ranks_named(others)} had one, too" if others else f"{first} {had}"


def _of_the_run(detail: store.NonFiniteDetail) -> str:
    return f"; {detail.also[0]} of the run is not finite" if detail.also else ""


def _way_back(detail: store.NonFiniteDetail) -> str:
    """Return the checkpoint to go back to, if one is known."""
    is_known = detail.HasField("good_checkpoint")
    return f"; the newest proven checkpoint is that of step {detail.good_checkpoint}" if is_known else ""


def _where(detail: store.NonFiniteDetail) -> str:
    if detail.world_size == 1:
        return ""
    if len(detail.ranks) == detail.world_size:
        return f", on all {detail.world_size} ranks"
    if not detail.finite_ranks:
        return f", on {ranks_named(detail.ranks)}"
    others = "the other rank reports a finite one"
    if detail.finite_ranks > 1:
        others = f"{detail.finite_ranks} other ranks report a finite one"
    return f", on {ranks_named(detail.ranks)} alone: {others}"
