"""The modules that the trainer's ranks need."""

import holdfast_trainer.preload  # noqa: F401
