"""Check of a training script: the modes in which it can be run, and what a few of its steps show.

The script is started once, as for a run, and makes some steps alone (worker/script/trial.py). Each mode is
then planned like a run of that mode, so the reasons are those that `paceline run` would give.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config.environment import Facts, probe_machine
from paceline.config.load import from_set_flags, load
from paceline.config.train_config import TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError
from paceline.core.humanize import pluralize
from paceline.plan.catalog import MODES, Mode
from paceline.plan.check import check
from paceline.plan.codec import Json
from paceline.plan.plan import Option
from paceline.training.script import (
    ScriptProber,
    file_problems,
    options_of,
    plan_of_script,
    probe,
    unoffered_reason,
    unread_problems,
)
from paceline.training.session import Session

NUM_WORKERS = 2  # of the planned runs, if none is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the trials showed."""

    name: str
    holds: bool | None  # None: it could not be tried
    text: str  # what was seen
    hint: str = ""  # what to do if it does not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedMode:
    name: str
    reason: str  # why a run in this mode is refused; empty: it is offered
    not_elastic: str  # why an elastic run in it is refused; empty: it is offered, too

    @property
    def is_offered(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCheck:
    num_workers: int
    prepared: Mapping[str, Option]
    findings: tuple[Finding, ...]
    modes: tuple[OfferedMode, ...]

    @property
    def holds(self) -> bool:
        return all(finding.holds is not False for finding in self.findings)


def check_script(
    session: Session,
    flags: Sequence[RawSetting],
    script: Path,
    arguments: Sequence[str],
    prober: ScriptProber,
) -> ScriptCheck:
    """Start the script, and plan a run of it in every mode.

    Raises ConfigError with every problem of the settings, or with the first one of the script.
    """
    sets = from_set_flags(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    config = replace(loaded.config, mode=None)  # each mode is planned
    config = replace(config, num_workers=config.num_workers or NUM_WORKERS)
    facts = probe_machine(config)
    file = session.folder / script
    problems = [*sets.problems, *loaded.problems, *unread_problems(config), *file_problems(file)]
    problems += check(config, facts)
    if problems:
        raise ConfigError(problems)
    probed = probe(config, file, arguments, session.folder, prober, has_trials=True)
    trials = probed["trials"]
    assert isinstance(trials, dict), "the probe made trials"
    options = options_of(probed)
    return ScriptCheck(
        num_workers=config.num_workers or NUM_WORKERS,
        prepared=_prepared(options, trials),
        findings=(_repeated(trials), _halved(trials, options), _clipped(probed), _rated(probed)),
        modes=tuple(_offered(config, facts, probed, script, mode) for mode in MODES.values()),
    )


def _prepared(options: Mapping[str, Option], trials: Mapping[str, Json]) -> dict[str, Option]:
    names = ("optimizer", "schedule", "num_samples", "batch_size", "per_worker", "accumulate")
    model: dict[str, Option] = {
        "model": str(trials["model"]),
        "num_parameters": int(str(trials["num_parameters"])),
    }
    return model | {name: options[name] for name in (*names, "epochs", "steps", "clip_norm", "clip_value")}


_NOT_REPEATED = {
    "other data": (
        "the second time a share had other samples, or other random augmentation",
        "let the dataset draw from torch, random or numpy's global generator, which are seeded for each "
        "sample; a generator of its own is not",
    ),
    "other loss": (
        "the second time a share had another loss, from the same samples and parameters",
        "let the loop keep nothing from one step to the next that the loss depends on, and draw random "
        "numbers from torch's global generator",
    ),
    "other gradient": (
        "the second time a share had the same loss, but another gradient",
        "call torch.use_deterministic_algorithms(True), or accept that an elastic run that lost a worker "
        "ends with other bits",
    ),
}


def _repeated(trials: Mapping[str, Json]) -> Finding:
    name = "a share done twice is equal"
    seen = str(trials["repeated"])
    if seen == "equal":
        return Finding(name=name, holds=True, text="samples, loss and gradient have the same bits")
    text, hint = _NOT_REPEATED[seen]
    return Finding(name=name, holds=False, text=text, hint=hint)


def _halved(trials: Mapping[str, Json], options: Mapping[str, Option]) -> Finding:
    name = "the loss of a batch is the mean of its halves'"
    match str(trials["halved"]):
        case "mean":
            statistics = "; BatchNorm's statistics are those of each worker's part"
            text = "so workers may divide a batch" + statistics * bool(trials["has_batch_statistics"])
            return Finding(name=name, holds=True, text=text)
        case "sum":
            text = "it is their sum, so the gradient would shrink with the number of workers"
            hint = "compute a mean: reduction='mean', or divide by len(x)"
            return Finding(name=name, holds=False, text=text, hint=hint)
        case "neither":
            text = "it is neither their mean nor their sum: a sample's loss depends on the other samples"
            hint = (
                "with a contrastive loss, or weights by class or token, many workers train on another loss; "
                'run.prepare(…, batch="per-worker") keeps the batch that the loss sees'
            )
            return Finding(name=name, holds=False, text=text, hint=hint)
        case "random":
            return Finding(name=name, holds=None, text="not tried: the loss draws random numbers")
        case "one sample":
            batch = int(options["batch_size"])
            return Finding(name=name, holds=None, text=f"not tried: a batch has {pluralize(batch, 'sample')}")
        case _:
            return Finding(name=name, holds=None, text="not tried: the script prepares no DataLoader")


def _clipped(probed: Mapping[str, Json]) -> Finding:
    name = "gradients are not changed after backward"
    if not probed["changes_gradients"]:
        return Finding(name=name, holds=True, text="each worker sends what backward computed")
    text = "they are (clip_grad_norm_?): each worker would change its own"
    return Finding(name=name, holds=False, text=text, hint="use run.clip_grad_norm_, or one worker")


def _rated(probed: Mapping[str, Json]) -> Finding:
    name = "learning rates come from a scheduler"
    if not probed["sets_rates"]:
        return Finding(name=name, holds=True, text="or do not change, so a server can have the same")
    text = "the script sets them itself, which a server does not see"
    hint = "prepare a scheduler of torch: LambdaLR(optimizer, fn); or use a mode without a server"
    return Finding(name=name, holds=None, text=text, hint=hint)


def _offered(
    config: TrainConfig, facts: Facts, probed: dict[str, Json], script: Path, mode: Mode
) -> OfferedMode:
    reason = unoffered_reason(mode) or _refusal(_in_mode(config, mode), facts, probed, script)
    elastic = replace(_in_mode(config, mode), elastic=True)
    not_elastic = reason or _refusal(elastic, facts, probed, script)
    return OfferedMode(name=mode.name, reason=reason, not_elastic=not_elastic)


def _in_mode(config: TrainConfig, mode: Mode) -> TrainConfig:
    return replace(config, mode=mode.name, num_workers=1 if mode.name == "single" else config.num_workers)


def _refusal(config: TrainConfig, facts: Facts, probed: dict[str, Json], script: Path) -> str:
    """The first reason for which `paceline run` would refuse this; empty: it would not."""
    sizes = probed["batch_sizes"]
    assert isinstance(sizes, list), "one batch size per worker"
    if config.num_workers == 1:
        total = sum(int(str(size)) for size in sizes)
        probed = {**probed, "batch_sizes": [sizes[0] if options_of(probed)["per_worker"] else total]}
    try:
        plan_of_script(config, facts, probed, script)
    except ConfigError as error:
        return error.problems[0].what
    return ""
