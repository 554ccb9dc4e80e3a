import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast_base import log_files
from holdfast_cli.errors import SettingsError
from holdfast_cli.local_run import component as component_module
from holdfast_cli.local_run.component import (
    FAILED_STARTS,
    LONGEST_BACKOFF_S,
    Component,
    ComponentKeeper,
    ComponentSpec,
    next_backoff_s,
)
from holdfast_cli.local_run.stack import GuardFindings
from tests.cli.conftest import identity_of
from tests.support.coroutines import wait_until


@pytest.fixture
def keeper() -> Iterator[ComponentKeeper]:
    keeper = ComponentKeeper()
    yield keeper
    keeper.close(5.0)


Spec = Callable[..., ComponentSpec]
SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    def build(code: str, **changes: Any) -> ComponentSpec:
        command, log = [sys.executable, "-c", code], tmp_path / "dummy.log"
        settings: dict[str, Any] = {"environment": {"DUMMY": "value"}, "is_final": lambda _: False} | changes
        return ComponentSpec(name="dummy", command=command, log=log, **settings)

    return build


def test_backoff_doubles_up_to_its_limit_and_starts_anew_after_a_steady_life() -> None:
    delays = [0.0]
    for _ in range(7):
        delays.append(next_backoff_s(delays[-1], uptime_s=0.1))
    assert delays[1:] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert next_backoff_s(LONGEST_BACKOFF_S, uptime_s=10.0) == 0.2


def test_a_component_that_dies_is_started_again(keeper: ComponentKeeper, spec: Spec) -> None:
    component = keeper.add(spec(SLEEPS))
    first = wait_until(lambda: component.pid, "start")
    component.kill()
    second = wait_until(lambda: component.pid, "restart")
    assert second != first
    assert component.restarts == 1
    assert keeper.notes() == ["dummy: started again once"]


