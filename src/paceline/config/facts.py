"""What must be looked up on this machine before a plan can be resolved?

`Facts` is the answer as data, so that resolving stays pure. Nothing is
imported or executed to find it: not torch, and not the user's own module.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from paceline import environ
from paceline.config.train_config import TrainConfig
from paceline.config.world import World

_NVIDIA_DEVICE = re.compile(r"nvidia[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    cuda_devices: int = 0  # GPUs that torch could use
    cpu_count: int = 1  # processors this process may run on
    modules: frozenset[str] = frozenset()  # of the modules that the config names, those that exist
    world: World | None = None  # somebody else started the workers, and we are one of them
    packages: frozenset[str] = frozenset()  # of those that exporting needs, the installed ones


def look_up_facts(config: TrainConfig) -> Facts:
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
