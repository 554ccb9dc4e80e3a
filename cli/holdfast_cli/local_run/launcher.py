"""A launcher of somebody else's, as a child of ours: ``torchrun``, ``srun``, ``mpirun``."""

import os
import subprocess
from collections.abc import Mapping, Sequence

from holdfast_cli.errors import ConfigurationError


class Launcher:
    """The launcher's process. It outlives us if we are killed: whoever watches a run must not end it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command`` with ``environment`` added to our own. Raises ConfigurationError if it cannot be run."""
        try:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                process_group=0,  # a Ctrl-C of the terminal reaches it once, through us
            )
        except OSError as error:
            raise ConfigurationError(f"{command[0]} cannot be run: {error.strerror}") from None

    @property
    def exit_code(self) -> int | None:
        """Exit code as shells have it, 128 + signal; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def forward(self, signal_number: int) -> None:
        """Pass a signal on."""
        self._process.send_signal(signal_number)
