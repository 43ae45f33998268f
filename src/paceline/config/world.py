"""Which of how many processes are we, when somebody else started us? What torchrun's variables say.

Either all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, or none: then this process is
alone. The rest is torchrun's and may be missing, as where a scheduler starts one process per host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.config.train_config import TrainConfig
from paceline.errors import Problem, TorchrunError

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


def adopt(config: TrainConfig, world: World) -> TrainConfig:
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
