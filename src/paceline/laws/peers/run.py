"""How is another library judged? By the laws of a mode, against what is known of it.

A deviation that is known is a finding about the library. What counts as a
failure is a surprise: a new deviation, or a known one that is no longer there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version

from paceline.launchers.local import LocalLauncher
from paceline.laws.catalog import Case, cases
from paceline.laws.lab import Lab
from paceline.laws.peers.catalog import Peer, Trial
from paceline.laws.run import check


class Verdict(StrEnum):
    HOLDS = "holds"
    DEVIATES = "deviates"  # as is known
    NOT_ASKED = "not asked"
    NEW = "new"  # it deviates, and nobody knew
    GONE = "gone"  # it holds, and was known not to


SURPRISES = frozenset({Verdict.NEW, Verdict.GONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerResult:
    id: str
    mode: str
    what: str
    measured: str
    subject: str
    version: str
    verdict: Verdict
    note: str  # what the library does instead, or why it is not asked


def check_peer(peer: Peer, launcher: LocalLauncher | None) -> Iterator[PeerResult]:
    for trial in peer.trials:
        for case in cases(trial.mode):
            if trial.only is None or case.id in trial.only:
                yield _judge(peer, trial, case, launcher)


def _judge(peer: Peer, trial: Trial, case: Case, launcher: LocalLauncher | None) -> PeerResult:
    law = case.id.removesuffix(f".{case.mode}")
    installed = version(peer.module)

    def told(verdict: Verdict, measured: str, note: str) -> PeerResult:
        return PeerResult(
            id=case.id,
            mode=case.mode,
            what=case.law.what,
            measured=measured,
            subject=trial.subject,
            version=installed,
            verdict=verdict,
            note=note,
        )

    if law in trial.not_asked:
        return told(Verdict.NOT_ASKED, "", trial.not_asked[law])
    result = check(case, Lab(case.mode, trial.subject, launcher))
    if law not in trial.known:
        return told(Verdict.HOLDS if result.ok else Verdict.NEW, result.measured, "")
    if result.ok:
        note = f"{peer.name} {peer.looked_at} did not: {trial.known[law]}"
        return told(Verdict.GONE, result.measured, note)
    return told(Verdict.DEVIATES, result.measured, trial.known[law])
