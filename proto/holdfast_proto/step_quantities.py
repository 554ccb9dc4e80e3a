"""The numbers of a step that agents fold and daemons merge, by the names of their fields in the messages."""

MEANS = ("mfu", "pipeline_bubble", "balance_loss")
"""Fields of a StepRecord whose mean over ranks is in the StepSummary: there, these are all fields of type Mean."""

WATCHED = ("loss", "validation_loss", "grad_norm", "update_norm", "balance_loss")
"""Fields of a StepRecord that are reported when they are not finite."""

GRADIENT = "gradient"
"""Name under which a StepRecord's ``nonfinite_origin`` is reported."""

NONFINITE = (*WATCHED, GRADIENT)
"""All values of ``NonFinite.quantity``."""
