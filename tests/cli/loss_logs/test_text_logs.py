"""What is read from the lines that trainers print, and from the odd bytes between them."""

import io
import tracemalloc
from pathlib import Path

import pytest

from holdfast_cli.loss_logs.log_rows import LogRow, open_log

TITAN = "\x1b[31m[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - \x1b[32mstep: {:2}  \x1b[36mloss: {:8.5f}  "
TITAN += "\x1b[38mgrad_norm:  0.8319  memory:  9.46GiB(64.99%)  \x1b[34mtps: 7,282  mfu: 0.17%\x1b[39m\n"
MEGATRON = (
    " [2025-12-01 16:59:00] iteration {:8}/    1926 | consumed samples:           16 | elapsed time per iteration "
)
MEGATRON += "(ms): 859.4 | learning rate: 4.001458E-06 | global batch size:    16 | lm loss: {:E} | loss scale: 1.0 | "
MEGATRON += "grad norm: 1.200 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
TQDM = "  1%|\u258f         | {}/1000 [00:01<01:30, 10.9it/s, v_num=0, loss={}]\r"


def rows_of(text: str | bytes, loss: str | None = None, step: str | None = None) -> list[LogRow]:
    file = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    return list(open_log(file, "log", loss=loss, step=step).rows)


def numbers_of(text: str, **names: str) -> list[tuple[int, float | None]]:
    return [(row.step, row.loss) for row in rows_of(text, **names)]


@pytest.mark.parametrize(
    "form",
    [
        MEGATRON,
        TITAN,
        TQDM,
        "iter {}: loss {:.4f}, time 148.74ms, mfu 0.01%\n",
        "epoch: {} loss: {}\n",
        "step={} loss={}\n",
        "step | {} | loss | {}\n",
        "Iteration {}/5000, Training Loss: {}\n",
        "Step [{}/600], Loss: tensor({}, device='cuda:0')\n",
        'INFO {{"global_step": {}, "loss": "{}"}}\n',
        "Epoch: [0][ {}/5005]\tTime  0.523 ( 0.612)\tLoss {} (7.01e+00)\n",
        "Train: 0 [  {}/1251 (  1%)]  Loss: {} (6.93)  Time: 1.1s  LR: 1.0e-06\n",
        "{}/500 [====>.........] - ETA: 1s - loss: {}\n",
        "epoch 001: num_updates={}, total_loss={}, aux_loss=0.01, min_lr=0\n",
        "rank 0: step {} loss {}\n",
    ],
)
def test_lines_of_known_trainers_are_read(form: str) -> None:
    text = "training ...\n" + "".join(form.format(step, loss) for step, loss in ((8, 3.5), (9, 2.25), (10, 2.5)))
    assert numbers_of(text) == [(8, 3.5), (9, 2.25), (10, 2.5)]


def test_all_numbers_of_a_line_are_read() -> None:
    (row,) = rows_of(" iteration 7/ 100 | learning rate: 4.0E-06 | lm loss: NaN | grad norm: 1,234.5 |\n")
    assert (row.row, row.step, row.grad_norm, row.learning_rate, str(row.loss)) == (1, 7, 1234.5, 4e-6, "nan")


def test_losses_without_a_step_are_counted() -> None:
    text = "".join(
        f"[2023-06-07] [INFO] [Rank 0] step={10 * step}, skipped=0, lr=[1.9e-05], mom=[(0.9, 0.999)]\n"
        f"{{'loss': {2.0 + step}, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.0{step}}}\n"
        for step in range(3)
    )
    assert numbers_of(text) == [(0, 2.0), (1, 3.0), (2, 4.0)]
    assert numbers_of(text.partition("\n")[2]) == [(0, 2.0), (1, 3.0), (2, 4.0)]


def test_a_line_with_other_numbers_of_a_step_has_no_loss() -> None:
    text = "step: 1 loss: 2.0 lr: 1e-5\nstep: 2 loss: none lr: 1e-5\nstep: 3 lr: 1e-5\nstep: 4 saved\n"
    assert numbers_of(text) == [(1, 2.0), (2, None), (3, None)]


