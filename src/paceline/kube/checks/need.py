"""What shall the cluster be good for? `gpus=16,efa,nodes=2,rwx`, and the kind of job that is to run."""

from dataclasses import dataclass
from enum import Enum

from paceline.errors import ManifestError, Problem
from paceline.kube.checks.finding import Level

WORDS = "gpus=N, nodes=N, efa, rwx"


class Target(Enum):
    JOB = "job"
    PYTORCHJOB = "pytorchjob"
    TRAINJOB = "trainjob"
    RAYJOB = "rayjob"
    RAYCLUSTER = "raycluster"
    HYPERPOD = "hyperpod"

    @property
    def resource(self) -> str:
        return _RESOURCES[self]


_RESOURCES = {
    Target.JOB: "jobs.batch",
    Target.PYTORCHJOB: "pytorchjobs.kubeflow.org",
    Target.TRAINJOB: "trainjobs.trainer.kubeflow.org",
    Target.RAYJOB: "rayjobs.ray.io",
    Target.RAYCLUSTER: "rayclusters.ray.io",
    Target.HYPERPOD: "hyperpodpytorchjobs.sagemaker.amazonaws.com",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Nothing said: whatever is installed is expected to work, and nothing has to be installed."""

    gpus: int = 0
    nodes: int = 0
    efa: bool = False
    rwx: bool = False  # a volume that several nodes can write to
    target: Target | None = None

    @property
    def says_nothing(self) -> bool:
        return self == Need()

    def broken(self, *, matters: bool) -> Level:
        """How bad is it that something installed does not work? `matters`: what was asked for needs it."""
        return Level.PROBLEM if matters or self.says_nothing else Level.WARNING

    def absent(self, *, matters: bool) -> Level:
        """How bad is it that something is not installed?"""
        return Level.PROBLEM if matters else Level.NOTE


def read_need(text: str, target: Target | None = None) -> Need:
    """Raises ConfigError."""
    numbers, flags, problems = dict[str, int](), set[str](), list[Problem]()
    for word in [part.strip() for part in text.split(",") if part.strip()]:
        name, _, value = word.partition("=")
        if name in ("gpus", "nodes") and value.isascii() and value.isdigit() and int(value) > 0:
            numbers[name] = int(value)
        elif word in ("efa", "rwx"):
            flags.add(word)
        else:
            problems.append(Problem(f"nobody knows the need {word!r}", f"needs are {WORDS}", "--need"))
    if problems:
        raise ManifestError(problems)
    return Need(
        gpus=numbers.get("gpus", 0),
        nodes=numbers.get("nodes", 0),
        efa="efa" in flags,
        rwx="rwx" in flags,
        target=target,
    )
