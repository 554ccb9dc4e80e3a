"""Commands that continue without a reader of their output."""

import subprocess
import sys

PRINTS = """
import sys
from rich.console import Console
from holdfast_cli.views.output import lasting_output
with lasting_output():
    for stream in (sys.stdout, sys.stderr):
        console = Console(file=None if stream is sys.stdout else stream)
        for number in range(100):
            console.print("step", number)
            print("step", number, file=stream, flush=True)
print("more")
sys.exit(5)
"""


def test_a_command_whose_reader_has_gone_continues_to_its_own_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", PRINTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait() == 5
