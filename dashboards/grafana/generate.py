"""Writes the dashboards' JSON: ``python dashboards/grafana/generate.py [--check]``."""

import argparse
import sys
from pathlib import Path

# Run as a script, Python finds this folder and not the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dashboards.generated_file import write_or_check
from dashboards.grafana.build import to_json
from dashboards.grafana.dashboard_set import DASHBOARDS
from dashboards.grafana.model import Dashboard

JSON_FOLDER = Path(__file__).with_name("json")


def _others(one: Dashboard) -> list[Dashboard]:
    return [other for other in DASHBOARDS if other is not one]


def main() -> int:
    """Write the files, or with ``--check`` compare them; returns 1 if one is out of date or should not exist."""
    parser = argparse.ArgumentParser(description="Writes the dashboards' JSON.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if a file is out of date")
    check = parser.parse_args().check
    written = {JSON_FOLDER / f"{one.uid}.json": to_json(one, _others(one)) for one in DASHBOARDS}
    codes = [write_or_check(path, text, check=check) for path, text in written.items()]
    for path in set(JSON_FOLDER.glob("*.json")) - written.keys():
        if check:
            print(f"{path.name} belongs to no dashboard: run {Path(sys.argv[0]).name} without --check", file=sys.stderr)
            codes.append(1)
        else:
            path.unlink()
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
