"""The ``holdfast`` command on a machine whose driver and kernel's log are in the folder that GPU_MACHINE names."""

import os
from pathlib import Path

from holdfast_agent import node
from holdfast_agent.agent_options import AgentOptions
from holdfast_cli.main import main

defaults = AgentOptions.__init__.__kwdefaults__
assert defaults is not None
defaults["system_root"] = Path(os.environ["GPU_MACHINE"])
setattr(node, "names_our_pids", lambda: True)  # noqa: B010 - in a container, too: a test says what the driver numbers
main()
