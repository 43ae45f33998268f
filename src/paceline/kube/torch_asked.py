"""Which flags of `job render` are there for jobs that torchrun starts? As they were said, unread."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

TRAINERS = ("2.1", "2.2", "2.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchWishes:
    nodes: int | None = None  # None: one
    gpus_per_node: int = 0
    gpu_claims: bool = False  # by DRA, where no device plugin offers nvidia.com/gpu
    procs_per_node: int | None = None  # None: one for each GPU, or one
    torchrun: str | None = None  # None: where the images of conda have it
    rdzv: str = "static"
    elastic_nodes: str | None = None  # MIN:MAX
    efa: int = 0
    shm: str = "1Gi"
    checkpoint_volume: str | None = None  # CLAIM[:PATH]
    volumes: Sequence[str] = ()  # CLAIM:PATH[:ro]
    create_volumes: Sequence[str] = ()  # CLAIM=SIZE[/STORAGECLASS]
    config_map: bool = False
    env: Sequence[str] = ()  # NAME=VALUE
    torch_debug: bool = False
    hf_secret: str | None = None  # SECRET[/KEY]
    instance_type: str | None = None
    node_selector: Sequence[str] = ()  # KEY=VALUE
    queue: str | None = None
    priority: str | None = None
    service_account: str | None = None
    rbac: bool = False
    network_policy: bool = False
    trainer: str = "2.3"
    runtime: str | None = None  # [KIND/]NAME
    spares: int = 0
    allow_restart_from_zero: bool = False

    def said(self) -> list[str]:
        """The flags that were said."""
        usual = TorchWishes()
        names = [one.name for one in fields(self) if getattr(self, one.name) != getattr(usual, one.name)]
        return [f"--{_FLAGS.get(name, name).replace('_', '-')}" for name in names]


_FLAGS = {"volumes": "volume", "create_volumes": "create_volume"}
