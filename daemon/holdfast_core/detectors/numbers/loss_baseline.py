"""What the loss of a run usually is: its level, and how far it scatters around it.

    r = loss - level,  level = median of the last 16 accepted losses
    sigma = max(1.4826 x MAD(r), (q90(raw r) - median(raw r)) / 1.2816, 0.1 % of the level)

A falling loss is far from the median of a long window, but near that of a short one: so the level comes from 16 losses
and the scatter from 128. MAD sees only the larger of two modes, as mixup makes them. The quantile of the raw residuals,
outlying ones included, sees both. The newest four residuals do not count in it, and of a row of high ones the first
three do, so that a spike does not hide itself or the next one.

A loss that is zero or of both signs, as a policy loss, has no level that a rise could be compared with, and may be
exactly zero most of the time. Its standard deviation is also at least 0.4 of the largest raw residual, so that z > 5
means more than twice that.
"""

from dataclasses import dataclass, field, replace

from holdfast_core.detectors.numbers.sorted_window import SortedWindow

WINDOW = 128
LEVEL_LOSSES = 16
_LEAST_LEVEL_LOSSES = 8
MIN_HISTORY = 32
"""Accepted losses before any is judged."""

HIGH_Z = 3.0
"""From here on a loss is high, though not yet outlying."""
_SIGMA_FLOOR_RATIO = 0.001
_NEWEST_ASIDE, _RAW_RUN = 4, 3
_HIGH_SHARE, _HIGH_SHARE_SIGMAS = 0.9, 1.2816
"""The quantile of the raw residuals, and its distance from the median of normal noise in standard deviations."""
_FEW = 64
"""With fewer raw residuals than that their largest is used: a second mode may have only a few of them."""
_SIGNED_SIGMA_RATIO = 0.4
_SIGN_MEMORY = 512
"""Losses for which a sign is remembered."""


@dataclass(frozen=True, slots=True)
class LossBaseline:
    """The newest losses of a run."""

    accepted: tuple[float, ...] = ()
    """The newest that were not outlying: their median is the level."""
    recent: tuple[float, ...] = ()
    """The newest, outlying or not: the next level if an episode does not end."""
    residuals: SortedWindow = field(default_factory=SortedWindow)
    """Residuals of accepted losses."""
    raw: SortedWindow = field(default_factory=SortedWindow)
    """Residuals of all losses, but the newest four and the rest of a row of high ones."""
    raw_aside: tuple[float, ...] = ()
    high_run: int = 0
    """High losses in a row."""
    seen: int = 0
    positive_at: int = -_SIGN_MEMORY
    """``seen`` of the newest loss that was not negative."""
    negative_at: int = -_SIGN_MEMORY
    """``seen`` of the newest loss that was not positive."""

    @property
    def level(self) -> float | None:
        """Median of the newest accepted losses; None while there are too few."""
        accepted = self.accepted
        return sorted(accepted)[len(accepted) // 2] if len(accepted) >= _LEAST_LEVEL_LOSSES else None

    @property
    def is_ready(self) -> bool:
        """Whether there are enough losses to judge another one by."""
        return len(self.residuals.ordered) >= MIN_HISTORY - _LEAST_LEVEL_LOSSES

    def rise(self, loss: float, level: float) -> float:
        """Return by how much a loss is above what is usual at ``level``. The baseline must be ready."""
        return loss - level - self.residuals.quantile(0.5)

    def sigma(self, level: float) -> float:
        """Return how far accepted losses scatter around ``level``. The baseline must be ready."""
        sigma = max(self.residuals.sigma(), _SIGMA_FLOOR_RATIO * abs(level))
        raw = self.raw
        if raw.ordered:
            high = raw.quantile(_HIGH_SHARE if len(raw) >= _FEW else 1.0)
            sigma = max(sigma, (high - raw.quantile(0.5)) / _HIGH_SHARE_SIGMAS)
            if min(self.positive_at, self.negative_at) > self.seen - _SIGN_MEMORY:
                sigma = max(sigma, _SIGNED_SIGMA_RATIO * max(raw.ordered[-1], -raw.ordered[0]))
        return sigma

    def with_loss(self, loss: float, level: float | None, zscore: float, *, outlying: bool) -> "LossBaseline":
        """Return the baseline after a loss that was judged against ``level``."""
        residuals, raw, aside, high_run = self.residuals, self.raw, self.raw_aside, self.high_run
        if level is not None:
            high_run = high_run + 1 if zscore > HIGH_Z else 0
            if not outlying:
                residuals = residuals.with_value(loss - level, WINDOW)
            if high_run <= _RAW_RUN:
                aside = (*aside, loss - level)
                if len(aside) > _NEWEST_ASIDE:
                    raw, aside = raw.with_value(aside[0], WINDOW), aside[1:]
        return LossBaseline(
            self.accepted if outlying else (*self.accepted, loss)[-LEVEL_LOSSES:],
            (*self.recent, loss)[-LEVEL_LOSSES:],
            residuals,
            raw,
            aside,
            high_run,
            self.seen + 1,
            self.seen if loss >= 0.0 else self.positive_at,
            self.seen if loss <= 0.0 else self.negative_at,
        )

    def settled(self) -> "LossBaseline":
        """Return the baseline with the level of the newest losses, outlying or not."""
        return replace(self, accepted=self.recent)
