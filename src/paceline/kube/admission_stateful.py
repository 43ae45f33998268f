"""What does Kubernetes refuse about a StatefulSet, a Deployment or a budget whose fields are all right?"""

import re
from collections.abc import Iterator, Mapping

from paceline.kube.admission_pod import find_in_pod, twice
from paceline.kube.reading import mapping, mappings
from paceline.kube.schema import Finding, Path

Spec = Mapping[str, object]
_PERCENT = re.compile(r"[0-9]+%")


def find_in_deployment(spec: Spec, path: Path) -> Iterator[Finding]:
    yield from find_in_pod(mapping(spec, "template", "spec"), (*path, "template", "spec"), is_core=True)
    yield from _always_on(spec, path, "deployment")
    strategy, where = mapping(spec, "strategy"), (*path, "strategy")
    rolling = mapping(strategy, "rollingUpdate")
    for name in rolling:
        yield from _share(rolling[name], (*where, "rollingUpdate", name))
    if strategy.get("type") == "Recreate" and rolling:
        what = "Forbidden: may not be specified when strategy `type` is 'Recreate'"
        yield Finding((*where, "rollingUpdate"), what, "leave it out")


def find_in_set(spec: Spec, path: Path) -> Iterator[Finding]:
    pod, where = mapping(spec, "template", "spec"), (*path, "template", "spec")
    claims = [mapping(one, "metadata").get("name") for one in mappings(spec, "volumeClaimTemplates")]
    yield from twice(claims, (*path, "volumeClaimTemplates"), "claim")
    # Each pod has a volume for each claim; one of the same name in `volumes` is replaced by it.
    named = {volume.get("name") for volume in mappings(pod, "volumes")}
    made = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims if name not in named
    ]
    yield from find_in_pod({**pod, "volumes": [*mappings(pod, "volumes"), *made]}, where, is_core=True)
    rolling = mapping(spec, "updateStrategy", "rollingUpdate")
    if "maxUnavailable" in rolling:
        where = (*path, "updateStrategy", "rollingUpdate", "maxUnavailable")
        yield from _share(rolling["maxUnavailable"], where)
    yield from _always_on(spec, path, "statefulset")


def _always_on(spec: Spec, path: Path, kind: str) -> Iterator[Finding]:
    """What holds for whatever keeps a number of pods running."""
    if mapping(spec, "template", "spec").get("restartPolicy", "Always") != "Always":
        what = 'Unsupported value: supported values: "Always"'
        yield Finding((*path, "template", "spec", "restartPolicy"), what, "leave it out")
    wanted, labels = mapping(spec, "selector", "matchLabels"), mapping(spec, "template", "metadata", "labels")
    if any(labels.get(name) != value for name, value in wanted.items()):
        what = "Invalid value: `selector` does not match template `labels`"
        yield Finding((*path, "template", "metadata", "labels"), what, "give the pods the selector's labels")
    if not wanted and not mappings(spec, "selector", "matchExpressions"):
        what = f"Invalid value: empty selector is invalid for {kind}"
        yield Finding((*path, "selector"), what, "add matchLabels")


def find_in_budget(spec: Spec, path: Path) -> Iterator[Finding]:
    for name in ("minAvailable", "maxUnavailable"):
        if name in spec:
            yield from _share(spec[name], (*path, name))
    if "minAvailable" in spec and "maxUnavailable" in spec:
        what = "minAvailable and maxUnavailable cannot be both set"
        yield Finding(path, f"Invalid value: {what}", "keep one of them")
    if "minAvailable" not in spec and "maxUnavailable" not in spec:
        yield Finding(
            path,
            "it says neither minAvailable nor maxUnavailable, so it guards nothing",
            "add one",
            is_advice=True,
        )


def _share(said: object, path: Path) -> Iterator[Finding]:
    is_number = isinstance(said, int) and not isinstance(said, bool) and said >= 0
    if not is_number and not (isinstance(said, str) and _PERCENT.fullmatch(said)):
        yield Finding(
            path, "Invalid value: it is neither a number of pods nor a percentage", "write 1, or 25%"
        )
