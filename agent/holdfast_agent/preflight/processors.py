"""Computes and copies on the CPU and on each GPU, and compares the results with exact ones.

The factors are small whole numbers, so that each sum is exact in any order: a result that differs is wrong, whichever
library and however many threads computed it. What runs on a GPU is UNPROVEN: nothing here was tried on one.
"""

import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from holdfast_agent.preflight.outcomes import NodeFaultError, UnmeasuredError
from holdfast_agent.snapshots.memory_room import sized

_CPU_SIZE = 1024
_CPU_FACTOR = 127
"""Largest factor. 1024 products of two are less than 2**24, up to which float32 has every whole number."""
_GPU_SIZE = 4096
_GPU_FACTOR = 7
_GPU_ROWS = 32
"""Rows of the GPU's product that the CPU computes too."""
GPU_TOLERANCE = 0.01
"""Largest difference of a GPU's element from the exact one, as a share of the largest element: bfloat16 has 8 bits."""

_ROUNDS = 8
_LONGEST_S = 1.0
_CPU_COPY_BYTES = 256 << 20
"""More than any cache."""
_LEAST_COPY_BYTES = 32 << 20
_GPU_COPY_BYTES = 512 << 20
_GPU_ROOM_BYTES = 2 << 30

_BROKEN = (
    "uncorrectable ECC",
    "unspecified launch failure",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "hardware stack error",
    "invalid program counter",
    "NVLink",
)
"""Errors of CUDA for which this program gives no reason. Others may mean a busy GPU, or a torch that does not fit."""


