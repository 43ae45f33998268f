"""Contenders of `paceline benchmark torch` and their plans, decided before anything starts. Pure.

`batch_size` is the global batch here: what a step takes in all, dealt to the workers, and whole to the one
that trains alone. So all make the same steps over the same samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from paceline.config.environment import Facts
from paceline.config.keys import KEYS
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, Problem
from paceline.plan import decide
from paceline.plan.check import check
from paceline.plan.plan import Launcher, Plan
from paceline.plan.resolve import BASELINE, config_for_mode, resolve, single_worker_plan

SETTINGS_READ = (
    *("task", "task_options", "data", "num_workers", "steps", "epochs", "batch_size", "seed", "dtype"),
    *(
        "optimizer",
        "lr",
        "weight_decay",
        "threads_per_worker",
        "timeout",
        "transport",
        "address",
        "placement",
    ),
    *("staleness", "staleness_range", "asgd", "dc_lambda", "max_staleness", "sync_every", "elasticity"),
    *("clients_per_round", "outer_lr", "outer_momentum", "backup_workers", "compress", "gossip", "topology"),
)


DEFAULT_MODES = ("ssgd",)
DEFAULT_BATCH = 64
_LAUNCHERS = (Launcher.LOCAL, Launcher.RAY)
DDP = "ddp"
RAY_TRAIN = "ray"
_PEERS = (DDP, RAY_TRAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRequest:
    config: TrainConfig  # its own mode and launcher are not read
    modes: tuple[str, ...] = DEFAULT_MODES
    launchers: tuple[str, ...] = (Launcher.LOCAL, Launcher.RAY)
    peers: tuple[str, ...] | None = None  # None: torch DDP, and Ray Train if Paceline runs on Ray too


@dataclass(frozen=True, slots=True, kw_only=True)
class PacelineRun:
    """A Paceline mode, started by one launcher."""

    name: str
    title: str
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    alone: Plan
    together: Plan  # what torch DDP and Ray Train do
    ours: tuple[PacelineRun, ...]
    peers: tuple[str, ...]
    address: str | None  # of Ray; None: no contestant uses it

    @property
    def subject(self) -> str:
        """Contender whose speedup is reported: the first mode, by the launcher that reaches furthest."""
        first = self.ours[0].plan.mode
        return [own.name for own in self.ours if own.plan.mode == first][-1]


def lay_out(
    request: TorchRequest,
    facts: Facts,
    *,
    config_problems: Sequence[Problem] = (),
    count: Callable[[TrainConfig], int] | None = None,
) -> Layout:
    """Raises ConfigError with every problem, each once."""
    config, batch_problems = _shared(request.config)
    problems = [*config_problems, *batch_problems, *_about_request(request), *_unread(request.config)]
    configs = _configs(request, config)
    problems += [problem for _, own_config in configs for problem in check(own_config, facts)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    ours = tuple(_own(own_config, resolve(own_config, facts, count=count)) for _, own_config in configs)
    if problems := _namesakes([mode for mode, _ in configs], ours):
        raise ConfigError(problems)
    first = next((own.plan for own in ours if own.plan.num_workers > 1), ours[0].plan)
    together = replace(first, mode="ddp", launcher=Launcher.LOCAL, ray=None, compress=None, lr_scale=1.0)
    peers = _peers(request)
    uses_ray = RAY_TRAIN in peers or any(own.plan.ray is not None for own in ours)
    return Layout(
        alone=replace(single_worker_plan(together), launcher=Launcher.LOCAL, ray=None),
        together=together,
        ours=ours,
        peers=peers,
        address=(request.config.address or "local") if uses_ray else None,
    )


def _peers(request: TorchRequest) -> tuple[str, ...]:
    default = _PEERS if Launcher.RAY in request.launchers else (DDP,)
    return default if request.peers is None else tuple(dict.fromkeys(request.peers))


def _configs(request: TorchRequest, config: TrainConfig) -> list[tuple[str, TrainConfig]]:
    """Configs of each mode and launcher; settings that either does not read are left out."""
    configs = []
    for mode in dict.fromkeys(request.modes):
        for launcher in [name for name in dict.fromkeys(request.launchers) if name in _LAUNCHERS]:
            own_config = replace(config_for_mode(config, mode), launcher=launcher)
            if launcher != Launcher.RAY:
                own_config = replace(own_config, address=None, placement=None)
            else:
                own_config = replace(own_config, transport=None)  # memory is not shared there
            if decide.mode_name_of(own_config) == BASELINE and isinstance(config.batch_size, int):
                whole = config.batch_size * (config.num_workers or 1)
                own_config = replace(own_config, num_workers=1, batch_size=whole)
            configs.append((mode, own_config))
    return configs


def _own(config: TrainConfig, plan: Plan) -> PacelineRun:
    is_on_ray = config.launcher == Launcher.RAY
    name = "".join(c if c.isalnum() else "-" for c in plan.mode.rpartition(":")[2].lower())
    suffix, title_suffix = ("-ray", " on Ray") if is_on_ray else ("", "")
    # `ddp` and `ray` are the files of others.
    stem = f"paceline-{name}" if name in ("ddp", "ray", "baseline") else name
    return PacelineRun(
        name=stem + suffix, title=("paceline ddp" if name == "ddp" else name) + title_suffix, plan=plan
    )


def _namesakes(modes: Sequence[str], ours: Sequence[PacelineRun]) -> list[Problem]:
    """Turns and files go by name: of two with one name, only the last would take part."""
    problems: list[Problem] = []
    first: dict[str, str] = {}
    for mode, own in zip(modes, ours, strict=True):
        if own.name in first:
            message = f"{first[own.name]} and {mode} would both be called {own.name}"
            problems.append(Problem(message, "leave one out, or give its class another name", "--modes"))
        first.setdefault(own.name, mode)
    return problems


def _shared(config: TrainConfig) -> tuple[TrainConfig, list[Problem]]:
    """The same config with what each worker takes of a step."""
    workers = 2 if config.num_workers is None else config.num_workers
    batch = DEFAULT_BATCH if config.batch_size is None else config.batch_size
    if isinstance(batch, tuple):
        message = "batch_size lists several numbers, but a benchmark has one global batch size"
        return config, [
            Problem(message, "give one number, such as --batch-size 64", config.origin("batch_size"))
        ]
    if workers < 1:
        return config, []  # said by the checks
    if batch % workers:
        message = f"batch_size is {batch} (global), which is not divisible by {workers} workers"
        hint = f"set batch_size to a multiple of {workers}, such as {-(-batch // workers) * workers}"
        return config, [Problem(message, hint, config.origin("batch_size"))]
    return replace(config, num_workers=workers, batch_size=batch // workers), []


def _about_request(request: TorchRequest) -> list[Problem]:
    problems = []
    if not request.modes:
        problems.append(Problem("modes is empty", "write --modes ssgd, for example", "--modes"))
    for name in request.launchers:
        if name not in _LAUNCHERS:
            problems.append(Problem(f"there is no launcher {name!r}", "use local, ray or both", "--launcher"))
    for name in request.peers or ():
        if name not in _PEERS:
            problems.append(Problem(f"there is no peer {name!r}", "use ddp, ray or both", "--peers"))
    if not request.launchers:
        problems.append(Problem("no launcher is named", "use local, ray or both", "--launcher"))
    return problems


def _unread(config: TrainConfig) -> list[Problem]:
    """Options that plain torch does not have, so that the work would differ."""
    names = [f.name for f in fields(config) if f.name in KEYS and f.name not in SETTINGS_READ]
    given = [name for name in names if getattr(config, name) is not None and name not in ("mode", "launcher")]
    return [
        Problem(
            f"{name} is set, but not every contender of this benchmark supports it",
            "remove it, or compare only Paceline modes: paceline compare",
            config.origin(name),
        )
        for name in given
    ]
