"""JSON on stdout, for scripts."""

import json


def print_json(value: object) -> None:
    """Print ``value`` as one line on stdout."""
    print(json.dumps(value), flush=True)
