"""`python -m paceline.worker`: `paceline train`, or `paceline run`, in a process that torchrun started.

Rank 0 reads the settings, decides and prints; the other ranks follow it. See docs/guides/torchrun.md.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click

from paceline.cli.errors import guard, install_signal_handlers
from paceline.cli.options import common_options, config_options
from paceline.cli.train import AUTO, resume_run, start_or_resume_run, start_run
from paceline.config.environment import World, read_world
from paceline.config.load import from_set_flags, load
from paceline.config.values import RawSetting
from paceline.core import environ
from paceline.core.errors import ExitCode
from paceline.launchers.torchrun import TorchrunLauncher, TorchSide
from paceline.training.request import Request, read_request
from paceline.training.script import read_script_request
from paceline.training.session import Session

_DEFAULT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What a rank was started with, besides settings."""

    script: Path | None  # None: a task is trained
    arguments: tuple[str, ...]
    resume: str | None


class RankZero(TorchSide, Protocol):
    def conclude(self, code: int) -> None:
        """Everything is written: all ranks may exit, with this exit code."""
        ...


class Roles(Protocol):
    """The functions that need torch; worker/__main__.py passes them in."""

    def lead(self, world: World, *, timeout_s: float) -> RankZero:
        """Rank 0, after the rendezvous."""
        ...

    def follow(self, world: World, *, timeout_s: float) -> int:
        """Any other rank; returns its exit code."""
        ...


def main(roles: Roles) -> int:
    """The exit code."""
    install_signal_handlers()
    return run(sys.argv[1:], Session(variables=environ.config_variables()), roles)


def run(args: Sequence[str], session: Session, roles: Roles) -> int:
    """`python -m paceline.worker ARGS`; returns the exit code."""

    def body() -> object:
        world = read_world(environ.torchrun_variables())
        own_args = list(args) if world.rank == 0 else [arg for arg in args if arg != "--json"]
        command = _command(
            lambda session, flags, given: _run_rank(session, flags, given, world, roles, own_args)
        )
        try:
            context = command.make_context("python -m paceline.worker", own_args, obj=session)
        except click.UsageError:
            if world.local_rank > 0:
                return ExitCode.USAGE  # the first rank of this host has the same arguments, and reports it
            raise
        with context:
            return command.invoke(context)

    # Other ranks report on stderr only: stdout belongs to rank 0.
    return guard(body, session, [] if environ.torchrun_variables().get("RANK", "0") != "0" else args)


def _command(body: Callable[[Session, Sequence[RawSetting], _Given], int]) -> click.Command:
    @click.command(
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 100,
            "allow_interspersed_args": False,
        },
        help="Train as one rank started by torchrun, or alone, with the options of `paceline train`; or run "
        "SCRIPT with those of `paceline run`.",
    )
    @click.argument("script", type=click.Path(path_type=Path), metavar="[SCRIPT]", required=False)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
    @config_options
    @click.option(
        "--resume",
        metavar="RUN|auto",
        help="Run to resume from its newest checkpoint; auto: the newest run of this name, if any.",
    )
    @common_options
    def worker(
        session: Session,
        flags: Sequence[RawSetting],
        script: Path | None,
        arguments: tuple[str, ...],
        resume: str | None,
    ) -> int:
        return body(session, flags, _Given(script=script, arguments=arguments, resume=resume))

    return worker


def _run_rank(
    session: Session,
    flags: Sequence[RawSetting],
    given: _Given,
    world: World,
    roles: Roles,
    args: Sequence[str],
) -> int:
    timeout_s = _timeout_s(session, flags)
    if given.script is not None:
        environ.hide_launcher()
    if world.rank > 0:
        return roles.follow(world, timeout_s=timeout_s)
    leader = roles.lead(world, timeout_s=timeout_s)
    code = guard(lambda: _run_rank_zero(session, flags, given, world, leader), session, args)
    # From here on signals are ignored: all is written, and the other ranks are told to exit.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leader.conclude(code)
    return code


def _timeout_s(session: Session, flags: Sequence[RawSetting]) -> float:
    """How long to wait for the others; problems with the settings are rank 0's to report, later."""
    sets = from_set_flags(session.common.sets)
    loaded = load(flags=[*flags, *sets.entries], variables=session.variables, file=session.common.config)
    timeout = loaded.config.timeout
    return timeout if timeout is not None and timeout > 0 else _DEFAULT_TIMEOUT_S


def _run_rank_zero(
    session: Session, flags: Sequence[RawSetting], given: _Given, world: World, leader: RankZero
) -> ExitCode:
    launcher = TorchrunLauncher(world, leader)
    resume = given.resume
    if resume is not None and resume != AUTO:
        return resume_run(launcher, session, flags, resume)
    may_resume = resume == AUTO or world.restarts > 0
    request = _request(session, flags, given, launcher, world, may_hold_run=may_resume)
    if may_resume:
        return start_or_resume_run(launcher, session, request, world)
    return start_run(launcher, session, request)


def _request(
    session: Session,
    flags: Sequence[RawSetting],
    given: _Given,
    launcher: TorchrunLauncher,
    world: World,
    *,
    may_hold_run: bool,
) -> Request:
    if given.script is None:
        return read_request(session, flags, launcher, world=world, may_hold_run=may_hold_run)
    return read_script_request(
        session, flags, given.script, given.arguments, launcher, world=world, may_hold_run=may_hold_run
    )
