"""The public names, with their types. Written by `make docs` from the code. Do not edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from paceline.api.compare import Comparison as Comparison
from paceline.api.result import Evaluation as Evaluation, Losses as Losses, TrainResult as TrainResult
from paceline.api.train import TrainStoppedError as TrainStoppedError
from paceline.comparison.schema import Cell as Cell, Estimate as Estimate
from paceline.core.errors import ConfigError as ConfigError, NotReadyError as NotReadyError, PacelineError as PacelineError, TrainingError as TrainingError
from paceline.worker.script.run import Run as Run

__version__: str
__all__ = ["__version__", "train", "resume", "run", "compare", "join", "Run", "Comparison", "Cell", "Estimate", "TrainStoppedError", "TrainResult", "Losses", "Evaluation", "metric", "PacelineError", "ConfigError", "NotReadyError", "TrainingError"]

class _Settings(TypedDict, total=False):
    name: str
    task_options: Mapping[str, bool | int | float | str]
    data: str
    data_cache: str
    data_cache_mb: int
    shuffle_block: int
    elastic: bool
    shards: int
    min_workers: int
    max_workers: int
    on_slow: Literal["tolerate", "rebalance", "replace"]
    on_give_up: Literal["fail", "pause"]
    max_replacements: int
    steps: int
    epochs: float
    evaluate_every: int | Literal["epoch"]
    early_stop_patience: int
    early_stop_metric: str
    batch_size: int | Sequence[int]
    seed: int
    dtype: Literal["float32", "float64"]
    device: Literal["auto", "cpu", "cuda"]
    optimizer: Literal["sgd", "momentum", "nesterov", "adam", "adamw"]
    lr: float
    lr_schedule: Literal["constant", "cosine", "linear"]
    lr_warmup: int
    scale_lr: Literal["none", "linear"]
    weight_decay: float
    clip_norm: float
    model: str
    seq_len: int
    tokenizer: str
    activation_checkpointing: Literal["none", "selective", "full"]
    compile: bool
    grad_accumulation: int
    compress: str
    error_feedback: bool
    compress_warmup: int
    backup_workers: int
    staleness: int | Literal["inf"]
    staleness_range: int
    asgd: Literal["plain", "staleness-aware", "dc", "ringmaster"]
    dc_lambda: float
    max_staleness: int
    aggregate: str
    byzantine_tolerance: int
    sync_every: int
    elasticity: float
    clients_per_round: float
    outer_lr: float
    outer_momentum: float
    fragments: int
    sync_delay: int
    mixing: float
    adaptive: Literal["auto", "batch", "local-steps"]
    post_local_after: int
    average_optimizer_state: bool
    freeze_after: int
    gossip: Literal["dpsgd", "diffusion", "push-sum"]
    topology: Literal["ring", "torus", "hypercube", "star", "complete", "exponential"]
    fsdp_precision: Literal["none", "bf16"]
    sync_batchnorm: bool
    on_nan: Literal["stop", "skip"]
    straggler: str | Sequence[str]
    byzantine: str | Sequence[str]
    pace: str | float
    transport: Literal["auto", "none", "shm", "gloo", "nccl", "tcp", "cuda-ipc"]
    launcher: Literal["local", "virtual", "torchrun", "ray", "agents"]
    address: str
    placement: Literal["pack", "spread", "strict_pack", "strict_spread"]
    restarts: int
    vmap: bool
    threads_per_worker: int
    timeout: str | float
    checkpoint_every: int
    keep_checkpoints: int
    checkpoint_store: str
    events: Literal["full", "off"]
    export: str | Sequence[str]
    gradient_norm_every: int
    alerts: str
    metrics_port: int
    metrics_token_file: str
    run_dir: str
    save_dir: str

def train(task: str | type = 'xor', *, mode: str | type = 'ssgd', workers: int | None = None, progress: bool = True, config: str | Path | None = None, **settings: Unpack[_Settings]) -> TrainResult: ...
def resume(run_dir: str | Path, *, progress: bool = True) -> TrainResult: ...
def run(train: Callable[..., object] | str | Path, *, mode: str | type | None = None, workers: int | None = None, arguments: Sequence[object] | Mapping[str, object] = (), progress: bool = True, config: str | Path | None = None, **settings: Unpack[_Settings]) -> TrainResult: ...
def compare(task: str | Path | type | Callable[..., object] = 'xor', *, arguments: Sequence[object] | Mapping[str, object] = (), modes: Sequence[str | type] = ('single', 'ssgd', 'asgd', 'ssp', 'localsgd'), workers: int | Sequence[int] = 2, repeats: int = 3, target_loss: float | None = None, target_accuracy: float | None = None, out: str | Path = 'comparison', progress: bool = True, config: str | Path | None = None, **settings: Unpack[_Settings]) -> Comparison: ...
def join() -> Run: ...
def metric(name: str, value: float) -> None: ...
