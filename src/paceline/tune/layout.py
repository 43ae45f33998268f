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
_EVALUATIONS = 10  # of a run whose length is said in steps
_MAX_PROBLEMS = 8
_REFUSED = {
    "export": "trials are not exported; afterwards `paceline export DIR/trials/001` does that for one",
    "alerts": "trials are told to nobody",
    "checkpoint_store": "trials keep their checkpoints in their own folders",
}


class Environment(Protocol):
    """What deciding has to ask for."""

    def read(self, drawn: Sequence[RawSetting]) -> LoadedConfig:
        """The user's settings, with these on top."""
        ...

    def facts(self, config: TrainConfig) -> Facts: ...

    def count(self, config: TrainConfig) -> int:
        """Training samples of its task; its own error if that cannot be built."""
        ...


def lay_out(
    request: TuneRequest, outside: Environment, *, found: Sequence[Problem] = ()
) -> tuple[Tuning, list[str]]:
    """The search, and remarks on what nobody asked for. ConfigError with every problem, each once."""
    base = outside.read([])
    problems = [*found, *base.problems, *_about(request, base.config)]
    if problems:
        raise SearchError(list(dict.fromkeys(problems)))
    maker = _Maker(request, outside)
    maker.refuse_unsound()
    trials = maker.trials(0 if base.config.seed is None else base.config.seed)
    remarks = []
    if request.trials is not None and len(trials) < request.trials:
        remarks.append(f"there are only {len(trials)} different runs to try, and not {request.trials}")
    metric, lower_is_better = _metric(request.metric, trials)
    asha, about_asha = _asha(request, trials)
    tuning = Tuning(
        searches=tuple(search.name for search in request.searches),
        metric=metric,
        lower_is_better=lower_is_better,
        asha=asha,
        trials=tuple(trials),
    )
    return tuning, [*remarks, *_unseen(trials), *about_asha]


class _Maker:
    """From what was drawn to plans."""

    def __init__(self, request: TuneRequest, outside: Environment) -> None:
        self._searches = request.searches
        self._outside = outside
        self._wanted = DEFAULT_TRIALS if request.trials is None else request.trials
        self._builds_task = any(search.option for search in request.searches)

    def refuse_unsound(self) -> None:
        """ConfigError, with what was drawn, if any corner is refused."""
        places = corners(self._searches)
        refused: dict[Problem, Drawn] = {}
        times: dict[Problem, int] = {}
        for drawn in places:
            for problem in self._problems(drawn):
                refused.setdefault(problem, drawn)
                times[problem] = times.get(problem, 0) + 1
        if refused:
            told = [
                problem if times[problem] == len(places) else self._placed(problem, drawn)
                for problem, drawn in refused.items()
            ]
            raise SearchError(told[:_MAX_PROBLEMS])

    def trials(self, seed: int) -> list[Trial]:
        """Different plans: what a mode does not read makes no other run of it."""
        found: dict[str, Trial] = {}
        for drawn in self._enough(draws(self._searches, seed)):
            config, facts = self._config(drawn)
            try:
                plan = resolve(config, facts, count=self._outside.count)
            except ConfigError as error:
                raise SearchError([self._placed(problem, drawn) for problem in error.problems]) from error
            known = plan_hash(replace(plan, run=""))
            if known not in found:
                found[known] = self._trial(len(found) + 1, drawn, config, plan, facts)
            if len(found) == self._wanted:
                break
        return list(found.values())

    def _enough(self, drawn: Iterator[Drawn]) -> Iterator[Drawn]:
        """Not for ever, where all further draws give the same runs."""
        return (one for _, one in zip(range(100 + 50 * self._wanted), drawn, strict=False))

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
        loaded = self._outside.read(self._written(drawn))
        if loaded.problems:
            return list(loaded.problems)
        config, facts = self._config(drawn)
        found = [*check(config, facts), *_about_places(config)]
        if found:
            return found
        try:
            config_to_yaml(config)
            if self._builds_task:
                self._outside.count(config)
            resolve(config, facts, count=self._outside.count)
        except ConfigError as error:
            return list(error.problems)
        return []

    def _config(self, drawn: Drawn) -> tuple[TrainConfig, Facts]:
        """What was drawn on top of what was said; a searched mode gets the settings that it reads."""
        config = self._outside.read(self._written(drawn)).config
        config = replace(config, run_dir=None, save_dir=None)  # a trial's folder is the search's to choose
        facts = self._outside.facts(config)
        if any(search.key == "mode" for search in self._searches):
            config = config_for_mode(config, decide.mode_name_of(config))
            if config.evaluate_every is not None and not _can_be_evaluated(config, facts):
                config = replace(config, evaluate_every=None)
        if config.evaluate_every is None and config.early_stop_patience is None:
            looked_at = replace(config, evaluate_every=_usual_evaluations(config))
            config = looked_at if _can_be_evaluated(looked_at, facts) else config
        return config, facts

    def _written(self, drawn: Drawn) -> list[RawSetting]:
        return [search.written(text) for search, text in zip(self._searches, drawn, strict=True)]

    def _placed(self, problem: Problem, drawn: Drawn) -> Problem:
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
    """On the way, that is."""
    return len(check(config, facts)) <= len(check(replace(config, evaluate_every=None), facts))


