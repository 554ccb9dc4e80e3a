"""Entry point of Lightning's callback factories: a Trainer in a rank of Holdfast gets the callback without a line.

Lightning calls :func:`callbacks` for every Trainer of every program in the environment. So this module imports
nothing of Holdfast until an agent has set the variable, and a failure here never reaches the Trainer.
"""

import logging
import os

VARIABLE = "HOLDFAST_CONTEXT"
"""Variable that an agent sets for its ranks: ``holdfast_proto.rank_context.VARIABLE``, which a test compares."""


def callbacks() -> list[object]:
    """Return the callback of Holdfast in a rank that an agent watches, else nothing."""
    if VARIABLE not in os.environ:
        return []
    try:
        from holdfast_hooks.frameworks.lightning import LightningHoldfast

        return [LightningHoldfast(automatic=True)]
    except Exception as error:  # noqa: BLE001 - no failure of ours may end a program that did not ask for Holdfast
        logging.getLogger("holdfast_hooks").warning("this Trainer is not watched: %r", error)
        return []
