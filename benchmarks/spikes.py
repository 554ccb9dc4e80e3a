"""Show the number detectors a folder of loss curves, and compare what they report with the labels of the curves.

The folder has one CSV file for each run, with the columns step and loss, and grad_norm and learning_rate where they are
known. Its file labels.json maps the path of a file to the windows that are not healthy: index of the first and last
row, and a kind. The kinds spike and slow are incidents; planned and ambiguous windows count neither way. A file
without labels is healthy. False alarms are counted by sub-folder. ViT runs with mixup (imagenet_vit in the name) and
policy losses (sub-folder rl) are classes of their own. Healthy curves are also harmed in known ways.

    python benchmarks/spikes.py [--half 0|1] [--json] DIR
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.loss_curves.cost import cost_us
from benchmarks.loss_curves.curves import read_curves
from benchmarks.loss_curves.score import score
from benchmarks.loss_curves.synthetic import synthetic_score
from benchmarks.loss_curves.trial import try_curve


def measure(folder: Path, half: int | None) -> dict[str, object]:
    """Return all figures about the curves of a folder; of one half of the files if ``half`` says which.

    Raises OSError and ValueError if the folder cannot be read.
    """
    curves = [curve for curve in read_curves(folder) if half in (None, curve.half)]
    if not curves:
        raise ValueError("it has no CSV file with rows")
    return {
        **score([try_curve(curve) for curve in curves]),
        "synthetic": synthetic_score(curves),
        "us_per_step": cost_us(),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of curves")
    parser.add_argument(
        "--half", type=int, choices=(0, 1), help="use one half of the files, by a hash of their names: tune on one half"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        sys.exit(f"no loss curves: {arguments.folder} is not a folder: name one that holds CSV files")
    console = Console(stderr=arguments.json, width=4000 if arguments.json else None)
    try:
        result = measure(arguments.folder, arguments.half)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot use the curves of {arguments.folder}: {error}")
    table = Table("", "", title="What the number detectors report")
    for key, value in result.items():
        for name, part in value.items() if isinstance(value, dict) else [("", value)]:
            table.add_row(f"{key}: {name}" if name else key, _text(part))
    console.print(table)
    if arguments.json:
        print(json.dumps(result))


def _text(part: object) -> str:
    if isinstance(part, dict):
        return f"{part['per_100k']} ({part['false']} in {part['points']:,})"
    return str(part)


if __name__ == "__main__":
    main()