def _usual_evaluations(config: TrainConfig) -> int | Literal["epoch"]:
    if config.epochs is not None:
        return "epoch"
    return max(1, decide.steps_of(config) // _EVALUATIONS)


def _about(request: TuneRequest, config: TrainConfig) -> list[Problem]:
    found = []
    if not request.searches:
        found.append(Problem("nothing is searched", "add --search lr=log:0.001..1, for example", "--search"))
    for search in request.searches:
        said = config.origin(f"task_options.{search.option}" if search.option else search.key)
        if said is not None and said.startswith("--"):
            what = f"{search.name} is searched, and also said"
            found.append(Problem(what, f"leave {said} out", said))
    modes = [s.domain.values for s in request.searches if s.key == "mode" and isinstance(s.domain, Listed)]
    if modes:
        names = [decide.mode_name_of(replace(config, mode=mode)) for mode in modes[0]]
        searched = {s.key: "x" for s in request.searches if s.key in _FIELDS and not s.option}
        unread = unused_settings(_with_text(config, searched), names)
        hint = f"leave it out, or search a mode that reads it: {', '.join(names)} do not"
        found += [Problem(f"{key} is set, but no mode of the search reads it", hint) for key in unread]
    return [*found, *_about_metric(request.metric)]


def _with_text(config: TrainConfig, searched: dict[str, str]) -> TrainConfig:
    """Only to ask who reads what: the values are of no importance."""
    return replace(config, **searched)  # type: ignore[arg-type]  # texts, where only None is told apart


def _about_metric(said: str | None) -> list[Problem]:
    name, colon, wanted = (said or "valid_loss").partition(":")
    if name and (not colon or wanted in ("min", "max")):
        return []
    what = f"metric is {said!r}, but it must be NAME, NAME:min or NAME:max"
    return [Problem(what, "for example valid_loss, or valid_accuracy:max", "--metric")]


def _about_places(config: TrainConfig) -> list[Problem]:
    found = []
    if config.launcher in (Launcher.RAY, Launcher.TORCHRUN):
        what = f"launcher is {config.launcher}, but a trial's workers are processes where Ray puts the trial"
        found.append(Problem(what, "leave launcher out, or say virtual", config.origin("launcher")))
    for key, hint in _REFUSED.items():
        if getattr(config, key):
            found.append(Problem(f"{key} is set, but this is a search", hint, config.origin(key)))
    return found


def _metric(said: str | None, trials: Sequence[Trial]) -> tuple[tuple[str, ...], bool]:
    """Names, and whether less is better: of an accuracy more is, unless somebody says otherwise."""
    if said is None:
        # What is only known at the end of some trials is all that can be compared between all of them.
        on_the_way = all(trial.plan.evaluation is not None for trial in trials)
        return (DEFAULT_METRICS if on_the_way else DEFAULT_METRICS[1:]), True
    name, _, wanted = said.partition(":")
    return (name,), wanted == "min" or (not wanted and "accuracy" not in name)


def _unseen(trials: Sequence[Trial]) -> list[str]:
    """Which trials nobody looks at on the way, and why."""
    hidden = [trial.plan for trial in trials if trial.plan.evaluation is None]
    found = sorted({"an elastic run" if plan.elastic is not None else f"mode {plan.mode}" for plan in hidden})
    return [f"{', '.join(found)}: evaluated at the end of a trial only"] if found else []


def _asha(request: TuneRequest, trials: Sequence[Trial]) -> tuple[Asha | None, list[str]]:
    longest = max(rung_of(trial.plan, trial.plan.steps) for trial in trials)
    if request.wants_asha is False:
        return None, []
    if longest > request.grace:
        return Asha(grace=request.grace, reduction=request.reduction, longest=longest), []
    why = (
        f"no trial is evaluated more than {longest} times" if longest > 1 else "none is evaluated on the way"
    )
    if request.wants_asha:
        reasons = "; ".join([why, *_unseen(trials)])
        hint = "use --scheduler none, or another mode, --evaluate-every or --grace"
        what = f"scheduler is asha, but no trial can be stopped early: {reasons}"
        raise SearchError([Problem(what, hint, "--scheduler")])
    return None, [f"scheduler none: no trial can be stopped early, as {why}"]
