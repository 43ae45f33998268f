"""How is a snapshot of a cluster taken? In at most 25 questions for 200 nodes, and with rights to look only.

Pods are not asked for: there are thousands, and what nodes offer does not depend on them. What the server
refuses to show is noted as the missing rule, and a kind whose own operator fails (500) is left out; who we
are (401) and whether it answers are errors.
"""

from dataclasses import replace
from typing import Protocol

from paceline.cluster.kinds import (
    CLAIM,
    CLUSTER_POLICY,
    CLUSTER_RUNTIME,
    CONFIG_MAP,
    CSI_DRIVER,
    DAEMON_SET,
    DEPLOYMENT,
    LOCAL_QUEUE,
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    QUOTA,
    RESOURCE_SLICE,
    RULES_REVIEW,
    STORAGE_CLASS,
    TRAIN_JOB,
    TRAINING_RUNTIME,
    VALIDATING_WEBHOOK,
    Kind,
)
from paceline.cluster.port import Api, ForbiddenError, Manifest, NotThereError, UnreachableError
from paceline.cluster.preflight import is_allowed, user_of
from paceline.kube.checks import kueue, trainer
from paceline.kube.checks.kept import kept
from paceline.kube.checks.need import Target
from paceline.kube.checks.rights import rights_in
from paceline.kube.checks.snapshot import Object, Rule, Snapshot
from paceline.kube.reading import mapping
from paceline.kube.rights import rendered_rights_for
from paceline.redaction import redact

MOST_QUESTIONS = 25
_PAGE = 500  # as the door asks
_EVERYWHERE = (
    NODE,
    RESOURCE_SLICE,
    DEPLOYMENT,
    DAEMON_SET,
    CLUSTER_POLICY,
    STORAGE_CLASS,
    CSI_DRIVER,
    VALIDATING_WEBHOOK,
    CLUSTER_RUNTIME,
)
_IN_NAMESPACE = (QUOTA, CLAIM, NETWORK_POLICY, LOCAL_QUEUE, TRAINING_RUNTIME)
# Read where the kind is served: what an operator says about itself.
_TOLD = ((TRAIN_JOB, "kubeflow-system", trainer.CONFIG), (LOCAL_QUEUE, "kueue-system", kueue.CONFIG))


class Looked(Api, Protocol):
    """A cluster that can be asked what it is, too."""

    def version(self) -> str: ...

    def served(self) -> dict[str, tuple[str, ...]]: ...


def take_snapshot(api: Looked, namespace: str, target: Target | None = None) -> Snapshot:
    """`target`: whose rights are asked for one by one where the server has no list of them."""
    version, served = api.version(), api.served()
    reading = _Reading(api, served)
    for kind in _EVERYWHERE:
        reading.find(kind)
    reading.get(NAMESPACE, namespace)
    for kind in _IN_NAMESPACE:
        reading.find(kind, namespace)
    for kind, space, name in _TOLD:
        if kind.resource in served:
            reading.get(CONFIG_MAP, name, space)
    rights = reading.rights(namespace, target)
    return Snapshot(
        server=redact(api.server),
        version=version,
        namespace=namespace,
        served=served,
        objects={name: tuple(found) for name, found in reading.objects.items()},
        refused=tuple(reading.refused),
        rights=rights,
        user=user_of(api) if reading.refused or not all(rights.values()) else "",
    )


class _Reading:
    """What was read so far, what was refused, and how many questions that took."""

    def __init__(self, api: Looked, served: dict[str, tuple[str, ...]]) -> None:
        self._api, self._served = api, served
        self.objects: dict[str, list[Object]] = {}
        self.refused: list[Rule] = []
        self._asked = 2  # for version and kinds

    def find(self, kind: Kind, namespace: str | None = None) -> None:
        resource = kind.resource
        if kind.group and resource not in self._served:
            return
        self._asked += 1
        try:
            found = self._api.find(self._as_served(kind), namespace).items
        except ForbiddenError:
            self.refused.append(Rule("list", resource, namespace or ""))
            return
        except UnreachableError as error:
            if error.status < 500 or not _is_custom(kind):
                raise
            return  # its operator's conversion webhook is down; the server itself answers
        self._asked += max(0, len(found) - 1) // _PAGE
        self.objects[resource] = [kept(resource, one) for one in found]

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        resource = kind.resource
        self._asked += 1
        try:
            found = [kept(resource, self._api.get(kind, name, namespace))]
        except ForbiddenError:
            self.refused.append(Rule("get", resource, namespace or ""))
            return
        except NotThereError:
            found = []
        self.objects[resource] = [*self.objects.get(resource, []), *found]

    def rights(self, namespace: str, target: Target | None) -> dict[str, bool]:
        wanted = dict.fromkeys(right for one in Target for right in rendered_rights_for(one.resource))
        review: Manifest = {
            "apiVersion": RULES_REVIEW.api_version,
            "kind": RULES_REVIEW.name,
            "metadata": {},
            "spec": {"namespace": namespace},
        }
        self._asked += 1
        try:
            known = rights_in(mapping(self._api.create(review), "status"), wanted)
        except ForbiddenError:
            known = {}
        # EKS decides by a webhook too, which has no list: then a missing right may be there all the same.
        for right in rendered_rights_for((target or Target.JOB).resource):
            if right.key in known or not right.is_required or self._asked >= MOST_QUESTIONS - 1:
                continue  # the last question is for the name of the user
            self._asked += 1
            try:
                known[right.key] = is_allowed(self._api, right, namespace)
            except ForbiddenError:
                break  # who may not ask this may not ask the next one
        return known

    def _as_served(self, kind: Kind) -> Kind:
        versions = self._served.get(kind.resource, (kind.version,))
        return kind if kind.version in versions else replace(kind, version=versions[0])


def _is_custom(kind: Kind) -> bool:
    return "." in kind.group and not kind.group.endswith(".k8s.io")
