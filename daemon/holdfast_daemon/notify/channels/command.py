"""The channel `command`: a program of the user gets the message."""

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass

from holdfast_daemon.notify.channels.sending import DeliveryDelayedError, DeliveryRefusedError
from holdfast_daemon.notify.message import Message, as_json
from holdfast_proto.exit_codes import describe_exit

PREFIX = "HOLDFAST_NOTIFY_"


@dataclass(frozen=True)
class CommandProgram:
    """Runs a program, without a shell, with the message as JSON on stdin and its main parts in the environment."""

    argv: tuple[str, ...]
    timeout_s: float

    def send(self, message: Message) -> None:
        """Run it. Raises DeliveryRefusedError if it cannot be started, DeliveryDelayedError if it fails."""
        try:
            process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **variables(message)},
                start_new_session=True,  # so that its children can be ended with it
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise DeliveryRefusedError(f"{self.argv[0]} cannot be run: {reason}") from None
        try:
            process.communicate(json.dumps(as_json(message)).encode(), timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise DeliveryDelayedError(
                f"{self.argv[0]} did not end within {self.timeout_s:g} s and was killed"
            ) from None
        if process.returncode:
            raise DeliveryDelayedError(f"{self.argv[0]} {describe_exit(process.returncode)}")


def variables(message: Message) -> dict[str, str]:
    """Return the environment variables that describe a message in short: its newest notice."""
    newest = message.newest
    values = {
        "RUN": message.run,
        "HOST": message.host,
        "TITLE": message.title,
        "EVENT": newest.event,
        "STATUS": newest.status,
        "KEY": newest.key,
        "KIND": newest.kind,
        "RANKS": ",".join(map(str, newest.ranks[:64])),
        "STEP": str(newest.step),
        "LINK": newest.link,
        "NOTICES": str(len(message.notices) + message.left_out),
    }
    return {PREFIX + name: value.replace("\0", " ") for name, value in values.items()}


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it is not reaped yet, so this pid is still its own
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
