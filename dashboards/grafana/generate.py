"""Writes the dashboards' JSON: ``python dashboards/grafana/generate.py [--check]``."""

import argparse
import sys
from pathlib import Path

# Run as a script, Python finds this folder and not the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dashboards.generated_file import write_or_check
from dashboards.grafana.build import to_json
from dashboards.grafana.run_dashboard import RUN_DASHBOARD

RUN_DASHBOARD_PATH = Path(__file__).with_name("holdfast-run.json")


def main() -> int:
    """Write the files, or with ``--check`` compare them; returns 1 if one is out of date."""
    parser = argparse.ArgumentParser(description="Writes the dashboards' JSON.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if a file is out of date")
    return write_or_check(RUN_DASHBOARD_PATH, to_json(RUN_DASHBOARD), check=parser.parse_args().check)


if __name__ == "__main__":
    sys.exit(main())
