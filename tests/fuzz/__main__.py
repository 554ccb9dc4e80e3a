"""Prints how the readers of one module of sources take damaged files: one JSON object for each."""

import argparse
import importlib
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.harness import examine


def main() -> None:
    """Examine all sources of a module, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("module", help="module of tests/fuzz with SOURCES")
    parser.add_argument("--only", nargs="*", help="names of sources")
    parser.add_argument("--inputs", type=int, default=300, help="damaged files for each source")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for source in importlib.import_module(f"tests.fuzz.{arguments.module}").SOURCES:
        if arguments.only and source.name not in arguments.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            findings = examine(source, Path(folder), inputs=arguments.inputs, seed=arguments.seed)
        print(json.dumps(asdict(findings)), flush=True)


if __name__ == "__main__":
    main()