def use_all_cores() -> None:
    """Compute with as many threads as this process has cores, whatever the environment says for ranks."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def cpu_gemm() -> float:
    """Return the floating-point operations per second of a float32 product, in the best of several rounds.

    Raises NodeFaultError if a result is wrong.
    """
    left, right = _factors(_CPU_SIZE, _CPU_FACTOR)
    exact = (left.double() @ right.double()).float()
    products, best_s = _repeat(lambda: left @ right)
    expect_exact(products, exact)
    return 2 * _CPU_SIZE**3 / best_s


def expect_exact(products: Sequence[Tensor], exact: Tensor) -> None:
    """Raise NodeFaultError unless all products of the same factors are the exact one, in every bit."""
    wrong = max(int((product != exact).sum()) for product in products)
    if wrong:
        is_same = all(torch.equal(product, products[0]) for product in products)
        again = "each time the same" if is_same else "not the same each time"
        raise NodeFaultError(
            f"the processor computes wrong: {wrong} of {exact.numel()} elements of a product are not exact, {again}"
        )


def cpu_memory(room_bytes: int) -> float:
    """Return the bytes per second that are copied, in the best of several rounds. ``room_bytes``: free memory.

    Raises NodeFaultError if a copy differs, UnmeasuredError if memory is short.
    """
    nbytes = min(_CPU_COPY_BYTES, room_bytes // 8)
    if nbytes < _LEAST_COPY_BYTES:
        raise UnmeasuredError(f"only {sized(room_bytes)} of memory are free")
    source, target = _copy_buffers(nbytes, "cpu")
    _, best_s = _repeat(lambda: target.copy_(source))
    if not torch.equal(source, target):
        raise NodeFaultError("a copy in memory differs from its source")
    return nbytes / best_s


def gpu_number(device: int, uuids: Sequence[str]) -> int:
    """Return the number on the node of a GPU that torch numbers ``device``. ``uuids``: those of the node's, in order.

    CUDA_VISIBLE_DEVICES hides GPUs and changes their order.
    """
    uuid = f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', '')}"
    return uuids.index(uuid) if uuid in uuids else device


def gpus() -> int:
    """Return how many GPUs torch can use. Raises UnmeasuredError if it was built for GPUs and can use none."""
    if not torch.cuda.is_available():
        if torch.version.cuda:
            raise UnmeasuredError("torch cannot use the GPUs")
        return 0
    return torch.cuda.device_count()


def open_gpu(device: int, number: int) -> None:
    """Use a GPU for the first time: that loads libraries. Raises UnmeasuredError, or NodeFaultError if it fails."""

    def warm_up() -> float:
        small = torch.ones(64, 64, device=f"cuda:{device}", dtype=torch.bfloat16)
        torch.cuda.synchronize(device)
        return float((small @ small)[0, 0])

    _on_gpu(device, number, warm_up)


def gpu_gemm(device: int, number: int) -> float:
    """Return the operations per second of a bfloat16 product on a GPU. ``number``: its number on the node.

    Raises NodeFaultError if a result is wrong, or the GPU fails.
    """

    def measure() -> float:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        factors = _factors(_GPU_SIZE, _GPU_FACTOR)
        left, right = (factor.to(f"cuda:{device}", torch.bfloat16) for factor in factors)
        products, best_s = _repeat(lambda: left @ right, lambda: torch.cuda.synchronize(device))
        exact = factors[0][:_GPU_ROWS].double() @ factors[1].double()
        expect_close(products, exact, number)
        return 2 * _GPU_SIZE**3 / best_s

    return _on_gpu(device, number, measure)


def expect_close(products: Sequence[Tensor], exact: Tensor, number: int) -> None:
    """Raise NodeFaultError unless all products agree in every bit, and their first rows with ``exact``."""
    if not all(torch.equal(product, products[0]) for product in products):
        raise NodeFaultError(f"GPU {number} computes wrong: the same product is not the same each time")
    rows = products[0][: len(exact)].cpu().double()
    if not bool(((rows - exact).abs() <= GPU_TOLERANCE * exact.abs().max()).all()):
        raise NodeFaultError(f"GPU {number} computes wrong: a product differs by more than {GPU_TOLERANCE:.0%}")


def gpu_memory(device: int, number: int) -> float:
    """Return the bytes per second that are copied inside a GPU's memory. ``number``: its number on the node.

    Raises NodeFaultError if a copy differs, or the GPU fails.
    """

    def measure() -> float:
        source, target = _copy_buffers(_GPU_COPY_BYTES, f"cuda:{device}")
        _, best_s = _repeat(lambda: target.copy_(source), lambda: torch.cuda.synchronize(device))
        if not torch.equal(source, target):
            raise NodeFaultError(f"a copy in the memory of GPU {number} differs from its source")
        return _GPU_COPY_BYTES / best_s

    return _on_gpu(device, number, measure)


def gpu_failure(text: str, number: int) -> Exception:
    """Return what an error of CUDA means for the node."""
    line = text.partition("\n")[0]
    kind = NodeFaultError if any(sign in text for sign in _BROKEN) else UnmeasuredError
    return kind(f"GPU {number}: {line}")


def _on_gpu(device: int, number: int, measure: Callable[[], float]) -> float:
    try:
        if torch.cuda.mem_get_info(device)[0] < _GPU_ROOM_BYTES:
            raise UnmeasuredError(f"GPU {number} has less than {sized(_GPU_ROOM_BYTES)} free")
        figure = measure()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise gpu_failure(str(error), number) from None
    return figure


def _factors(size: int, largest: int) -> tuple[Tensor, Tensor]:
    """Return two square matrices of whole numbers, the same on every node."""
    draw = torch.Generator().manual_seed(0)
    first, second = torch.randint(-largest, largest + 1, (2, size, size), generator=draw).float()
    return first, second


def _copy_buffers(nbytes: int, device: str) -> tuple[Tensor, Tensor]:
    source = torch.arange(nbytes // 8, dtype=torch.int64, device=device).mul_(0x9E3779B97F4A7C1)
    return source, torch.zeros_like(source)


def _repeat(work: Callable[[], Tensor], settle: Callable[[], None] = lambda: None) -> tuple[list[Tensor], float]:
    """Do work at least twice, and for at most about a second; return its results and the seconds of the best."""
    results: list[Tensor] = []
    times: list[float] = []
    while len(times) < 2 or (len(times) < _ROUNDS and sum(times) < _LONGEST_S):
        settle()
        began_s = time.perf_counter()
        results.append(work())
        settle()
        times.append(time.perf_counter() - began_s)
    return results, min(times)
