"""Is a TrainJob written for the Trainer that the cluster has? Its fields change with every minor version.

A server of another version refuses them at best; at worst it drops them without a word.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.errors import Problem
from paceline.kube.diagnosis.snapshot import Object, name_of
from paceline.kube.reading import mapping

Minor = tuple[int, int]
_OLDEST, _NEWEST = (2, 1), (2, 3)
_SINCE_22 = ("runtimePatches", "activeDeadlineSeconds")
_UNTIL_21 = ("podTemplateOverrides",)
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")


@dataclass(frozen=True, slots=True)
class _Field:
    where: str
    least: Minor
    most: Minor


def has_train_job(manifests: Sequence[Object]) -> bool:
    return any(one.get("kind") == "TrainJob" for one in manifests)


def misfit(manifests: Sequence[Object], version: str) -> Problem | None:
    """`version` is the cluster's, such as 2.3.0. None when all fields are known to it."""
    said = re.match(r"(\d+)\.(\d+)", version)
    if said is None:
        return None
    minor = (int(said[1]), int(said[2]))
    # What is newer than all that we know is taken for the newest.
    of_cluster = min(minor, _NEWEST)
    wrong = [one for one in _fields(manifests) if not one.least <= of_cluster <= one.most]
    if not wrong:
        return None
    asked = wrong[0].least if of_cluster < wrong[0].least else wrong[0].most
    than = "or newer" if of_cluster < wrong[0].least else "or older"
    names = ", ".join(one.where for one in wrong)
    what = f"the cluster has Kubeflow Trainer {version}, but {names} is for {_text(asked)} {than}"
    return Problem(what, f"render it with --trainer {_text(max(_OLDEST, of_cluster))}")


def _fields(manifests: Sequence[Object]) -> Iterator[_Field]:
    for one in manifests:
        spec, called = mapping(one, "spec"), f"{one.get('kind')}/{name_of(one)} spec"
        if one.get("kind") == "TrainJob":
            yield from (_Field(f"{called}.{name}", (2, 2), _NEWEST) for name in _SINCE_22 if name in spec)
            yield from (_Field(f"{called}.{name}", _OLDEST, (2, 1)) for name in _UNTIL_21 if name in spec)
        if one.get("kind") in _RUNTIMES:
            torch = mapping(spec, "mlPolicy", "torch")
            for name in ("elasticPolicy", "numProcPerNode"):
                if name in torch:
                    yield _Field(f"{called}.mlPolicy.torch.{name}", _OLDEST, (2, 1))


def _text(minor: Minor) -> str:
    return f"{minor[0]}.{minor[1]}"
