"""Layout of a search: its trials, drawn from the seed and validated before anything starts.

Each trial is a plan like that of `paceline train`. Every bound of a range and every listed value is resolved
too, in combination: what could not run later is refused now. Pure, except for the `Environment` it is given:
reading settings, probing the machine, counting samples. See docs/guides/tune.md.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from paceline.config.environment import Facts
from paceline.config.load import LoadedConfig, config_to_yaml
from paceline.config.train_config import TrainConfig
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError, Problem, SearchError
from paceline.plan import decide
from paceline.plan.check import check
from paceline.plan.codec import plan_hash
from paceline.plan.plan import Device, Launcher, Plan
from paceline.plan.resolve import config_for_mode, resolve, unused_settings
from paceline.tune.experiment import Asha, Trial, TuneRequest, Tuning, cpus_of, rung_of
from paceline.tune.search_space import Drawn, Listed, corners, draws

DEFAULT_TRIALS = 10
DEFAULT_METRICS = ("valid_loss", "test_loss")
_EVALUATIONS = 10  # of a run whose length is given in steps
_MAX_PROBLEMS = 8
_REFUSED = {
    "export": "trials are not exported; afterwards `paceline export DIR/trials/001` does that for one",
    "alerts": "trials send no alerts",
    "metrics_port": "trials would listen on the same port",
    "checkpoint_store": "trials keep their checkpoints in their own folders",
}


class Environment(Protocol):
    """External inputs of the layout."""

    def read(self, drawn: Sequence[RawSetting]) -> LoadedConfig:
        """The user's settings, with these on top."""
        ...

    def facts(self, config: TrainConfig) -> Facts: ...

    def count(self, config: TrainConfig) -> int:
        """Training samples of its task; its own error if that cannot be built."""
        ...


def lay_out(
    request: TuneRequest, environment: Environment, *, config_problems: Sequence[Problem] = ()
) -> tuple[Tuning, list[str]]:
    """The search, and remarks about defaults. Raises SearchError with every problem, each once."""
    base = environment.read([])
    problems = [*config_problems, *base.problems, *_request_problems(request, base.config)]
    if problems:
        raise SearchError(list(dict.fromkeys(problems)))
    builder = _TrialBuilder(request, environment)
    builder.check_corners()
    trials = builder.trials(0 if base.config.seed is None else base.config.seed)
    remarks = []
    if request.trials is not None and len(trials) < request.trials:
        remarks.append(f"the search space has only {len(trials)} different trials, not {request.trials}")
    metric, lower_is_better = _metric(request.metric, trials)
    asha, about_asha = _asha(request, trials)
    tuning = Tuning(
        searches=tuple(search.name for search in request.searches),
        metric=metric,
        lower_is_better=lower_is_better,
        asha=asha,
        trials=tuple(trials),
    )
    return tuning, [*remarks, *_without_evaluations(trials), *about_asha]


