"""Facts about this machine and torchrun's variables, read before a plan is resolved.

`Facts` and `World` hold the results, so that resolving stays pure. Nothing is
imported or executed to find them: not torch, and not the user's own module.
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
_NO_RUN_ID = "none"  # torchrun's value when the job has no name


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes on this host
    local_size: int = 1
    host: str | None = None  # host of the rendezvous; None: a single process
    port: int = 0
    restarts: int = 0  # how often torchrun has started all of us again
    run_id: str | None = None  # torchrun's name for the job, if it has one
    has_agent: bool = False  # our parent is torchrun itself, and no shell or scheduler
    agent_listens: bool = False  # at the meeting place; else rank 0 does

    @property
    def is_alone(self) -> bool:
        """This process was not started as one of several."""
        return self.host is None

    @property
    def is_one_host(self) -> bool:
        return self.local_size == self.size


def read_world(variables: Mapping[str, str]) -> World:
    """ConfigError with everything that is wrong with them."""
    given = [name for name in (*REQUIRED, "LOCAL_RANK") if name in variables]
    missing = [name for name in REQUIRED if name not in variables]
    if not given:
        return World()
    if missing:
        hint = f"start it with torchrun, or set {', '.join(missing)} too, or unset {', '.join(given)}"
        message = f"{', '.join(given)} {_are(given)} set, but {', '.join(missing)} {_are(missing)} not"
        raise TorchrunError([Problem(message, hint)])
    numbers = _Numbers(variables)
    size = numbers.read("WORLD_SIZE", 1, 1 << 20, default=1 << 20)
    rank = numbers.read("RANK", 0, size - 1)
    port = numbers.read("MASTER_PORT", 1, 65535)
    local_size = numbers.read("LOCAL_WORLD_SIZE", 1, size, default=1)
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
    """Settings that the user left out, as the launcher has decided them."""
    decided: dict[str, tuple[object, str]] = {
        "num_workers": (world.size, "WORLD_SIZE"),
        "launcher": ("torchrun", "python -m paceline.worker"),
    }
    missing = {key: value for key, value in decided.items() if key not in config.origins}
    values = {key: value for key, (value, _) in missing.items()}
    origins = {**config.origins, **{key: origin for key, (_, origin) in missing.items()}}
    return replace(config, origins=origins, **values)  # type: ignore[arg-type]  # the keys are its fields


class _Numbers:
    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.problems: list[Problem] = []

    def read(self, name: str, minimum: int, most: int, *, default: int = 0) -> int:
        text = self._variables.get(name)
        if text is None:
            return default
        if text.isascii() and text.isdigit() and minimum <= int(text) <= most:
            return int(text)
        message = f"{name} is {text!r}, but it must be a number from {minimum} to {most}"
        hint = "torchrun sets it; when set manually, ranks go from 0 to WORLD_SIZE - 1"
        self.problems.append(Problem(message, hint, name))
        return default


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


_NVIDIA_DEVICE = re.compile(r"nvidia[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    cuda_devices: int = 0  # GPUs that torch could use
    cpu_count: int = 1  # processors this process may run on
    modules: frozenset[str] = frozenset()  # existing modules among those that the config names
    world: World | None = None  # set if a launcher started the workers, and this process is one of them
    packages: frozenset[str] = frozenset()  # installed packages among those needed for exports


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
    specs = {name: PathFinder.find_spec(name, sys.path) for name in names}
    return frozenset(name for name, spec in specs.items() if spec is not None and spec.origin is not None)


def module_exists(name: str, path: Iterable[str]) -> bool:
    """Like importlib.util.find_spec, which would execute the packages that hold the module."""
    places: Iterable[str] | None = list(path)
    for part in name.split("."):
        if places is None or not part.isidentifier():
            return False
        # Search by the last name: with the full one, a folder without __init__.py needs its parent imported.
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
    """Read from torch's version file: a machine with a GPU may still have the CPU build."""
    spec = PathFinder.find_spec("torch", sys.path)
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return False
    return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None
