"""What must be looked up on this machine before a plan can be resolved?

`Facts` is the answer as data, so that resolving stays pure. Nothing is
imported or executed to find it: not torch, and not the user's own module.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path

from paceline.config.train_config import TrainConfig
from paceline.core import environ
from paceline.core.errors import Problem, TorchrunError

# Either all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, or none: then this process is
# alone. The rest is torchrun's and may be missing, as where a scheduler starts one process per host.

REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NO_RUN_ID = "none"  # what torchrun says when nobody named the job


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes on this host
    local_size: int = 1
    host: str | None = None  # where all meet; None: there is nobody to meet
    port: int = 0
    restarts: int = 0  # how often torchrun has started all of us again
    run_id: str | None = None  # torchrun's name for the job, if somebody gave it one
    has_agent: bool = False  # our parent is torchrun itself, and no shell or scheduler
    agent_listens: bool = False  # at the meeting place; else rank 0 does

    @property
    def is_alone(self) -> bool:
        """Nobody started us as one of several."""
        return self.host is None

    @property
    def is_one_host(self) -> bool:
        return self.local_size == self.size


def read_world(variables: Mapping[str, str]) -> World:
    """ConfigError with everything that is wrong with them."""
    said = [name for name in (*REQUIRED, "LOCAL_RANK") if name in variables]
    missing = [name for name in REQUIRED if name not in variables]
    if not said:
        return World()
    if missing:
        hint = f"start it with torchrun, or set {', '.join(missing)} too, or unset {', '.join(said)}"
        what = f"{', '.join(said)} {_are(said)} set, but {', '.join(missing)} {_are(missing)} not"
        raise TorchrunError([Problem(what, hint)])
    numbers = _Numbers(variables)
    size = numbers.read("WORLD_SIZE", 1, 1 << 20, otherwise=1 << 20)
    rank = numbers.read("RANK", 0, size - 1)
    port = numbers.read("MASTER_PORT", 1, 65535)
    local_size = numbers.read("LOCAL_WORLD_SIZE", 1, size, otherwise=1)
    most = local_size if "LOCAL_WORLD_SIZE" in variables else size
    local_rank = numbers.read("LOCAL_RANK", 0, most - 1)
    restarts = numbers.read("TORCHELASTIC_RESTART_COUNT", 0, 1 << 20)
    if numbers.problems:
        raise TorchrunError(numbers.problems)
    run_id = variables.get("TORCHELASTIC_RUN_ID", _NO_RUN_ID)
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        host=variables["MASTER_ADDR"],
        port=port,
        restarts=restarts,
        run_id=None if run_id == _NO_RUN_ID else run_id,
        has_agent="TORCHELASTIC_RUN_ID" in variables,
        agent_listens=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def apply_world(config: TrainConfig, world: World) -> TrainConfig:
    """What the user left unsaid, and whoever started us has said."""
    said: dict[str, tuple[object, str]] = {
        "num_workers": (world.size, "WORLD_SIZE"),
        "launcher": ("torchrun", "python -m paceline.worker"),
    }
    unsaid = {key: value for key, value in said.items() if key not in config.origins}
    values = {key: value for key, (value, _) in unsaid.items()}
    origins = {**config.origins, **{key: origin for key, (_, origin) in unsaid.items()}}
    return replace(config, origins=origins, **values)  # type: ignore[arg-type]  # the keys are its fields


class _Numbers:
    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.problems: list[Problem] = []

    def read(self, name: str, least: int, most: int, *, otherwise: int = 0) -> int:
        text = self._variables.get(name)
        if text is None:
            return otherwise
        if text.isascii() and text.isdigit() and least <= int(text) <= most:
            return int(text)
        what = f"{name} is {text!r}, but it must be a number from {least} to {most}"
        hint = "torchrun sets it; whoever sets it by hand counts ranks from 0 to WORLD_SIZE - 1"
        self.problems.append(Problem(what, hint, name))
        return otherwise


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


_NVIDIA_DEVICE = re.compile(r"nvidia[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    cuda_devices: int = 0  # GPUs that torch could use
    cpu_count: int = 1  # processors this process may run on
    modules: frozenset[str] = frozenset()  # of the modules that the config names, those that exist
    world: World | None = None  # somebody else started the workers, and we are one of them
    packages: frozenset[str] = frozenset()  # of those that exporting needs, the installed ones


def probe_machine(config: TrainConfig) -> Facts:
    named = {
        n.partition(":")[0]
        for n in (config.task, config.mode, config.aggregate)
        if n is not None and ":" in n
    }
    return Facts(
        cuda_devices=_cuda_devices(),
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        modules=frozenset(name for name in named if module_exists(name, [str(Path.cwd()), *sys.path])),
        packages=installed({name for target in config.export or () for name in target.packages}),
    )


def installed(names: Iterable[str]) -> frozenset[str]:
    """Those that can be imported. A folder without code, such as the `wandb/` that W&B leaves, is none."""
    found = {name: PathFinder.find_spec(name, sys.path) for name in names}
    return frozenset(name for name, spec in found.items() if spec is not None and spec.origin is not None)


def module_exists(name: str, path: Iterable[str]) -> bool:
    """Like importlib.util.find_spec, which would execute the packages that hold the module."""
    places: Iterable[str] | None = list(path)
    for part in name.split("."):
        if places is None or not part.isidentifier():
            return False
        # By its last name: by the full one, a folder without __init__.py needs its parent imported.
        spec = PathFinder.find_spec(part, list(places))
        if spec is None:
            return False
        places = spec.submodule_search_locations
    return True


def _cuda_devices() -> int:
    if not _torch_is_built_for_cuda():
        return 0
    seen = sum(1 for entry in Path("/dev").glob("nvidia*") if _NVIDIA_DEVICE.fullmatch(entry.name))
    if not seen and shutil.which("nvidia-smi"):
        seen = 1  # WSL and some containers show the driver but no device file
    visible = environ.cuda_visible_devices()
    return seen if visible is None else min(seen, len(visible))


def _torch_is_built_for_cuda() -> bool:
    """By torch's own version file: a machine with a GPU may still have the CPU build."""
    spec = PathFinder.find_spec("torch", sys.path)
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return False
    return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None