class _TrialBuilder:
    """Builds trials from drawn values."""

    def __init__(self, request: TuneRequest, environment: Environment) -> None:
        self._searches = request.searches
        self._environment = environment
        self._count = DEFAULT_TRIALS if request.trials is None else request.trials
        self._builds_task = any(search.option for search in request.searches)

    def check_corners(self) -> None:
        """Raises SearchError, with the drawn values, if any corner is refused."""
        combinations = corners(self._searches)
        refused: dict[Problem, Drawn] = {}
        times: dict[Problem, int] = {}
        for drawn in combinations:
            for problem in self._problems(drawn):
                refused.setdefault(problem, drawn)
                times[problem] = times.get(problem, 0) + 1
        if refused:
            problems = [
                problem if times[problem] == len(combinations) else self._with_values(problem, drawn)
                for problem, drawn in refused.items()
            ]
            raise SearchError(problems[:_MAX_PROBLEMS])

    def trials(self, seed: int) -> list[Trial]:
        """Trials with different plans: a setting that a mode does not read makes no new run."""
        by_hash: dict[str, Trial] = {}
        for drawn in self._limited(draws(self._searches, seed)):
            config, facts = self._config(drawn)
            try:
                plan = resolve(config, facts, count=self._environment.count)
            except ConfigError as error:
                raise SearchError(
                    [self._with_values(problem, drawn) for problem in error.problems]
                ) from error
            digest = plan_hash(replace(plan, run=""))
            if digest not in by_hash:
                by_hash[digest] = self._trial(len(by_hash) + 1, drawn, config, plan, facts)
            if len(by_hash) == self._count:
                break
        return list(by_hash.values())

    def _limited(self, drawn: Iterator[Drawn]) -> Iterator[Drawn]:
        """A limited number of draws, since all further ones may give the same runs."""
        return (combination for _, combination in zip(range(100 + 50 * self._count), drawn, strict=False))

    def _trial(self, number: int, drawn: Drawn, config: TrainConfig, plan: Plan, facts: Facts) -> Trial:
        gpus = max(1, min(plan.processes, facts.cuda_devices)) if plan.device is Device.CUDA else 0
        settings = {search.name: text for search, text in zip(self._searches, drawn, strict=True)}
        unread = [name for name in settings if name in _FIELDS and getattr(config, name) is None]
        return Trial(
            number=number,
            settings={name: text for name, text in settings.items() if name not in unread},
            file=config_to_yaml(config),
            plan=replace(plan, run=f"trial-{number:03d}"),
            cpus=cpus_of(plan),
            gpus=gpus,
        )

    def _problems(self, drawn: Drawn) -> list[Problem]:
        loaded = self._environment.read(self._settings(drawn))
        if loaded.problems:
            return list(loaded.problems)
        config, facts = self._config(drawn)
        problems = [*check(config, facts), *_launcher_problems(config)]
        if problems:
            return problems
        try:
            config_to_yaml(config)
            if self._builds_task:
                self._environment.count(config)
            resolve(config, facts, count=self._environment.count)
        except ConfigError as error:
            return list(error.problems)
        return []

    def _config(self, drawn: Drawn) -> tuple[TrainConfig, Facts]:
        """Drawn values on top of the given settings; a searched mode gets the settings that it reads."""
        config = self._environment.read(self._settings(drawn)).config
        config = replace(config, run_dir=None, save_dir=None)  # the search chooses the folder of a trial
        facts = self._environment.facts(config)
        if any(search.key == "mode" for search in self._searches):
            config = config_for_mode(config, decide.mode_name_of(config))
            if config.evaluate_every is not None and not _can_be_evaluated(config, facts):
                config = replace(config, evaluate_every=None)
        if config.evaluate_every is None and config.early_stop_patience is None:
            evaluated = replace(config, evaluate_every=_default_evaluations(config))
            config = evaluated if _can_be_evaluated(evaluated, facts) else config
        return config, facts

    def _settings(self, drawn: Drawn) -> list[RawSetting]:
        return [search.setting(text) for search, text in zip(self._searches, drawn, strict=True)]

    def _with_values(self, problem: Problem, drawn: Drawn) -> Problem:
        listed = [s.domain for s in self._searches]
        shown = [
            f"{search.name}={text}"
            for search, text, domain in zip(self._searches, drawn, listed, strict=True)
            if isinstance(domain, Listed) or search.name in problem.what
        ]
        if not shown or (problem.where or "").startswith("--search"):
            return problem
        return Problem(f"{problem.what} (with {', '.join(shown)})", problem.hint, problem.where)


_FIELDS = frozenset(field.name for field in dataclasses.fields(TrainConfig))


def _can_be_evaluated(config: TrainConfig, facts: Facts) -> bool:
    """Whether evaluations during the run are possible."""
    return len(check(config, facts)) <= len(check(replace(config, evaluate_every=None), facts))


