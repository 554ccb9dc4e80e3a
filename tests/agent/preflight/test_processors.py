import pytest
import torch

from holdfast_agent.preflight import processors
from holdfast_agent.preflight.outcomes import NodeFaultError, UnmeasuredError

EXACT = torch.tensor([[512.0, 3.0], [4.0, 5.0]])


def altered() -> torch.Tensor:
    changed = EXACT.clone()
    changed[0, 1] += 2**-20
    return changed


def test_exact_products_pass() -> None:
    processors.expect_exact([EXACT, EXACT.clone()], EXACT)


def test_a_product_that_is_wrong_once_is_a_fault() -> None:
    with pytest.raises(NodeFaultError, match="1 of 4 elements of a product are not exact, not the same each time"):
        processors.expect_exact([EXACT, altered()], EXACT)
    with pytest.raises(NodeFaultError, match="are not exact, each time the same"):
        processors.expect_exact([altered(), altered()], EXACT)


def test_a_gpu_may_round_and_must_repeat_itself() -> None:
    rounded = EXACT * (1 + processors.GPU_TOLERANCE / 2)
    processors.expect_close([rounded, rounded.clone()], EXACT[:1].double(), number=3)
    with pytest.raises(NodeFaultError, match="GPU 3 computes wrong: the same product is not the same each time"):
        processors.expect_close([rounded, EXACT], EXACT.double(), number=3)
    with pytest.raises(NodeFaultError, match="GPU 3 computes wrong: a product differs by more than 1%"):
        processors.expect_close([EXACT * 1.5], EXACT.double(), number=3)
    with pytest.raises(NodeFaultError, match="differs"):
        processors.expect_close([EXACT * float("inf")], EXACT.double(), number=3)


def test_a_copy_needs_memory() -> None:
    with pytest.raises(UnmeasuredError, match=r"only 64.0 MiB of memory are free"):
        processors.cpu_memory(64 << 20)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: uncorrectable ECC error encountered\nCompile with ...", NodeFaultError),
        ("CUDA error: unspecified launch failure", NodeFaultError),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", UnmeasuredError),
        ("CUDA error: no kernel image is available for execution on the device", UnmeasuredError),
        ("CUDA out of memory. Tried to allocate 20.00 MiB.", UnmeasuredError),
    ],
)
def test_only_an_error_without_an_excuse_is_a_fault_of_a_gpu(text: str, kind: type[Exception]) -> None:
    failure = processors.gpu_failure(text, 3)
    assert type(failure) is kind
    assert str(failure) == "GPU 3: " + text.partition("\n")[0]
