"""`paceline lab`: fault-injection scenarios that check what the run guarantees."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options, experiment_names
from paceline.cli.output import emit, print_message
from paceline.core import environ
from paceline.core.errors import ConfigError, ExitCode, Problem
from paceline.core.humanize import did_you_mean, pluralize
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter, Tick
    from paceline.plan.codec import Json


@click.group("lab")
@common_options
def lab(session: Session) -> None:
    """Inject faults and check what the run promises."""


@lab.command("list")
@common_options
def list_scenarios(session: Session) -> None:
    """List the experiments."""
    from paceline.faults.scenarios.catalog import SCENARIOS

    rows: list[Json] = [
        {"name": name, "what": s.what, "times": s.times, "how": s.how} for name, s in SCENARIOS.items()
    ]
    lines = [
        f"{name:<24}{s.what} ({pluralize(s.times, 'time')}){f': {s.how}' if s.how else ''}"
        for name, s in SCENARIOS.items()
    ]
    emit(session, "lab.list", {"scenarios": rows}, lines)


@lab.command("run")
@click.argument("name", shell_complete=experiment_names)
@click.option("--times", type=click.IntRange(1, 1000), help="Number of faults. [default: see list]")
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Folder to keep the run in. [default: deleted]"
)
@click.option(
    "--hosts",
    type=click.IntRange(3, 9),
    help="Number of hosts (network namespaces), for experiments on hosts. Needs root. [default: 3]",
)
@common_options
def run(session: Session, name: str, times: int | None, run_dir: Path | None, hosts: int | None) -> ExitCode:
    """Run the experiment NAME; exit code 8 if an expectation fails."""
    environ.set_default_variables(GRPC_VERBOSITY="ERROR")  # it writes a line for each idle connection
    from paceline.faults.scenarios.catalog import SCENARIOS

    if name not in SCENARIOS:
        known = f"experiments are {', '.join(SCENARIOS)}"
        hint = did_you_mean(name, SCENARIOS, otherwise=known)
        raise ConfigError([Problem(f"there is no experiment {name!r}", hint, "NAME")])
    scenario = SCENARIOS[name]
    body = scenario.body
    if hosts is not None:
        if scenario.on_hosts is None:
            known = ", ".join(other for other, s in SCENARIOS.items() if s.on_hosts is not None)
            problem = Problem(
                f"{name} does not run on hosts", f"leave out --hosts; on hosts: {known}", "--hosts"
            )
            raise ConfigError([problem])
        body = scenario.on_hosts(hosts)
    count = times or scenario.times
    print_message(session, f"{name}: {scenario.what}, {pluralize(count, 'time')}")
    with tempfile.TemporaryDirectory(prefix="paceline-lab-") as folder:
        target = Path(folder) / "run" if run_dir is None else session.folder / run_dir
        expectations = body(target, count, _reporter(session))
    return _show(session, name, count, expectations)


@lab.command("soak")
@click.option(
    "--faults", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Number of faults."
)
@click.option("--seed", type=int, default=7, show_default=True, help="Seed of the faults and their times.")
@click.option("--mode", default="ssgd", show_default=True, help="Mode to test.")
@click.option(
    "--shards", type=click.IntRange(1, 1024), help="Number of parameter shards. [default: number of workers]"
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Folder to keep the run in. [default: deleted]"
)
@click.option(
    "--hosts",
    type=click.IntRange(3, 9),
    help="Train on so many hosts (network namespaces), and strike those too. Needs root. [default: none]",
)
@common_options
def soak(
    session: Session,
    faults: int,
    seed: int,
    mode: str,
    shards: int | None,
    run_dir: Path | None,
    hosts: int | None,
) -> ExitCode:
    """Inject random faults from a seed; exit code 8 if an expectation fails."""
    environ.set_default_variables(GRPC_VERBOSITY="ERROR")
    with tempfile.TemporaryDirectory(prefix="paceline-lab-") as folder:
        target = Path(folder) / "run" if run_dir is None else session.folder / run_dir
        if hosts is None:
            expectations = _soak_here(session, target, faults, seed, mode, shards)
        else:
            expectations = _soak_hosts(session, target, faults, seed, mode, shards, hosts)
    return _show(session, "soak", faults, expectations)


def _soak_here(
    session: Session, target: Path, faults: int, seed: int, mode: str, shards: int | None
) -> "list[Expectation]":
    from paceline.faults.scenarios.soak import soak as run_soak
    from paceline.faults.scenarios.soak import soak_plan

    plan = soak_plan(mode, shards)
    print_message(session, f"soak: {faults} faults, seed {seed}, mode {mode}, {plan.num_workers} shards")
    return run_soak(target, faults, seed, plan, _reporter(session))


def _soak_hosts(
    session: Session, target: Path, faults: int, seed: int, mode: str, shards: int | None, hosts: int
) -> "list[Expectation]":
    from paceline.faults.scenarios.host_soak import check_host_soak, host_soak

    if shards is not None:
        problem = Problem("--shards and --hosts exclude each other", "leave out --shards", "--shards")
        raise ConfigError([problem])
    check_host_soak(mode)
    print_message(session, f"soak: {faults} faults, seed {seed}, mode {mode}, {hosts} hosts")
    return host_soak(target, faults, seed, mode, hosts, _reporter(session))


def _reporter(session: Session) -> "ScenarioReporter":
    """Prints lines as they come, and each expectation when its state changes."""
    from paceline.faults.scenarios.expectations import ScenarioReporter, State

    marks = {
        State.OPEN: "○ not yet",
        State.SO_FAR: "◐ so far",
        State.HELD: "✔ held",
        State.BROKEN: "✕ violated",
    }
    states: dict[str, State] = {}

    def on_tick(tick: "Tick") -> None:
        if states.get(tick.what, State.OPEN) is not tick.state:
            print_message(session, f"  {marks[tick.state]}: {tick.what}: {tick.measured} ({tick.limit})")
        states[tick.what] = tick.state

    return ScenarioReporter(lambda line: print_message(session, line), on_tick)


def _show(session: Session, name: str, times: int, expectations: "list[Expectation]") -> ExitCode:
    rows: list[Json] = [dict(asdict(expectation)) for expectation in expectations]
    holds = all(expectation.ok for expectation in expectations)
    lines = [f"{'ok  ' if e.ok else 'FAIL'} {e.what}: {e.measured} ({e.limit})" for e in expectations]
    emit(session, "lab.run", {"name": name, "times": times, "holds": holds, "expectations": rows}, lines)
    return ExitCode.OK if holds else ExitCode.GATE_FAILED
