"""The sections of a trainer's configuration: the type, range, default and meaning of each setting."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

BYTE_VOCABULARY = 256
"""One token per byte value."""

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """One table of the TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelConfig(Section):
    """The transformer."""

    dim: PositiveInt = 64
    """Width of the residual stream."""
    layers: PositiveInt = 4
    """Number of blocks."""
    heads: PositiveInt = 4
    """Number of query heads."""
    kv_heads: PositiveInt = 2
    """Number of key and value heads. Each serves model.heads / model.kv_heads query heads."""
    head_dim: NonNegativeInt = 0
    """Width of a head. 0: model.dim / model.heads."""
    hidden: PositiveInt = 192
    """Width inside the feed-forward part. With experts: width inside one expert."""
    vocabulary: PositiveInt = BYTE_VOCABULARY
    """Rows of the embedding and of the head. At least as many as the tokenizer has tokens (256 for bytes)."""
    tied: bool = False
    """Share one weight between the embedding and the head."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the frequencies of the rotary position embedding."""
    rope_scaling: Literal["none", "linear", "llama3"] = "none"
    """Change of these frequencies for long sequences: all are divided by model.rope_factor (`linear`), or low ones
    alone (`llama3`)."""
    rope_factor: Annotated[float, Field(ge=1)] = 8.0
    """Divisor of the scaled frequencies."""
    rope_low_frequency: PositiveFloat = 1.0
    """With llama3: a frequency with at most this number of turns in model.rope_sequence tokens is low."""
    rope_high_frequency: PositiveFloat = 4.0
    """With llama3: a frequency with at least this number of turns stays as it is. In between, the divisor changes
    smoothly."""
    rope_sequence: PositiveInt = 8192
    """With llama3: length of the sequences that the model was trained on before, in tokens."""
    norm_epsilon: PositiveFloat = 1e-5
    """Number added to the mean square in every RMSNorm."""
    experts: NonNegativeInt = 0
    """Number of experts in each block. A router picks a few for each token. 0: one feed-forward part for all tokens."""
    experts_per_token: PositiveInt = 2
    """Number of experts that the router picks for a token."""
    capacity_factor: NonNegativeFloat = 0.0
    """Tokens of a sequence that an expert takes, as a multiple of its even share. It drops more. 0: no limit."""
    balance_coefficient: NonNegativeFloat = 0.01
    """Weight of the load-balance loss in the total loss."""
    init_from: str = ""
    """Folder with a Llama model of Hugging Face, whose weights the run starts from. Its config.json gives all settings
    of the model that are not set. Empty: random weights."""

    @property
    def weights_folder(self) -> Path:
        """The folder ``init_from``."""
        return Path(self.init_from).expanduser()

    @property
    def head_width(self) -> int:
        """Width of a head: model.head_dim, or its default."""
        return self.head_dim or self.dim // self.heads


class ParallelConfig(Section):
    """The layout. The number of ranks is dp x cp x tp x pp."""

    dp: PositiveInt = 1
    """Number of data-parallel ranks."""
    dp_shard: NonNegativeInt = 0
    """Number of dp ranks (times cp) over which the state is sharded. Others hold replicas (HSDP). 0: all dp ranks."""
    zero: Annotated[int, Field(ge=0, le=3)] = 3
    """ZeRO stage. 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the parameters."""
    tp: PositiveInt = 1
    """Number of tensor-parallel ranks."""
    pp: PositiveInt = 1
    """Number of pipeline-parallel ranks."""
    cp: PositiveInt = 1
    """Number of context-parallel ranks. They share one sequence."""
    ep: PositiveInt = 1
    """Number of expert-parallel ranks, each with its own experts. Taken from dp_shard x cp (at ZeRO 0: dp x cp)."""
    microbatches: PositiveInt = 1
    """Number of parts in which each dp rank computes its share of the global batch (gradient accumulation)."""
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"] = "1f1b"
    """Order of the forward and backward passes of the microbatches in the pipeline."""
    sequence_parallel: bool = True
    """Shard the activations between the tensor-parallel parts along the sequence, over the tp ranks."""
    loss_parallel: bool = True
    """Compute the loss on logits that are sharded along the vocabulary, over the tp ranks."""

    @property
    def ranks(self) -> int:
        """Number of ranks of this layout."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def shards(self) -> int:
        """Number of data-parallel ranks that share one copy of the state."""
        if self.zero == 0:
            return 1
        return self.dp_shard or self.dp

    @property
    def replicas(self) -> int:
        """Number of copies of the state."""
        return self.dp // self.shards

    @property
    def stages_per_rank(self) -> int:
        """Pipeline stages that each rank holds."""
        return 2 if self.pp > 1 and self.schedule in ("interleaved-1f1b", "zero-bubble") else 1


class PrecisionConfig(Section):
    """Data types. Master weights, optimizer state and reductions are always fp32."""

    compute: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Data type of parameters and activations in forward and backward passes. fp16 scales the loss dynamically."""
    fp8: bool = False
    """Compute the matrix products of the blocks in fp8. Needs a GPU of compute capability 8.9 or higher."""
    loss_scale: PositiveFloat = 65536.0
    """Loss scale of the first step, with fp16."""
    loss_scale_interval: PositiveInt = 2000
    """Number of steps without overflow after which the loss scale doubles."""