def _default_evaluations(config: TrainConfig) -> int | Literal["epoch"]:
    if config.epochs is not None:
        return "epoch"
    return max(1, decide.steps_of(config) // _EVALUATIONS)


def _request_problems(request: TuneRequest, config: TrainConfig) -> list[Problem]:
    problems = []
    if not request.searches:
        problems.append(
            Problem("there is nothing to search", "add --search lr=log:0.001..1, for example", "--search")
        )
    for search in request.searches:
        origin = config.origin(f"task_options.{search.option}" if search.option else search.key)
        if origin is not None and origin.startswith("--"):
            message = f"{search.name} is both searched and set"
            problems.append(Problem(message, f"leave {origin} out", origin))
    modes = [s.domain.values for s in request.searches if s.key == "mode" and isinstance(s.domain, Listed)]
    if modes:
        names = [decide.mode_name_of(replace(config, mode=mode)) for mode in modes[0]]
        searched = {s.key: "x" for s in request.searches if s.key in _FIELDS and not s.option}
        unread = unused_settings(_with_text(config, searched), names)
        hint = f"leave it out, or search a mode that reads it: {', '.join(names)} do not"
        problems += [Problem(f"{key} is set, but no mode of the search reads it", hint) for key in unread]
    return [*problems, *_metric_problems(request.metric)]


def _with_text(config: TrainConfig, searched: dict[str, str]) -> TrainConfig:
    """For finding settings that no mode reads; the values do not matter."""
    return replace(config, **searched)  # type: ignore[arg-type]  # texts, where only None is told apart


def _metric_problems(given: str | None) -> list[Problem]:
    name, colon, direction = (given or "valid_loss").partition(":")
    if name and (not colon or direction in ("min", "max")):
        return []
    message = f"metric is {given!r}, but it must be NAME, NAME:min or NAME:max"
    return [Problem(message, "for example valid_loss, or valid_accuracy:max", "--metric")]


def _launcher_problems(config: TrainConfig) -> list[Problem]:
    problems = []
    if config.launcher in (Launcher.RAY, Launcher.TORCHRUN):
        message = (
            f"launcher is {config.launcher}, but Ray places whole trials, whose workers are local processes"
        )
        problems.append(
            Problem(message, "leave launcher out, or set it to virtual", config.origin("launcher"))
        )
    for key, hint in _REFUSED.items():
        if getattr(config, key):
            problems.append(Problem(f"{key} is set, but this is a search", hint, config.origin(key)))
    return problems


def _metric(given: str | None, trials: Sequence[Trial]) -> tuple[tuple[str, ...], bool]:
    """Names, and whether lower is better: not for an accuracy, unless given."""
    if given is None:
        # If some trials are evaluated only at their end, only the final metric compares all of them.
        all_evaluated = all(trial.plan.evaluation is not None for trial in trials)
        return (DEFAULT_METRICS if all_evaluated else DEFAULT_METRICS[1:]), True
    name, _, direction = given.partition(":")
    return (name,), direction == "min" or (not direction and "accuracy" not in name)


def _without_evaluations(trials: Sequence[Trial]) -> list[str]:
    """Remarks about trials that are evaluated only at their end."""
    hidden = [trial.plan for trial in trials if trial.plan.evaluation is None]
    kinds = sorted({f"mode {plan.mode}" for plan in hidden})
    return [f"{', '.join(kinds)}: evaluated at the end of a trial only"] if kinds else []


def _asha(request: TuneRequest, trials: Sequence[Trial]) -> tuple[Asha | None, list[str]]:
    max_rungs = max(rung_of(trial.plan, trial.plan.steps) for trial in trials)
    if request.wants_asha is False:
        return None, []
    if max_rungs > request.grace:
        return Asha(grace=request.grace, reduction=request.reduction, longest=max_rungs), []
    why = (
        f"no trial is evaluated more than {max_rungs} times"
        if max_rungs > 1
        else "none is evaluated during training"
    )
    if request.wants_asha:
        reasons = "; ".join([why, *_without_evaluations(trials)])
        hint = "use --scheduler none, or another mode, --evaluate-every or --grace"
        message = f"scheduler is asha, but no trial can be stopped early: {reasons}"
        raise SearchError([Problem(message, hint, "--scheduler")])
    return None, [f"scheduler none: no trial can be stopped early, because {why}"]
