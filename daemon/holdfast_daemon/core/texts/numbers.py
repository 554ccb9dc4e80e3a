"""Losses, gradients and samples that are not what they were."""

from holdfast_daemon.core.naming import listed
from holdfast_proto.v1 import store_pb2 as store


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
