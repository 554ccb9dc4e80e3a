"""Scripts without a line of ours, each as a process of its own: what the agent hears of them, and what they notice."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast_hooks.auto.arming import python_path
from holdfast_proto import black_box
from holdfast_proto.rank_context import RankContext
from holdfast_proto.v1.common_pb2 import PHASE_CHECKPOINT, PHASE_DATA, PHASE_EVAL, PHASE_OPTIMIZER

pytestmark = pytest.mark.system

SAID = "holdfast: attached by itself, rank 0 of 1\n"

BEGIN = """
import os, subprocess, sys
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def begin():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def batches(**options):
    return DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2, **options)

def loss_of(model, inputs):
    return model(inputs).square().mean()
"""

TRAIN = """
    begin()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for (inputs,) in batches():
        loss_of(model, inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Outcome:
    """What a script left behind."""

    code: int
    stdout: str
    stderr: str


Script = Callable[..., Outcome]


@pytest.fixture
def script(agent: Any, folder: Path) -> Script:
    """A function that runs the body of a main() as a rank under ``--auto``."""

    def run(body: str, *, flags: tuple[str, ...] = (), auto: bool = True, first_on_path: str = "") -> Outcome:
        path = folder / "script.py"
        lines = textwrap.indent(textwrap.dedent(body), "    ")
        path.write_text(f"{BEGIN}\ndef main():\n{lines}\nif __name__ == '__main__':\n    main()\n")
        context = RankContext(
            run="test", generation=1, agent=agent.target, black_box=str(folder / "box"), observed=True, auto=auto
        )
        others = os.pathsep.join(filter(None, [first_on_path, os.environ.get("PYTHONPATH", "")]))
        environment = {
            **os.environ,
            **context.to_environment(),
            **{"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "PYTHONPATH": python_path(others)},
        }
        done = subprocess.run(
            [sys.executable, *flags, str(path)], env=environment, capture_output=True, text=True, check=False
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


def box(folder: Path) -> black_box.BlackBoxContents:
    return black_box.read(folder / "box")


def numbers(agent: Any) -> list[int]:
    return [step.step for step in agent.steps]


@pytest.mark.gate
def test_a_plain_script_is_seen_from_its_first_step_to_its_end(script: Script, agent: Any, folder: Path) -> None:
    outcome = script(TRAIN + "    torch.save(model.state_dict(), os.devnull)\n    dist.destroy_process_group()\n")
    assert (outcome.code, outcome.stderr) == (0, SAID)
    (hello,) = agent.of("hello")
    assert (hello.rank, hello.world_size, hello.attachment) == (0, 1, 1)
    assert numbers(agent) == list(range(8))
    assert all({PHASE_DATA, PHASE_OPTIMIZER} <= set(step.phase_s) for step in agent.steps)
    assert not any(step.HasField("loss") for step in agent.steps)
    last = agent.of("report")[-1]
    assert last.finished
    assert last.outside_s[PHASE_CHECKPOINT] > 0.0
    assert box(folder).finished


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        pytest.param(
            """
            begin()
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for number, (inputs,) in enumerate(batches()):
                loss_of(model, inputs).backward()
                if number % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
            """,
            2,
            id="gradient accumulation",
            marks=pytest.mark.gate,
        ),
        pytest.param(
            """
            begin()
            one, other = nn.Linear(4, 4), nn.Linear(4, 1)
            optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (one, other)]
            for _ in range(10):
                for optimizer in optimizers:
                    loss_of(other, one(torch.randn(2, 4))).backward()
                    optimizer.step()
            """,
            10,
            id="two optimizers",
        ),
        pytest.param(
            """
            begin()
            model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])
            optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
            for parameter in optimizers:
                parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
            for _ in range(10):
                loss_of(model, torch.randn(2, 4)).backward()
            """,
            10,
            id="optimizers in the backward pass",
        ),
        pytest.param(
            """
            begin()
            model = nn.Linear(4, 1)
            optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, torch.ones(2, 4))
                loss.backward()
                return loss
            for _ in range(5):
                optimizer.step(closure)
            """,
            5,
            id="LBFGS",
        ),
        pytest.param(
            """
            begin()
            model = nn.Linear(4, 1)
            for _ in range(5):
                loss_of(model, torch.randn(2, 4)).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad
            """,
            0,
            id="no optimizer of torch",
        ),
    ],
)
def test_a_step_is_one_turn_of_the_optimizers(script: Script, agent: Any, body: str, steps: int) -> None:
    outcome = script(body)
    assert (outcome.code, outcome.stderr) == (0, SAID)
    assert numbers(agent) == list(range(steps))
    assert agent.of("report")[-1].finished  # also without destroy_process_group


@pytest.mark.parametrize(("train", "said"), [("optimizer.step()", 0), ("pass", 1)])
def test_a_rank_whose_steps_are_not_seen_says_so_in_one_line(script: Script, train: str, said: int) -> None:
    body = f"""
    import threading
    begin()
    optimizer = torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.1)
    {train}
    [timer] = [thread for thread in threading.enumerate() if thread.name == "holdfast-no-steps"]
    timer.cancel()
    timer.function()  # its five minutes are over
    """
    outcome = script(body)
    assert outcome.code == 0
    assert outcome.stderr.count("no optimizer of torch.optim has made a step yet") == said


@pytest.mark.parametrize("method", [pytest.param("fork", marks=pytest.mark.gate), "spawn"])
def test_workers_of_a_loader_are_no_ranks_and_change_nothing(
    script: Script, agent: Any, folder: Path, method: str
) -> None:
    loader = f"batches(num_workers=2, multiprocessing_context='{method}')"
    outcome = script(TRAIN.replace("batches()", loader))
    assert outcome.code == 0
    assert len(agent.of("hello")) == 1
    assert numbers(agent) == list(range(8))
    assert box(folder).finished


def test_an_evaluation_without_gradients_is_a_phase_of_its_own(script: Script, agent: Any) -> None:
    evaluation = """
    model.eval()
    with torch.no_grad():
        for (inputs,) in batches():
            model(inputs)
    model.train()
    loss_of(model, inputs).backward()
    optimizer.step()
    """
    assert script(TRAIN + evaluation).code == 0
    assert [PHASE_EVAL in step.phase_s for step in agent.steps] == [False] * 8 + [True]


def test_a_model_that_evaluates_in_each_step_is_part_of_the_step(script: Script, agent: Any) -> None:
    assert script(TRAIN.replace("loss_of(", "model.eval(); loss_of(")).code == 0
    assert not any(PHASE_EVAL in step.phase_s for step in agent.steps[3:])


def test_python_that_ignores_its_environment_runs_the_script_without_us(script: Script, agent: Any) -> None:
    outcome = script(TRAIN, flags=("-I",))
    assert (outcome.code, outcome.stderr, agent.messages) == (0, "", [])


def test_a_script_that_makes_no_group_never_loads_us(script: Script, agent: Any) -> None:
    outcome = script(
        "print([name for name in sys.modules if name.startswith(('holdfast_hooks', 'holdfast_proto', 'grpc'))])"
    )
    assert (outcome.code, outcome.stdout, outcome.stderr, agent.messages) == (0, "[]\n", "", [])


def test_without_auto_the_same_path_does_nothing(script: Script, agent: Any) -> None:
    outcome = script(TRAIN, auto=False)
    assert (outcome.code, outcome.stderr, agent.messages) == (0, "", [])


@pytest.mark.gate
def test_a_sitecustomize_of_the_user_runs_too(script: Script, agent: Any, folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['SITE'] = __file__\n")
    body = "import sitecustomize\nprint(os.environ['SITE'] == sitecustomize.__file__)"
    outcome = script(body + textwrap.dedent(TRAIN), first_on_path=str(own))
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "True\n", SAID)
    assert numbers(agent) == list(range(8))


def test_an_error_in_the_users_sitecustomize_is_reported_as_python_does(
    script: Script, agent: Any, folder: Path
) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise ValueError('no luck')\n")
    outcome = script(TRAIN, first_on_path=str(own))
    assert outcome.code == 0
    assert "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nValueError: no luck\n" in outcome.stderr
    assert numbers(agent) == list(range(8))


def test_a_script_that_makes_its_group_twice_attaches_twice_and_counts_on(script: Script, agent: Any) -> None:
    outcome = script(TRAIN + "    dist.destroy_process_group()\n" + TRAIN)
    assert outcome.code == 0
    assert [hello.attachment for hello in agent.of("hello")] == [1, 2]
    assert numbers(agent) == list(range(16))


def test_a_process_that_a_rank_starts_is_no_rank(script: Script, agent: Any) -> None:
    child = "begin()\nif os.environ.get('CHILD'):\n    return\nos.environ['CHILD'] = '1'\n"
    outcome = script(child + "subprocess.run([sys.executable, __file__], check=True)")
    assert (outcome.code, outcome.stderr) == (0, SAID)
    assert len(agent.of("hello")) == 1


def test_the_hooks_that_the_script_attaches_itself_take_over(script: Script, agent: Any) -> None:
    explicit = """
    import holdfast_hooks
    with holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=20, start=8):
            loss_of(model, inputs).backward()
            optimizer.step()
    """
    outcome = script(TRAIN + explicit)
    assert outcome.code == 0
    assert [hello.attachment for hello in agent.of("hello")] == [1, 2]
    assert numbers(agent) == list(range(20))
    assert [report.finished for report in agent.of("report")].count(True) == 1
    assert agent.of("report")[-1].finished


@pytest.mark.parametrize("order", ["attach first", "attach and leave first"])
def test_a_script_that_has_attached_is_left_to_itself(script: Script, agent: Any, order: str) -> None:
    close = "hooks.close()" if "leave" in order else ""
    body = f"import holdfast_hooks\nhooks = holdfast_hooks.attach()\n{close}"
    outcome = script(body + textwrap.dedent(TRAIN))
    assert (outcome.code, outcome.stderr) == (0, "")
    assert len(agent.of("hello")) == 1
    assert numbers(agent) == []


@pytest.mark.parametrize(
    ("end", "code", "finished"),
    [
        ("pass", 0, True),
        ("sys.exit()", 0, True),
        ("sys.exit(3)", 3, False),
        ("sys.exit('out of data')", 1, False),
        ("raise ValueError('bad sample')", 1, False),
        ("os._exit(0)", 0, False),
        ("dist.destroy_process_group(); os._exit(0)", 0, True),
        ("dist.destroy_process_group(); raise ValueError('late')", 1, True),
    ],
)
def test_only_a_rank_that_ends_well_is_finished(
    script: Script, folder: Path, end: str, code: int, finished: bool
) -> None:
    assert script(f"{TRAIN}    {end}\n").code == code
    assert box(folder).finished == finished
    assert ("ValueError: bad sample" in box(folder).last_words) == ("bad sample" in end)


@pytest.mark.gate
def test_a_rank_in_which_the_hooks_cannot_be_loaded_trains_and_says_so_once(
    script: Script, agent: Any, folder: Path
) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "grpc.py").write_text("raise ImportError('no gRPC here')\n")
    outcome = script(TRAIN + "    dist.destroy_process_group()\n", first_on_path=str(own))
    assert outcome.code == 0
    assert outcome.stderr == "holdfast: rank 0 is not attached: ImportError('no gRPC here')\n"
    assert agent.messages == []


@pytest.mark.gate
@pytest.mark.safety
def test_an_error_of_ours_ends_the_counting_and_not_the_script(script: Script, agent: Any) -> None:
    broken = """
    from holdfast_hooks import Hooks
    def end_step(hooks):
        raise RuntimeError("broken")
    Hooks.end_step = end_step
    """
    outcome = script(textwrap.dedent(broken) + textwrap.dedent(TRAIN))
    assert outcome.code == 0
    assert outcome.stderr.count("steps and phases are not seen any more") == 1
    assert agent.of("report")[-1].finished


def test_a_compiled_optimizer_is_compiled_as_without_us(script: Script, agent: Any) -> None:
    body = """
    begin()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(4):
        loss_of(model, torch.randn(2, 4)).backward()
        step()
    print(torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0)
    """
    outcome = script(body)
    assert (outcome.code, outcome.stdout) == (0, "True\n"), outcome.stderr
