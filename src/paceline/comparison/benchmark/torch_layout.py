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
    peers: tuple[str, ...] | None = None  # None: torch DDP, and Ray Train where ours are on Ray too


@dataclass(frozen=True, slots=True, kw_only=True)
class PacelineRun:
    """A mode of ours, started by one launcher."""

    name: str
    title: str
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    alone: Plan
    together: Plan  # what torch DDP and Ray Train do
    ours: tuple[PacelineRun, ...]
    peers: tuple[str, ...]
    address: str | None  # of Ray; None: nobody uses it

    @property
    def subject(self) -> str:
        """Whose speedup is asked for: the first mode, by the launcher that reaches furthest."""
        first = self.ours[0].plan.mode
        return [own.name for own in self.ours if own.plan.mode == first][-1]


def lay_out(
    request: TorchRequest,
    facts: Facts,
    *,
    found: Sequence[Problem] = (),
    count: Callable[[TrainConfig], int] | None = None,
) -> Layout:
    """Raises ConfigError with every problem, each once."""
    config, about = _shared(request.config)
    problems = [*found, *about, *_about_request(request), *_unread(request.config)]
    configs = _configs(request, config)
    problems += [problem for _, said in configs for problem in check(said, facts)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    ours = tuple(_own(said, resolve(said, facts, count=count)) for _, said in configs)
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
    usual = _PEERS if Launcher.RAY in request.launchers else (DDP,)
    return usual if request.peers is None else tuple(dict.fromkeys(request.peers))


def _configs(request: TorchRequest, config: TrainConfig) -> list[tuple[str, TrainConfig]]:
    """For each mode and each launcher; settings that either does not read are left out."""
    found = []
    for mode in dict.fromkeys(request.modes):
        for launcher in [name for name in dict.fromkeys(request.launchers) if name in _LAUNCHERS]:
            said = replace(config_for_mode(config, mode), launcher=launcher)
            if launcher != Launcher.RAY:
                said = replace(said, address=None, placement=None)
            else:
                said = replace(said, transport=None)  # memory is not shared there
            if decide.mode_name_of(said) == BASELINE and isinstance(config.batch_size, int):
                whole = config.batch_size * (config.num_workers or 1)
                said = replace(said, num_workers=1, batch_size=whole)
            found.append((mode, said))
    return found


def _own(said: TrainConfig, plan: Plan) -> PacelineRun:
    is_on_ray = said.launcher == Launcher.RAY
    name = "".join(c if c.isalnum() else "-" for c in plan.mode.rpartition(":")[2].lower())
    suffix, words = ("-ray", " on Ray") if is_on_ray else ("", "")
    # `ddp` and `ray` are the files of others.
    stem = f"paceline-{name}" if name in ("ddp", "ray", "baseline") else name
    return PacelineRun(name=stem + suffix, title=("our ddp" if name == "ddp" else name) + words, plan=plan)


def _namesakes(modes: Sequence[str], ours: Sequence[PacelineRun]) -> list[Problem]:
    """Turns and files go by name: of two with one name, only the last would take part."""
    found: list[Problem] = []
    first: dict[str, str] = {}
    for mode, own in zip(modes, ours, strict=True):
        if own.name in first:
            what = f"{first[own.name]} and {mode} would both be called {own.name}"
            found.append(Problem(what, "leave one out, or give its class another name", "--modes"))
        first.setdefault(own.name, mode)
    return found


def _shared(config: TrainConfig) -> tuple[TrainConfig, list[Problem]]:
    """The same config with what each worker takes of a step."""
    workers = 2 if config.num_workers is None else config.num_workers
    batch = DEFAULT_BATCH if config.batch_size is None else config.batch_size
    if isinstance(batch, tuple):
        what = "batch_size lists several numbers, but here it is what all workers take together"
        return config, [
            Problem(what, "give one number, such as --batch-size 64", config.origin("batch_size"))
        ]
    if workers < 1:
        return config, []  # said by the checks
    if batch % workers:
        what = f"a global batch of {batch} cannot be dealt evenly to {workers} workers"
        hint = f"set batch_size to a multiple of {workers}, such as {-(-batch // workers) * workers}"
        return config, [Problem(what, hint, config.origin("batch_size"))]
    return replace(config, num_workers=workers, batch_size=batch // workers), []


def _about_request(request: TorchRequest) -> list[Problem]:
    found = []
    if not request.modes:
        found.append(Problem("no mode of ours is named", "write --modes ssgd, for example", "--modes"))
    for name in request.launchers:
        if name not in _LAUNCHERS:
            found.append(
                Problem(f"there is no launcher {name!r} here", "use local, ray or both", "--launcher")
            )
    for name in request.peers or ():
        if name not in _PEERS:
            found.append(Problem(f"there is no peer {name!r}", "use ddp, ray or both", "--peers"))
    if not request.launchers:
        found.append(Problem("no launcher is named", "use local, ray or both", "--launcher"))
    return found


def _unread(config: TrainConfig) -> list[Problem]:
    """What plain torch would not do, so that nobody would do the same work."""
    names = [f.name for f in fields(config) if f.name in KEYS and f.name not in SETTINGS_READ]
    said = [name for name in names if getattr(config, name) is not None and name not in ("mode", "launcher")]
    return [
        Problem(
            f"{name} is said, but not everybody in this benchmark has it",
            "leave it out, or compare modes of ours alone: paceline compare",
            config.origin(name),
        )
        for name in said
    ]
