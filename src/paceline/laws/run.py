"""How are laws checked one after another? Each to a verdict; an exception is a verdict too."""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.launchers.local import LocalLauncher
from paceline.laws.catalog import Case, cases
from paceline.laws.lab import Lab


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
        ok, measured = finding.ok, finding.measured
    except Exception as error:
        # A strategy that crashes under a law breaks it; the law's line says how.
        ok, measured = False, f"{type(error).__name__}: {error}"
    return LawResult(id=case.id, mode=case.subject or case.mode, what=case.law.what, ok=ok, measured=measured)
