"""Law runner: checks laws one after another; an exception is a failed law."""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.launchers.local import LocalLauncher
from paceline.laws import (
    adaptive,
    asynchronous,
    codecs,
    compressed,
    diloco,
    gossip,
    harness,
    localsgd,
    performance,
    processes,
    robust,
    scripts,
    ssp,
    synchronous,
    universal,
)
from paceline.laws import asynchronous as stale
from paceline.laws import gossip as pairs
from paceline.laws import harness as evaluated
from paceline.laws import synchronous as spare
from paceline.laws.lab import Lab, Law
from paceline.plan.catalog import MODES

LAWS: tuple[Law, ...] = (
    *universal.LAWS,
    *synchronous.LAWS,
    *spare.BACKUP_LAWS,
    *asynchronous.LAWS,
    *ssp.LAWS,
    *stale.STALENESS_LAWS,
    *localsgd.LAWS,
    *diloco.LAWS,
    *robust.LAWS,
    *harness.LAWS,
    *evaluated.EVALUATION_LAWS,
    *asynchronous.AVERAGING_LAWS,
    *localsgd.FEDERATED_LAWS,
    *codecs.LAWS,
    *compressed.LAWS,
    *gossip.LAWS,
    *pairs.PAIRWISE_LAWS,
    *adaptive.LAWS,
    *scripts.LAWS,
    *performance.LAWS,
    *processes.LAWS,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One law, to be checked for one mode."""

    id: str
    mode: str
    law: Law
    subject: str | None = None  # the mode on trial, where it is another one that is like `mode`


def cases(mode: str | None) -> Iterator[Case]:
    """The laws of one mode, or of all; what needs processes comes last."""
    for law in sorted(LAWS, key=lambda law: law.starts_processes):
        for mode_name in law.modes if law.per_mode else law.modes[:1]:
            if mode in (None, mode_name):
                yield Case(f"{law.id}.{mode_name}" if law.per_mode else law.id, mode_name, law)
        for other in MODES.values():  # a mode that is meant to be like another one obeys its laws
            if other.like in (law.modes if law.per_mode else law.modes[:1]) and mode in (None, other.name):
                yield Case(f"{law.id}.{other.name}", other.like, law, subject=other.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LawResult:
    id: str
    mode: str
    what: str
    ok: bool
    measured: str


def check_laws(mode: str | None, *, subject: str | None, launcher: LocalLauncher) -> Iterator[LawResult]:
    """All laws of `mode` (or of every mode), tried on the built-in strategy or on `subject`."""
    for case in cases(mode):
        yield check(case, Lab(case.mode, subject or case.subject, launcher))


def check(case: Case, lab: Lab) -> LawResult:
    try:
        finding = case.law.check(lab)
        ok = finding.ok
        measured = finding.measured
    except Exception as error:
        # A strategy that crashes under a law breaks it; the law's line says how.
        ok = False
        measured = f"{type(error).__name__}: {error}"
    return LawResult(id=case.id, mode=case.subject or case.mode, what=case.law.what, ok=ok, measured=measured)
