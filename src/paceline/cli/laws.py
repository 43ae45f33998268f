"""`paceline laws`: check that a mode, or a class of your own, obeys the laws of its mode."""

from collections.abc import Callable
from importlib.util import find_spec

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, print_message
from paceline.core.errors import ConfigError, ExitCode, MissingPackageError, Problem
from paceline.launchers.json_subprocess import json_lines
from paceline.plan.catalog import MODE_ALIASES, MODES
from paceline.plan.codec import Json
from paceline.training.session import Session

LawLine = dict[str, Json]  # id, mode, what, ok, measured


PEERS = ("torch", "torchft", "accelerate")  # each is also the name of its module


def check_laws(mode: str | None, like: str | None, on_law: Callable[[LawLine], None]) -> list[LawLine]:
    """All laws of a mode (None: of every mode). `mode` may be `module:Class`, tried as a `like`."""
    arguments = _arguments(mode, like)
    results = []
    for line in json_lines("paceline.laws", arguments):
        on_law(line)
        results.append(line)
    return results


def check_peer(peer: str, on_law: Callable[[LawLine], None]) -> list[LawLine]:
    """What another library's averagers do under the laws, and which of it was known.

    The lines also have subject, version, verdict and note, but no `ok`: the verdict says more.
    """
    if find_spec(peer) is None:
        raise MissingPackageError(
            f"{peer} is not installed, so it cannot be checked",
            "pip install 'paceline[peers]' installs torchft and accelerate",
        )
    results = []
    for line in json_lines("paceline.laws", ["--peer", peer]):
        on_law(line)
        results.append(line)
    return results


def _arguments(mode: str | None, like: str | None) -> list[str]:
    mode = MODE_ALIASES.get(mode, mode) if mode is not None else None
    like = MODE_ALIASES.get(like, like) if like is not None else None
    names = ", ".join(MODES)
    if like is not None and like not in MODES:
        raise _config_error(f"there are no laws for mode {like!r}", f"modes with laws are {names}", "--like")
    if mode is None:
        return []
    if ":" not in mode:
        if mode not in MODES:
            raise _config_error(f"there is no mode {mode!r}", f"modes are {names}, or module:Class", "--mode")
        return ["--mode", mode]
    if like is None:
        hint = f"name the mode whose laws apply: paceline laws --mode {mode} --like ssgd (one of {names})"
        raise _config_error(f"{mode} is a custom class, so --like is required", hint, "--mode")
    return ["--mode", like, "--subject", mode]


def _config_error(what: str, hint: str, where: str) -> ConfigError:
    return ConfigError([Problem(what, hint, where)])


_MARKS = {
    "holds": "ok       ",
    "deviates": "deviates ",
    "not asked": "skipped  ",
    "new": "NEW      ",
    "gone": "GONE     ",
}


@click.command("laws")
@click.option(
    "--mode", metavar="MODE", help="Mode to check, or module:Class of a custom strategy. [default: all]"
)
@click.option("--like", metavar="MODE", help="Mode whose laws a custom strategy must satisfy.")
@click.option("--peer", type=click.Choice(PEERS), help="Other library whose averagers to check.")
@common_options
def laws(session: Session, mode: str | None, like: str | None, peer: str | None) -> ExitCode:
    """Check the laws that every synchronization strategy must satisfy.

    Runs the real strategies in virtual time, and some on real processes. Exit code
    0 if all laws hold, 8 if one is violated.

    With --peer, checks another library. Known deviations are listed with an
    explanation; exit code 0 if exactly these are found, 8 if a verdict changed.
    """
    if peer is None:
        return _check_modes(session, mode, like)
    if mode is not None or like is not None:
        problem = Problem("--peer has its own modes", "leave out --mode and --like", "--peer")
        raise ConfigError([problem])
    return _check_peer(session, peer)


def _check_modes(session: Session, mode: str | None, like: str | None) -> ExitCode:

    def show(law: "LawLine") -> None:
        mark = "ok    " if law["ok"] else "BROKEN"
        print_message(session, f"{mark} {law['id']!s:<20}{law['what']}\n       {law['measured']}")

    results = check_laws(mode, like, show)
    broken = [str(law["id"]) for law in results if not law["ok"]]
    verdict = (
        f"all {len(results)} laws hold"
        if not broken
        else f"{len(broken)} of {len(results)} laws are violated: {', '.join(broken)}"
    )
    emit(session, "laws", {"laws": list(results), "broken": list(broken)}, [verdict])
    return ExitCode.GATE_FAILED if broken else ExitCode.OK


def _check_peer(session: Session, peer: str) -> ExitCode:

    subjects: list[str] = []

    def show(law: "LawLine") -> None:
        if law["subject"] not in subjects:
            subjects.append(str(law["subject"]))
            name = subjects[-1].rpartition(":")[2]
            print_message(session, f"{name} of {peer} {law['version']}, by the laws of {law['mode']}")
        told = [str(law[part]) for part in ("measured", "note") if law[part]]
        print_message(
            session,
            "\n          ".join([f"{_MARKS[str(law['verdict'])]} {law['id']!s:<20}{law['what']}", *told]),
        )

    results = check_peer(peer, show)
    by = {mark: [str(law["id"]) for law in results if law["verdict"] == mark] for mark in _MARKS}
    lines = [
        f"{peer}: {len(by['holds'])} laws hold, {len(by['deviates'])} known deviations "
        f"({', '.join(by['deviates'])}), {len(by['not asked'])} not applicable"
    ]
    lines += [f"new deviation: {law}" for law in by["new"]]
    lines += [f"deviation no longer found: {law}" for law in by["gone"]]
    surprises = [*by["new"], *by["gone"]]
    emit(session, "laws", {"peer": peer, "laws": list(results), "surprises": list(surprises)}, lines)
    return ExitCode.GATE_FAILED if surprises else ExitCode.OK
