"""The settings of a training run as the user wrote them; None means not set.

Each value keeps its origin (`--staleness`, `train.yaml:7`, `PACELINE_STEPS`), so
that a problem can name the place. A key that has an origin but no value was
written and could not be read: its problem is reported already, so later checks skip it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from paceline.sync.fault_rules import ByzantineRule, StragglerRule


class ExportKind(StrEnum):
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    WANDB = "wandb"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTarget:
    """`where` is a folder (tensorboard), an address (mlflow), offline or online (wandb); None: the usual."""

    kind: ExportKind
    where: str | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that must be importable."""
        if self.kind is ExportKind.MLFLOW and self.where is not None and _is_database(self.where):
            return ("mlflow", "sqlalchemy")
        return (self.kind.value,)

    @property
    def install(self) -> str:
        """Command that installs them."""
        if "sqlalchemy" in self.packages:
            return "pip install mlflow"  # mlflow-skinny supports files and servers only
        return f"pip install 'paceline[{self.kind.value}]'"

    @property
    def text(self) -> str:
        return self.kind.value if self.where is None else f"{self.kind.value}={self.where}"


def _is_database(where: str) -> bool:
    scheme = where.partition(":")[0].partition("+")[0]
    return "://" in where and scheme in ("sqlite", "postgresql", "mysql", "mssql")


Option = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    name: str | None = None
    task: str | None = None
    task_options: Mapping[str, Option] | None = None
    data: str | None = None
    data_cache: str | None = None
    data_cache_mb: int | None = None
    shuffle_block: int | None = None
    mode: str | None = None
    num_workers: int | None = None
    elastic: bool | None = None
    shards: int | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    on_slow: str | None = None
    on_give_up: str | None = None
    max_replacements: int | None = None
    steps: int | None = None
    epochs: float | None = None
    evaluate_every: int | Literal["epoch"] | None = None
    early_stop_patience: int | None = None
    early_stop_metric: str | None = None  # NAME, NAME:min or NAME:max
    batch_size: int | tuple[int, ...] | None = None
    seed: int | None = None
    dtype: str | None = None
    device: str | None = None
    optimizer: str | None = None
    lr: float | None = None
    lr_schedule: str | None = None
    lr_warmup: int | None = None
    scale_lr: str | None = None
    weight_decay: float | None = None
    clip_norm: float | None = None
    model: str | None = None
    seq_len: int | None = None
    tokenizer: str | None = None
    activation_checkpointing: str | None = None
    compile: bool | None = None
    grad_accumulation: int | None = None
    compress: str | None = None  # NAME or NAME:AMOUNT
    error_feedback: bool | None = None
    compress_warmup: int | None = None
    backup_workers: int | None = None
    staleness: int | Literal["inf"] | None = None
    staleness_range: int | None = None
    asgd: str | None = None
    dc_lambda: float | None = None
    max_staleness: int | None = None
    aggregate: str | None = None
    byzantine_tolerance: int | None = None
    sync_every: int | None = None
    elasticity: float | None = None
    clients_per_round: float | None = None
    outer_lr: float | None = None
    outer_momentum: float | None = None
    fragments: int | None = None
    sync_delay: int | None = None
    mixing: float | None = None
    adaptive: str | None = None
    post_local_after: int | None = None
    average_optimizer_state: bool | None = None
    freeze_after: int | None = None
    gossip: str | None = None
    topology: str | None = None
    fsdp_precision: str | None = None
    sync_batchnorm: bool | None = None
    on_nan: str | None = None
    straggler: tuple[StragglerRule, ...] | None = None
    byzantine: tuple[ByzantineRule, ...] | None = None
    pace: float | None = None  # seconds
    transport: str | None = None
    launcher: str | None = None
    address: str | None = None
    placement: str | None = None
    restarts: int | None = None
    vmap: bool | None = None
    threads_per_worker: int | None = None
    timeout: float | None = None  # seconds
    checkpoint_every: int | None = None
    keep_checkpoints: int | None = None
    checkpoint_store: str | None = None
    events: str | None = None
    export: tuple[ExportTarget, ...] | None = None
    gradient_norm_every: int | None = None
    alerts: str | None = None
    metrics_port: int | None = None
    metrics_token_file: str | None = None
    run_dir: str | None = None
    save_dir: str | None = None
    # By key; also `straggler[0]` for each rule and `task_options.hidden` for each option.
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, key: str) -> str | None:
        """Location of the setting; for one rule of a list, at least the location of the list."""
        return self.origins.get(key) or self.origins.get(key.partition("[")[0])

    def is_unreadable(self, key: str) -> bool:
        """True if it was written but could not be read; the problem is reported already."""
        return key in self.origins and getattr(self, key) is None