def test_a_component_that_has_just_ended_is_not_said_to_be_down_before_it_is_known_why(
    keeper: ComponentKeeper, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = keeper.add(spec(SLEEPS))
    wait_until(lambda: component.pid, "start")
    monkeypatch.setattr(component, "tick", lambda now_s: None)
    component.kill()
    wait_until(lambda: component.pid is None, "end")
    assert keeper.notes() == []


def test_a_suspended_component_stays_down_until_resumed(keeper: ComponentKeeper, spec: Spec) -> None:
    component = keeper.add(spec(SLEEPS))
    wait_until(lambda: component.pid, "start")
    component.suspended = True
    component.kill()
    wait_until(lambda: component.restarts == 1, "the exit is noticed")
    due = time.monotonic() + next_backoff_s(0, 0)
    while time.monotonic() < due + 0.1:
        assert component.pid is None
        time.sleep(0.01)
    component.suspended = False
    wait_until(lambda: component.pid, "restart")


def test_a_component_that_calls_its_configuration_wrong_is_not_started_again(
    keeper: ComponentKeeper, spec: Spec
) -> None:
    component = keeper.add(spec("import sys; print('holdfast: --node is taken', file=sys.stderr); sys.exit(78)"))
    wait_until(lambda: component.fatal, "the exit is noticed")
    with pytest.raises(SettingsError, match=r"^--node is taken$"):
        keeper.raise_if_fatal()
    assert component.restarts == 0


def test_a_component_that_fails_is_started_again_and_one_line_says_why(
    keeper: ComponentKeeper, spec: Spec, caplog: pytest.LogCaptureFixture
) -> None:
    component = keeper.add(spec("import sys; print('holdfast agent: no free port', file=sys.stderr); sys.exit(1)"))
    wait_until(lambda: component.restarts >= 2, "it has been started again")
    keeper.raise_if_fatal()
    lines = [record.getMessage() for record in caplog.records if "exited with code 1" in record.getMessage()]
    assert "dummy exited with code 1 (holdfast agent: no free port) after" in lines[0]
    assert "next start in 0.2 s" in lines[0]


def test_a_component_that_cannot_load_its_data_begins_without_it_after_two_starts(
    keeper: ComponentKeeper, spec: Spec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.touch()

    def begin_anew() -> str:
        data.rename(tmp_path / "aside")
        return "its data is set aside"

    code = f"import pathlib, sys, time; sys.exit('torn') if pathlib.Path({str(data)!r}).exists() else time.sleep(600)"
    component = keeper.add(spec(code, begin_anew=begin_anew))
    wait_until(lambda: component.restarts == 2 and component.pid, "it runs without its data")
    assert keeper.notes() == ["dummy: started again 2 times", "dummy: its data is set aside"]
    assert "dummy: its data is set aside" in caplog.messages


def test_data_stay_where_a_component_is_killed_and_where_they_cannot_be_set_aside(
    keeper: ComponentKeeper, spec: Spec, caplog: pytest.LogCaptureFixture
) -> None:
    def begin_anew() -> str:
        raise OSError("Read-only file system")

    component = keeper.add(spec(SLEEPS, begin_anew=begin_anew))
    for killed in range(FAILED_STARTS):
        wait_until(partial(has_started_again, component, killed), "start")
        component.kill()
    wait_until(partial(has_started_again, component, FAILED_STARTS), "restart")
    assert "set aside" not in caplog.text
    failing = keeper.add(spec("raise SystemExit(1)", begin_anew=begin_anew))
    wait_until(lambda: failing.restarts > FAILED_STARTS, "it is started again all the same")
    assert caplog.messages.count("dummy: its data cannot be set aside: Read-only file system") == 1


def has_started_again(component: Component, times: int) -> bool:
    return component.restarts == times and component.pid is not None


def test_a_component_whose_work_is_done_is_not_started_again(keeper: ComponentKeeper, spec: Spec) -> None:
    component = keeper.add(spec("raise SystemExit(3)", is_final=lambda code: code == 3))
    wait_until(lambda: component.done, "the exit is noticed")
    assert component.restarts == 0
    assert keeper.notes() == []


def test_a_component_gets_a_session_of_its_own_and_its_environment(keeper: ComponentKeeper, spec: Spec) -> None:
    code = "import os; print(os.getsid(0) == os.getpid(), os.environ['DUMMY'], flush=True);"
    component = keeper.add(spec(code + SLEEPS))
    assert wait_until(component.newest_line, "output") == "True value"


def test_a_component_that_ignores_sigterm_is_killed_at_the_end(spec: Spec) -> None:
    keeper = ComponentKeeper()
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True);"
    component = keeper.add(spec(code + SLEEPS))
    wait_until(component.newest_line, "output")
    identity = identity_of(component.pid or 0)
    keeper.close(0.1)
    assert not identity.is_alive()


def test_a_log_that_grows_too_large_is_emptied_while_the_component_writes_on(
    keeper: ComponentKeeper, spec: Spec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(log_files, "MOST_LOG_BYTES", 1000)
    monkeypatch.setattr(component_module, "LOOK_EVERY_S", 0.05)
    code = "import time\nwhile True: print('word ' * 10, flush=True); time.sleep(0.001)"
    component = keeper.add(spec(code))
    wait_until((tmp_path / "dummy.log.1").exists, "the log was emptied")
    wait_until(lambda: component.newest_line() == ("word " * 10).strip(), "its newest line is found")
    assert (component.restarts, component.pid is not None) == (0, True)


def test_the_findings_of_a_guard_are_followed_into_a_log_that_was_emptied(tmp_path: Path) -> None:
    log = tmp_path / "guard.log"
    log.write_text("")
    findings = GuardFindings(log)
    log.write_text('{"line": "one", "outcome": "damaged"}\n' * 3)
    assert findings.newest() == ["guard: one"] * 3
    log.write_text('{"line": "two", "outcome": "damaged"}\n')
    assert findings.newest()[-1] == "guard: two"