class MemoryConfig(Section):
    """Ways to save memory."""

    checkpointing: Literal["none", "selective", "full"] = "none"
    """Activations that the backward pass computes again: none, all of a block (`full`), or all but those of matrix
    products and attention (`selective`)."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """State in host memory: none, optimizer state and master weights (`optimizer`), or all sharded state
    (`parameters`)."""
    compile: bool = False
    """Compile each block with torch.compile."""


class DataConfig(Section):
    """The text to train and to validate on."""

    source: str = "stdlib"
    """Path of a text file, of a folder of text files, or of a file of token ids (`*.bin`, `*.npy`). `stdlib`: Python's
    own standard library, its source files."""
    validation: str = ""
    """Path of the text or tokens to validate on. Empty: a share of data.source."""
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of data.source to validate on, if data.validation is empty."""
    tokenizer: str = "bytes"
    """`bytes`, or the path of a Hugging Face tokenizer.json."""
    token_dtype: Literal["uint16", "uint32"] = "uint16"
    """Data type of the ids in a raw token file (`*.bin`)."""
    cache_directory: Path = Path("~/.cache/holdfast")
    """Folder that keeps prepared corpora from run to run. `~` is the home folder."""
    sequence: PositiveInt = 128
    """Tokens in one sample."""
    document_end: NonNegativeInt | None = None
    """Id of the token that ends a document. Attention then stays within each document of a sample, and positions begin
    again at each. Each text file is a document and gets this token at its end. Unset: a sample is one text."""
    prefetch: NonNegativeInt = 2
    """Number of batches that a thread prepares ahead. 0: none."""
    overlap_ngram: NonNegativeInt = 13
    """Tokens in an n-gram, for the check whether validation text occurs in the training text. 0: no check. With
    the tokenizer `bytes`, an n-gram has five times as many."""
    overlap_limit: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Largest share of the validation text's n-grams that may occur in the training text. 1: no limit."""


class TrainConfig(Section):
    """The training loop."""

    steps: PositiveInt = 120
    """Number of optimizer steps."""
    global_batch: PositiveInt = 8
    """Samples in a step, over all ranks."""
    seed: NonNegativeInt = 0
    """Seed of the initial weights and of the order of the samples."""
    validate_every: NonNegativeInt = 40
    """Steps between validations. 0: never."""
    validation_batches: PositiveInt = 4
    """Global batches in one validation."""
    log_every: PositiveInt = 10
    """Steps between lines on stdout."""
    replay_every: NonNegativeInt = 0
    """Steps from one that is replayed to find silent corruption to the next, each twice as long as others. 0: none."""


class OptimizerConfig(Section):
    """The optimizer, its learning rate schedule, and gradient clipping."""

    name: Literal["adamw", "sgd"] = "adamw"
    """Name of the optimizer."""
    learning_rate: PositiveFloat = 3e-3
    """Highest learning rate, reached at the end of the warm-up."""
    warmup_steps: NonNegativeInt = 20
    """Steps over which the learning rate rises linearly."""
    floor: Fraction = 0.1
    """Learning rate of the last step, after a cosine decay, as a fraction of optimizer.learning_rate."""
    beta1: Fraction = 0.9
    """Decay of the mean of the gradient (AdamW)."""
    beta2: Fraction = 0.95
    """Decay of the mean of the squared gradient (AdamW)."""
    epsilon: PositiveFloat = 1e-8
    """Number added to the denominator of the update (AdamW)."""
    momentum: Fraction = 0.9
    """Decay of the running sum of gradients (SGD)."""
    weight_decay: NonNegativeFloat = 0.1
    """Weight decay of matrices. Vectors are not decayed."""
    clip_norm: PositiveFloat = 1.0
    """Largest global norm of the gradient. Larger gradients are scaled down to it."""
    check_updates: bool = False
    """Skip the update of a step whose gradient is not finite or far larger than usual. Each step waits for the
    device."""


class DistributedConfig(Section):
    """Devices and communication."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the ranks: `cpu` with gloo, or `cuda` with NCCL. `auto` takes CUDA if the machine has it."""
    backend: Literal["auto", "gloo"] = "auto"
    """Backend on GPUs: NCCL with `auto`. `gloo` lets several ranks share one GPU."""
    timeout_s: PositiveFloat = 600.0
    """Seconds that a collective may take before the process group gives up."""


_Finite = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_PositiveFinite = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]


class HardwareConfig(Section):
    """The machines, for `holdfast plan` alone: what differs from the preset of --gpu. Rates are of one direction."""

    gpus_per_node: PositiveInt = 8
    """GPUs in one machine."""
    memory_gb: _Finite = 0.0
    """Memory of a GPU in GB. 0, here and below: that of the preset."""
    memory_gb_per_s: _Finite = 0.0
    """Rate of a GPU's memory in GB/s."""
    peak_tflops: _Finite = 0.0
    """Dense peak of a GPU in the data type of the computation, in 10^12 operations per second."""
    node_gbps: _Finite = 0.0
    """Rate between GPUs of a node in Gbit/s."""
    network_gbps: _Finite = 0.0
    """Rate between nodes in Gbit/s, for each GPU."""
    host_gbps: _Finite = 0.0
    """Rate between a GPU and its host's memory in Gbit/s."""
    node_latency_us: _Finite = 0.0
    """Time of a small message between GPUs of a node in microseconds."""
    network_latency_us: _Finite = 0.0
    """Time of a small message between nodes in microseconds."""
    host_memory_gb_per_s: _PositiveFinite = 50.0
    """Rate of a host's memory in GB/s, for each of its GPUs: an offloaded optimizer steps there."""
    gpu_hour_price: _Finite = 0.0
    """Price of one GPU for an hour, in any currency. 0: the plan names no costs."""
    gpu_hours_to_failure: _PositiveFinite = 50_000.0
    """Mean time between failures of one GPU, with its share of everything else, in hours."""
    checkpoint_s: _Finite = 0.0
    """Seconds for which a checkpoint stops training, as measured. 0: the copy of the state to the host."""
    restart_s: _Finite = 300.0
    """Seconds from a failure to the first new step."""
