"""Shows runs in a Prometheus and an Alertmanager of this machine, as long as a command runs.

::

    python dashboards/watch.py                                        # holdfast demo
    python dashboards/watch.py holdfast run --ranks 2 -- python train.py

The servers listen on loopback, on ports that the kernel chooses, and keep their data in a temporary folder. They end
with the command, after Ctrl-C, when the terminal is closed, and also if this process is killed. Then the next watch
removes the folder.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

# Run as a script, Python finds this folder and not the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dashboards.local_server import listening_server
from dashboards.watch_folder import watch_folder
from holdfast_cli.local_run.die_with_parent import wrap
from holdfast_cli.run_folder.scrape_targets import TARGETS_FOLDER

HERE = Path(__file__).resolve().parent
PROGRAMS = ("prometheus", "prometheus-alertmanager")
"""What must be on the PATH. Debian's packages have the same names."""
PATTERN_CHARACTERS = frozenset("[*?\\")
"""What Prometheus takes for more than itself in the path of a file with rules or targets."""
END_PATIENCE_S = 60.0
"""Time in which the command ends after a signal, before it is killed."""


def main() -> int:
    """Run the command, and return its exit code; 1 if a server cannot run, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description="Shows runs in a local Prometheus and Alertmanager.")
    parser.add_argument(
        "--directory", type=Path, help="folder of the runs (default: holdfast-runs; the demo has its own)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command that starts a run (default: holdfast demo)")
    given = parser.parse_args()
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        print(f"watch needs programs that are not installed: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 1
    directory = given.directory or (Path("holdfast-runs") if given.command else None)
    directory = None if directory is None else directory.absolute()
    for path in filter(None, (HERE, directory)):
        if set(str(path)) & PATTERN_CHARACTERS:
            print(
                f"watch: Prometheus reads the path {path} as a pattern, and would find nothing there: use a folder "
                "without any of [ * ? \\ in its path, and name that of the runs with --directory",
                file=sys.stderr,
            )
            return 1
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asks to continue without the terminal
        signal.signal(signal.SIGHUP, _hang_up)
    try:
        with watch_folder() as folder:
            if given.command:
                assert directory is not None
                return _watch(folder, directory, given.command)
            runs = directory or folder / "runs"
            return _watch(folder, runs, ["holdfast", "demo", "--keep", str(runs)])
    except RuntimeError as error:  # a server has not come up
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the command has begun, or after it
        return 128 + signal.SIGINT


def alertmanager_config() -> dict[str, Any]:
    """Return the shipped configuration with receivers that send nothing: alerts are read in the browser."""
    config: dict[str, Any] = yaml.safe_load((HERE / "alertmanager" / "alertmanager.yml").read_text())
    config["receivers"] = [{"name": receiver["name"]} for receiver in config["receivers"]]
    return config


def prometheus_config(runs: Path, alertmanager: str) -> dict[str, Any]:
    """Return the shipped configuration for the runs in a folder. ``alertmanager``: its ``host:port``."""
    config: dict[str, Any] = yaml.safe_load((HERE / "prometheus" / "prometheus.yml").read_text())
    config["rule_files"] = [str(HERE / "prometheus" / pattern) for pattern in config["rule_files"]]
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}]
    config["scrape_configs"][0]["file_sd_configs"][0]["files"] = [str(runs / TARGETS_FOLDER / "*.json")]
    return config


def _watch(folder: Path, runs: Path, command: list[str]) -> int:
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(alertmanager_config()))
    alertmanager = [
        "prometheus-alertmanager",
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    ]
    prometheus = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        "--web.listen-address=127.0.0.1:0",
        "--rules.alert.resend-delay=5s",  # it knows Alertmanager after some seconds, and drops alerts until then
    ]
    (runs / TARGETS_FOLDER).mkdir(parents=True, exist_ok=True)  # Prometheus finds files in a new folder later
    with listening_server(wrap(alertmanager, signal.SIGTERM), folder / "alertmanager.log") as alertmanager_url:
        config = prometheus_config(runs, alertmanager_url.removeprefix("http://"))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with listening_server(wrap(prometheus, signal.SIGTERM), folder / "prometheus.log") as prometheus_url:
            print(f"Prometheus:   {prometheus_url}/targets, {prometheus_url}/alerts")
            print(f"Alertmanager: {alertmanager_url}")
            print("Both end with this command, or with Ctrl-C.", flush=True)
            return _run(command)


def _run(command: list[str]) -> int:
    """Run a command to its end and return its exit code. Each Ctrl-C is passed on to it as one SIGINT."""
    # `holdfast` is next to this Python, also if no environment is active.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if shutil.which(command[0], path=path) is None:
        print(f"{command[0]}: not found: name a program on the PATH", file=sys.stderr)
        return 127
    # In a session of its own: Ctrl-C would reach it twice otherwise, from the terminal and from here.
    process = subprocess.Popen(wrap(command, signal.SIGINT), env={**os.environ, "PATH": path}, start_new_session=True)
    patience_s = None
    while True:
        try:
            code = process.wait(patience_s)
            if patience_s is not None:
                return 128 + signal.SIGINT
            return code if code >= 0 else 128 - code  # as shells show the end by a signal
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            patience_s = END_PATIENCE_S
        except subprocess.TimeoutExpired:
            process.kill()


def _hang_up(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel and a shell may both send it
    _interrupt(number, frame)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
