"""Words of the settings in ``[notify]`` that the command checks and the daemon obeys."""

EVENTS = ("incident", "recovery", "failure", "end")
"""What can be reported, as `notify.on` spells it."""
MAIL_SECURITY = ("starttls", "tls", "none")
"""How a connection to a mail server is protected."""
HEARTBEAT = "heartbeat"
"""Name of the signs of life in metrics: no channel has it."""
