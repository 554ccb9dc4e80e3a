import pytest

from holdfast_trainer.config_sections import ModelConfig, PrecisionConfig
from holdfast_trainer.flops import active_matrix_elements, flops_per_token, mfu, peak_flops_per_s

BF16 = PrecisionConfig(compute="bf16")
MODEL = ModelConfig(dim=64, layers=3, heads=4, kv_heads=2, hidden=96, vocabulary=256)


def test_matrices_count_whose_product_serves_a_token() -> None:
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64
    assert active_matrix_elements(MODEL) == 3 * (attention + 3 * 64 * 96) + 64 * 256


def test_experts_count_as_far_as_they_are_picked_and_the_router_counts() -> None:
    with_experts = MODEL.model_copy(update={"experts": 8, "experts_per_token": 2})
    assert active_matrix_elements(with_experts) - active_matrix_elements(MODEL) == 3 * (3 * 64 * 96 + 64 * 8)


def test_flops_of_a_known_model_are_those_of_the_palm_formula() -> None:
    # Llama 2 7B: 6.74e9 parameters, of which 32000 x 4096 are the embedding.
    llama = ModelConfig(dim=4096, layers=32, heads=32, kv_heads=32, hidden=11008, vocabulary=32000)
    matrices = 6_738_415_616 - 32_000 * 4096 - 65 * 4096
    assert flops_per_token(llama, sequence=4096) == 6 * matrices + 12 * 32 * 32 * 128 * 4096


def test_mfu_is_the_share_of_the_peak() -> None:
    assert mfu(1000.0, flops_per_token=5e9, peak_flops_per_s=2e13) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("A100-SXM4-40GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_bf16_peak_of_a_known_device(name: str, tera: float) -> None:
    assert peak_flops_per_s(name, BF16) == tera * 1e12


def test_peak_follows_the_type_of_the_products() -> None:
    name = "NVIDIA H100 80GB HBM3"
    assert peak_flops_per_s(name, PrecisionConfig()) == 67e12
    assert peak_flops_per_s(name, PrecisionConfig(compute="fp16")) == 989.5e12
    assert peak_flops_per_s(name, PrecisionConfig(compute="bf16", fp8=True)) == 1979e12
    assert peak_flops_per_s("Tesla V100-SXM2-16GB", PrecisionConfig(compute="fp16")) == 125e12


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "NVIDIA L40",
        "NVIDIA GB200",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "Tesla V100-SXM2-16GB",
    ],
)
def test_no_peak_is_invented(name: str) -> None:
    assert peak_flops_per_s(name, BF16) is None
