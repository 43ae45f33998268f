"""Time to a target loss with eight uneven workers, for every mode, really run (`make bench-target`).

The loss of a moment is the mean over the last 128 gradients (16 per worker), in
the order in which they were finished; the target is reached when it first is
low enough. Time counts from the first step's start. The task is digits, and
every mode has the learning rate with which ssgd is fastest (of 0.25, 0.5, 1 and
2; with 2 it diverges), as `paceline train` would scale it. The advisor picks
beforehand, from the plan alone. Seeds are interleaved; medians are compared.
"""

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.report import Ratio, write
from benchmarks.runs import TRIED, plan_for, processors, really_run
from paceline.config.train_config import TrainConfig
from paceline.events.performance import first_below, running_loss
from paceline.events.read import History
from paceline.events.summary import summarise
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import AsgdVariant
from paceline.simulate.what_if import Conditions, advise_on, input_from_plan
from paceline.sync.fault_rules import StragglerRule

RESULTS = Path(__file__).parent / "results" / "time_to_target.json"
WORKERS, PACE_S, STEPS, BATCH, LR = 8, 0.04, 170, 16, 1.0
TARGET, LAST = 0.08, 128
CURES = ("ssp", "localsgd")  # they help against passing delays only


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    name: str
    rule: StragglerRule
    goal: float  # the best mode is this many times as fast as ssgd
    is_lasting: bool


SCENES = (
    Scene(name="one of 8 always 3x", rule=StragglerRule(worker=3, factor=3.0), goal=2.3, is_lasting=True),
    Scene(
        name="5 % of steps 10x", rule=StragglerRule(probability=0.05, factor=10.0), goal=2.5, is_lasting=False
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A mode, or asgd with something done about staleness."""

    mode: str
    variant: AsgdVariant = AsgdVariant.PLAIN

    @property
    def label(self) -> str:
        return self.mode if self.variant is AsgdVariant.PLAIN else f"{self.mode} {self.variant.value}"


def strategies() -> list[Strategy]:
    variants = [Strategy(mode="asgd", variant=v) for v in AsgdVariant if v is not AsgdVariant.PLAIN]
    return [*(Strategy(mode=mode) for mode in TRIED), *variants]


def reached_s(history: History, target: float) -> float | None:
    """When the mean loss of the last gradients first was at the target; None: never."""
    return first_below(running_loss(history, LAST * BATCH), target)


def config(scene: Scene, *, seed: int) -> TrainConfig:
    return TrainConfig(
        task="digits",
        num_workers=WORKERS,
        steps=STEPS,
        batch_size=BATCH,
        lr=LR,
        pace=PACE_S,
        straggler=(scene.rule,),
        seed=seed,
    )


def advised(scene: Scene) -> str:
    plan = plan_for("ssgd", config(scene, seed=0))
    return advise_on(input_from_plan(plan, Conditions(processors=processors()))).advised.candidate.mode


Times = dict[str, list[float | None]]  # by strategy, one per seed; None: the target was never reached


@dataclass(slots=True)
class SceneResult:
    """Results of one scene, by strategy, one entry per seed."""

    target_s: Times
    all_samples_s: dict[str, list[float]]  # for the same samples in all


def measure(launcher: LocalLauncher, scene: Scene, seed: int, result: SceneResult) -> Iterator[str]:
    for strategy in strategies():
        train_config = config(scene, seed=seed)
        plan = plan_for(strategy.mode, replace(train_config, asgd=strategy.variant.value))
        history = really_run(launcher, plan)
        reached, whole_s = reached_s(history, TARGET), summarise(history).training_s
        result.target_s.setdefault(strategy.label, []).append(reached)
        result.all_samples_s.setdefault(strategy.label, []).append(whole_s)
        shown = "never" if reached is None else f"after {reached:.2f} s"
        yield f"  seed {seed}, {scene.name}, {strategy.label}: target {shown}, all samples {whole_s:.2f} s"


def medians(times: Times) -> dict[str, float]:
    """Medians of the strategies that always reached the target."""
    return {
        label: statistics.median(t for t in mine if t is not None)
        for label, mine in times.items()
        if None not in mine
    }


def ratio_of(scene: Scene, times: Times) -> Ratio:
    result = medians(times)
    best = min(result, key=lambda label: result[label])
    rounds = zip(times["ssgd"], times[best], strict=True)
    return Ratio(
        name=f"{scene.name}: {best} sooner than ssgd",
        goal=scene.goal,
        at_least=True,
        rounds=tuple(slow / fast for slow, fast in rounds if slow is not None and fast is not None),
        detail=f"times; {WORKERS} workers, {PACE_S * 1e3:.0f} ms, digits to a loss of {TARGET:g}",
    )


def says(scene: Scene, result: SceneResult, pick: str) -> list[str]:
    """The results as sentences."""
    reached = medians(result.target_s)
    best = min(reached, key=lambda label: reached[label])
    verdict = "right" if best.split()[0] == pick else "WRONG"
    lines = [
        f"advise named {pick} beforehand, which {_versus(reached, pick)}; the best, {best},"
        f" {_versus(reached, best)}: {verdict}"
    ]
    if scene.is_lasting:
        each = "; ".join(
            f"{mode} is {_speed(result, mode):.2f}x as fast as ssgd on equal samples, and"
            f" {_versus(reached, mode)}"
            for mode in CURES
        )
        lines.append(
            "ssp and localsgd with a fixed H do not help against a worker that is always slow, whatever the"
            f" bound or H: {each}"
        )
    return lines


def _speed(result: SceneResult, label: str) -> float:
    whole = result.all_samples_s
    return statistics.median(whole["ssgd"]) / statistics.median(whole[label])


def _versus(reached: dict[str, float], label: str) -> str:
    if label not in reached:
        return "does not reach the target"
    return f"is {reached['ssgd'] / reached[label]:.2f}x as fast as ssgd to the target"


def table(result: SceneResult) -> Iterator[str]:
    reached = medians(result.target_s)
    yield f"  {'':<22}{'to target':>10}{'vs ssgd':>9}{'equal samples':>15}   each seed"
    for label, mine in result.target_s.items():
        shown = ", ".join("never" if t is None else f"{t:.2f}" for t in mine)
        median, versus = "-", "-"
        if label in reached:
            median, versus = f"{reached[label]:.2f} s", f"{reached['ssgd'] / reached[label]:.2f}x"
        yield f"  {label:<22}{median:>10}{versus:>9}{f'{_speed(result, label):.2f}x':>15}   [{shown}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    picks = {scene.name: advised(scene) for scene in SCENES}
    results = {scene.name: SceneResult({}, {}) for scene in SCENES}
    for scene in SCENES:
        print(f"{scene.name}: advise says {picks[scene.name]}", flush=True)
    with LocalLauncher() as launcher:
        for seed in range(options.seeds):
            for scene in SCENES:
                for line in measure(launcher, scene, seed, results[scene.name]):
                    print(line, flush=True)
    ratios, sentences = [], {}
    for scene in SCENES:
        mine = results[scene.name]
        ratios.append(ratio_of(scene, mine.target_s))
        sentences[scene.name] = says(scene, mine, picks[scene.name])
        print("", scene.name, *table(mine), *sentences[scene.name], ratios[-1].line(), sep="\n")
    seconds = {name: asdict(mine) for name, mine in results.items()}
    write(ratios, options.output, target=TARGET, advised=picks, seconds=seconds, says=sentences)
    print(f"\nwritten to {options.output}")


if __name__ == "__main__":
    main()