@pytest.mark.parametrize(
    "line",
    [
        "step 0: train loss 4.2, val loss 4.3",
        " validation loss at iteration 2 | lm loss value: 9.0E+00 | lm loss PPL: 9.9",
        "step 2: aux loss 9.0 z_loss 9.0 best loss: 9.0",
        "loss 9.0GiB, loss 12%, pre_loss_x=3",
        "Total optimization steps = 5000, max epoch: 3",
        "saving at step 1",
    ],
)
def test_other_numbers_are_not_the_loss(line: str) -> None:
    assert numbers_of(f"iter 1: loss 2.0\n{line}\niter 2: loss 2.5\n") == [(1, 2.0), (2, 2.5)]


def test_names_that_are_given_are_looked_for() -> None:
    assert numbers_of("at 1 ce 2.0 loss 3\nat 2 ce 2.5 loss 4\n", loss="ce", step="at") == [(1, 2.0), (2, 2.5)]


@pytest.mark.parametrize(
    "text",
    [
        "Epoch [1/3], Step [5/6], Loss: 1\nEpoch [2/3], Step [1/6], Loss: 2\nEpoch [2/3], Step [5/6], Loss: 3\n",
        "Epoch 1/3\n5/6 [===] - loss: 1\nEpoch 2/3\n1/6 [===] - loss: 2\n5/6 [===] - loss: 3\n",
        "Train: 0 [ 5/6 (9%)] Loss: 1\nTrain: 1 [ 1/6 (9%)] Loss: 2\nTrain: 1 [ 5/6 (9%)] Loss: 3\n",
        "epoch,step,loss\n0,5,1\n1,1,2\n1,5,3\n",
    ],
)
def test_steps_that_begin_anew_in_each_epoch_are_added(text: str) -> None:
    assert numbers_of(text) == [(5, 1.0), (7, 2.0), (11, 3.0)]


def test_steps_that_go_back_within_an_epoch_go_back() -> None:
    text = "epoch 2 step 5 loss 1\nepoch 2 step 6 loss 2\nepoch 2 step 4 loss 3\nepoch 1 step 1 loss 4\n"
    assert numbers_of(text) == [(5, 1.0), (6, 2.0), (4, 3.0), (1, 4.0)]


@pytest.mark.parametrize("prefix", ["rank {}: ", "[rank{}]:", "[default{}]:", "[1,{}]<stdout>: "])
def test_of_several_ranks_one_is_read(prefix: str) -> None:
    lines = [(0, 1, 2.0), (0, 2, 2.1), (1, 1, 9.0), (0, 3, 2.2), (1, 2, 9.0)]
    text = "".join(f"{prefix.format(rank)}step {step} loss {loss}\n" for rank, step, loss in lines)
    assert numbers_of(text) == [(1, 2.0), (2, 2.1), (3, 2.2)]


def test_garbage_between_the_lines_is_passed_over() -> None:
    parts = [b"\x1f\x8b\x00\xff garbage", b"A" * (3 << 20), b"step: 1 loss: 2.0", b"\xfe\xff\x00", b"loss " * 300_000]
    rows = rows_of(b"\n".join([*parts, b"step: 2 loss: 2.5\r\n"]))
    assert [(row.row, row.step, row.loss) for row in rows] == [(3, 1, 2.0), (6, 2, 2.5)]


def test_parts_of_a_progress_bar_have_the_number_of_its_line() -> None:
    rows = rows_of("training\n" + TQDM.format(1, 2.0) + TQDM.format(2, 2.5) + "\n" + TQDM.format(3, 3.0) + "\n")
    assert [(row.row, row.step) for row in rows] == [(2, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("last", ["step 2", "step 12 los", "step 1 loss 2.5"])
def test_a_last_line_that_is_cut_off_is_left_out(last: str) -> None:
    assert numbers_of(f"step 10 loss 2.0\nstep 11 loss 2.5\n{last}") == [(10, 2.0), (11, 2.5)]


def test_a_line_without_an_end_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as file:
        file.truncate(32 << 20)
        file.seek(0, io.SEEK_END)
        file.write(b"\nstep 1 loss 2.0\n")
    tracemalloc.start()
    with path.open("rb") as file:
        rows = list(open_log(file, "log", loss=None, step=None).rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(row.row, row.step, row.loss) for row in rows] == [(2, 1, 2.0)]
    assert peak < 16 << 20
