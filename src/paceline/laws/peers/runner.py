"""Peer runner: checks another library by the laws of a mode, against its known deviations.

A known deviation is a finding about the library. A failure is a new deviation, or a known one that no longer
occurs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import version

from paceline.launchers.local import LocalLauncher
from paceline.laws.lab import Lab
from paceline.laws.runner import Case, cases, check

# Nothing here says that a library is wrong: a law is what this product promises.
# It says what a user who goes from one to the other must expect, and which
# version was inspected.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One class of a library, tried by the laws of a mode."""

    subject: str
    mode: str
    known: Mapping[str, str]  # laws that it breaks, and what it does instead
    not_asked: Mapping[str, str] = field(default_factory=dict)  # laws about what it does not offer
    only: frozenset[str] | None = None  # just these laws; None: all of the mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    module: str
    looked_at: str  # the version in which the known deviations were found
    trials: tuple[Trial, ...]


_NOT_AN_AVERAGERS_JOB = {
    "U7": "an averager does not propagate stop requests; its caller must",
    "M3": "a law of Paceline's simulator",
    **dict.fromkeys(
        ("T1", "T3", "T6", "T7", "T8", "T11", "T12", "T13"), "a law of Paceline's training scripts"
    ),
    "L3": "it has no averaging of the optimizer's state",
    "L4.post": "it has no initial phase with averaging at every step",
    **dict.fromkeys(
        ("C11", "C12.replay", "C12.equal", "C12.slow", "C12.stop", "D9"),
        "a law of --compress, which it does not support",
    ),
}
_BUFFERS = "averages parameters only: batch-norm buffers stay different on every worker"
_NO_LAST = "averages after steps 4 and 8 of 10: there is no averaging after the last step"

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            name="torch",
            module="torch",
            looked_at="2.13.0",
            trials=(
                Trial(
                    subject="paceline.laws.peers.adapter:PeriodicAverager",
                    mode="localsgd",
                    known={
                        "U2": "steps after its last averaging stay on their worker, see L4",
                        "U4": _BUFFERS,
                        "L4": "a period of 4 averages after steps 1, 5 and 9, not after 4, 8 and the last",
                        "L6": "the last steps are not in the mean, see L4",
                        "L7": "`p.data = …` gives every parameter new storage, so views and graphs on the "
                        "old one see no further training",
                        "L9": "skips every parameter whose `.grad` is None at that moment",
                    },
                    not_asked={
                        **_NOT_AN_AVERAGERS_JOB,
                        "L4.post": "its warm-up only skips averaging; the first steps are left to a DDP hook",
                    },
                ),
            ),
        ),
        Peer(
            name="torchft",
            module="torchft",
            looked_at="0.2.0",
            trials=(
                Trial(
                    subject="paceline.laws.peers.torchft_averagers:TorchftLocalSgd",
                    mode="localsgd",
                    known={"U4": _BUFFERS, "L4": _NO_LAST},
                    not_asked=_NOT_AN_AVERAGERS_JOB,
                ),
                Trial(
                    subject="paceline.laws.peers.torchft_averagers:TorchftDiloco",
                    mode="diloco",
                    known={
                        "U3": "rounding, not a defect: θ - (θ - mean) is not the mean to the last bit",
                        "U4": _BUFFERS,
                        "D1": "no averaging after the last step: steps 13 and 14 of 14 stay on their worker",
                    },
                    not_asked={
                        **_NOT_AN_AVERAGERS_JOB,
                        "D6": "it cuts a model between modules, and H must be a multiple of their number",
                    },
                ),
                Trial(
                    subject="paceline.laws.peers.torchft_averagers:TorchftDilocoInBuckets",
                    mode="diloco",
                    only=frozenset({"D3", "D6.tensors"}),
                    known={
                        "D3": "with buckets smaller than the model workers diverge, see D6.tensors",
                        "D6.tensors": "advances by the bucket's size, not by its content, so tensors are "
                        "skipped; and all unpacking callbacks see the last bucket only",
                    },
                ),
            ),
        ),
        Peer(
            name="accelerate",
            module="accelerate",
            looked_at="1.15.0",
            trials=(
                Trial(
                    subject="paceline.laws.peers.accelerate_averager:AccelerateLocalSgd",
                    mode="localsgd",
                    known={
                        "U4": _BUFFERS,
                        "L5": "averages once more at its end, also right after an averaging",
                        "L7": "`param.data = …` gives every parameter new storage at every averaging",
                    },
                    not_asked=_NOT_AN_AVERAGERS_JOB,
                ),
            ),
        ),
    )
}


class Verdict(StrEnum):
    HOLDS = "holds"
    DEVIATES = "deviates"  # as is known
    NOT_ASKED = "not asked"
    NEW = "new"  # it deviates, and no known deviation explains it
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
