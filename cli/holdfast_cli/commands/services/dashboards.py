"""``holdfast dashboards export``: writes the files for Grafana, Prometheus and Alertmanager into a folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast_base.files import replace_file
from holdfast_cli.errors import CommandError, UsageError
from holdfast_cli.flags.services import ExportDashboardsFlags
from holdfast_cli.run_folder.scrape_targets import TARGETS_FOLDER

PARTS = (
    "alertmanager",
    "grafana/json",
    "grafana/provisioning",
    "prometheus/prometheus.yml",
    "prometheus/prometheus-kubernetes.yml",
    "prometheus/rules",
)
"""Files and folders below ``dashboards/`` that users need. ``pyproject.toml`` puts the same ones into the wheel."""

_CONFIGURATION, _PROVIDER = "prometheus/prometheus.yml", "grafana/provisioning/dashboards/holdfast.yml"
_RUNS, _JSON = "../../holdfast-runs/.prometheus/*.json", "dashboards/grafana/json"
"""Paths in the two files above that hold in the repository only."""

_PATTERN_CHARACTERS = frozenset("[*?\\")
"""What a pattern of Prometheus, which is one of Go's filepath.Match, takes for more than itself."""


def export(flags: ExportDashboardsFlags) -> None:
    """Write all files, or none if one of them exists and --force is not given.

    Raises CommandError, and UsageError for a folder whose files Prometheus would not find.
    """
    folder, runs = _target(flags.folder), flags.directory.absolute()
    if "*" in str(runs):
        raise UsageError(
            f"--directory {runs}: Prometheus finds no targets in a folder with * in its path: use another one"
        )
    source = find_source()
    texts = {folder / name: _adapted(name, (source / name).read_text(), folder, runs) for name in names(source)}
    try:
        kept = _edited(texts, folder)
        for path in kept:
            del texts[path]
        present = [path for path in texts if path.exists()]
        if present and not flags.force:
            raise CommandError(f"{present[0]} exists: name another folder, or replace it with --force")
        (folder / "prometheus" / "targets").mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}: name a folder that you can write to") from None
    for path in kept:
        print(f"{path} has changed since it was written, and is left as it is")
    print("\n".join(_next_steps(folder, len(texts))))


def _target(folder: str) -> Path:
    """Return the absolute path of the folder to write to. Raises UsageError."""
    if not folder:
        raise UsageError("FOLDER is empty: name the folder to write to, or leave it out")
    path = Path(folder).absolute()
    if set(str(path)) & _PATTERN_CHARACTERS or not str(path).isprintable():
        raise UsageError(
            f"FOLDER {str(path)!r}: Prometheus reads its path as a pattern, and would find no rules there: "
            "name a folder without any of [ * ? \\ in its path"
        )
    return path


def _edited(texts: Mapping[Path, str], folder: Path) -> list[Path]:
    """Return the files that users are asked to edit, and have edited: they are never replaced."""
    return [
        path
        for path, text in texts.items()
        if path.is_relative_to(folder / "alertmanager") and path.exists() and path.read_text() != text
    ]


def find_source() -> Path:
    """Return the folder of the files: in the package, or in the repository if the package is used from there.

    Raises CommandError if there is neither.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_dashboards", package.parents[1] / "dashboards"):
        if (folder / _CONFIGURATION).is_file():
            return folder
    raise CommandError("this installation has no dashboards: install holdfast-torch again, from a wheel or a clone")


def names(source: Path) -> Iterator[str]:
    """Yield the paths of the files below ``source`` that are exported."""
    for part in PARTS:
        if (source / part).is_file():
            yield part
        else:
            yield from sorted(str(path.relative_to(source)) for path in (source / part).rglob("*") if path.is_file())


def _adapted(name: str, text: str, folder: Path, runs: Path) -> str:
    """Return the text of a file with the paths that hold for this export."""
    if name == _CONFIGURATION:
        return text.replace(_RUNS, _quoted(f"{_literal(runs / TARGETS_FOLDER)}/*.json"))
    return text.replace(_JSON, _quoted(str(folder / "grafana" / "json"))) if name == _PROVIDER else text


def _literal(path: Path) -> str:
    """Return the pattern that matches a path alone. Prometheus takes no * in it, not even an escaped one."""
    return "".join(f"\\{one}" if one in _PATTERN_CHARACTERS else one for one in str(path))


def _quoted(text: str) -> str:
    """Return a text as a string of YAML."""
    return "'" + text.replace("'", "''") + "'"


def _next_steps(folder: Path, count: int) -> Iterator[str]:
    yield f"{count} files are in {folder}"
    yield f"Prometheus:    prometheus --config.file={folder}/prometheus/prometheus.yml"
    yield f"Alertmanager:  add your receivers to {folder}/alertmanager/alertmanager.yml"
    yield f"Grafana:       copy {folder}/grafana/provisioning to its own folder provisioning and restart it,"
    yield f"               or import each file of {folder}/grafana/json: Dashboards, New, Import"
