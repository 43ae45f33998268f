"""Cluster check: takes a snapshot of a cluster, or reads one from a file, and checks it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.core.errors import (
    CannotWriteError,
    ClusterOptionError,
    MissingPackageError,
    NotReadyError,
    Problem,
    UnreadableFileError,
)
from paceline.core.redaction import redact
from paceline.k8s.check import operators
from paceline.k8s.check.checks import CheckResult, run_checks
from paceline.k8s.check.eks import AREA
from paceline.k8s.check.eks import check as check_eks
from paceline.k8s.check.findings import Finding, Level, Need
from paceline.k8s.check.namespace import rights_in
from paceline.k8s.check.snapshot import EksFacts, Object, Rule, Snapshot, prune_object, read_snapshot
from paceline.k8s.client.api import (
    Api,
    ForbiddenError,
    Manifest,
    NotThereError,
    UnreachableError,
    is_allowed,
    user_of,
)
from paceline.k8s.client.connection import ClusterTarget, Context, contexts, kubeconfig_files, open_cluster
from paceline.k8s.kinds import (
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
from paceline.k8s.objects import mapping
from paceline.k8s.rbac import rendered_rights_for
from paceline.k8s.spec.job import Target

if TYPE_CHECKING:
    from paceline.k8s.client.eks import Aws, EksCluster


_RECORD = "record one: paceline cluster check --save SNAPSHOT.json"


def check_cluster(seen: Snapshot, need: Need) -> CheckResult:
    return run_checks(seen, need)


def list_contexts(kubeconfig: Path | None) -> list[Context]:
    """Contexts of this user's kubeconfig files; empty without such a file."""
    return contexts(kubeconfig_files(kubeconfig))


def list_eks_clusters(region: str | None, profile: str | None = None) -> "list[EksCluster]":
    """Raises NotReadyError without boto3, and UnreachableError."""
    try:
        from paceline.k8s.client.eks import eks_clusters
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[aws]'"
        raise MissingPackageError(f"Amazon's client is not installed: {error}", hint) from error
    return eks_clusters(region, profile)


def probe_cluster(
    kubeconfig: Path | None, context: str | None, namespace: str | None, target: Target | None
) -> Snapshot:
    """Raises ApiError, NotReadyError."""

    place = ClusterTarget(kubeconfig=kubeconfig, context=context, namespace=namespace)
    with open_cluster(place, without="check a snapshot: --from SNAPSHOT.json") as cluster:
        return take_snapshot(cluster.api, cluster.namespace, target)


def load_snapshot(path: Path) -> Snapshot:
    """Raises ConfigError, PacelineError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableFileError(f"cannot read {path}: {error.strerror}", _RECORD) from error
    except (ValueError, RecursionError) as error:
        raise ClusterOptionError([Problem("the file is not JSON", _RECORD, str(path))]) from error
    return read_snapshot(value, str(path))


def save_snapshot(seen: Snapshot, path: Path) -> None:
    try:
        path.write_text(json.dumps(seen.to_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        hint = "name a file in an existing writable folder"
        raise CannotWriteError(f"cannot write {path}: {error.strerror}", hint) from error


@contextmanager
def open_aws(region: str | None, profile: str | None) -> "Iterator[Aws]":
    """Raises NotReadyError without boto3, and UnreachableError."""
    try:
        from paceline.k8s.client.eks import Aws
    except ModuleNotFoundError as error:
        hint = "pip install 'paceline[aws]'"
        raise MissingPackageError(f"Amazon's client is not installed: {error}", hint) from error
    aws = Aws(region, profile)
    try:
        yield aws
    finally:
        aws.close()


def probe_eks(name: str, region: str | None, profile: str | None) -> EksFacts:
    """Raises NotReadyError, UnreachableError."""
    with open_aws(region, profile) as aws:
        from paceline.k8s.check.eks_probe import read_eks_facts as look

        return look(aws, name)


def context_of(facts: EksFacts, kubeconfig: Path | None, requested: str | None) -> str | None:
    """The context that leads to this server. Raises ConfigError if `requested` leads elsewhere."""
    known = contexts(kubeconfig_files(kubeconfig))
    matching = [
        context.name for context in known if facts.server and context.server.lower() == facts.server.lower()
    ]
    others = [context for context in known if context.name == requested and context.name not in matching]
    if others:
        server = others[0].server
        message = f"context {requested} connects to {server}, but {facts.name} is at {facts.server}"
        raise ClusterOptionError(
            [Problem(message, f"use a context of it: {kubeconfig_command(facts)}", "--context")]
        )
    return requested or (matching[0] if matching else None)


def require_context(facts: EksFacts, kubeconfig: Path | None, requested: str | None) -> str:
    """Check before writes that the context refers to this cluster. Raises NotReadyError."""
    context = context_of(facts, kubeconfig, requested)
    if context is None:
        raise NotReadyError(
            f"no context of your kubeconfig connects to {facts.name} ({facts.server})",
            kubeconfig_command(facts),
        )
    return context


def kubeconfig_command(facts: EksFacts) -> str:
    return f"aws eks update-kubeconfig --name {facts.name} --region {facts.region}"


def check_both_sides(facts: EksFacts, seen: Snapshot, need: Need) -> CheckResult:
    """Findings of the EKS API and of the cluster itself."""
    return CheckResult((*check_eks(facts, need), *run_checks(seen, need).findings))


def check_eks_only(facts: EksFacts, need: Need) -> tuple[Snapshot, CheckResult]:
    """Check a cluster without a kubeconfig entry: only Amazon's side is known."""
    unseen = Finding(
        area=AREA,
        level=Level.WARNING if need.says_nothing else Level.PROBLEM,
        what="the cluster was not checked: nodes, GPUs, operators and permissions are unknown",
        evidence=f"no context of your kubeconfig connects to {facts.server}",
        command=kubeconfig_command(facts),
    )
    empty = Snapshot(server=facts.server, version=f"v{facts.version}", namespace="", served={}, objects={})
    return empty, CheckResult((*check_eks(facts, need), unseen))


# Pods are not listed: there are thousands, and the capacity of nodes does not depend on them. A refused list
# is recorded as a missing right, and a kind whose operator fails (500) is left out; a failed authentication
# (401) and an unreachable server are errors.

MAX_REQUESTS = 25
_PAGE = 500  # objects per request, as the client asks for
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
# Read if the kind is served: status that operators report.
_TOLD = (
    (TRAIN_JOB, "kubeflow-system", operators.TRAINER_CONFIG),
    (LOCAL_QUEUE, "kueue-system", operators.KUEUE_CONFIG),
)


class SnapshotApi(Api, Protocol):
    """API port that also gives the version and the served kinds."""

    def version(self) -> str: ...

    def served(self) -> dict[str, tuple[str, ...]]: ...


def take_snapshot(api: SnapshotApi, namespace: str, target: Target | None = None) -> Snapshot:
    """`target`: rights for this kind are checked one by one where the server gives no list of rights."""
    version = api.version()
    served = api.served()
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
        objects={name: tuple(items) for name, items in reading.objects.items()},
        refused=tuple(reading.refused),
        rights=rights,
        user=user_of(api) if reading.refused or not all(rights.values()) else "",
    )


class _Reading:
    """Objects read so far, refused requests, and the number of requests."""

    def __init__(self, api: SnapshotApi, served: dict[str, tuple[str, ...]]) -> None:
        self._api = api
        self._served = served
        self.objects: dict[str, list[Object]] = {}
        self.refused: list[Rule] = []
        self._requests = 2  # for version and kinds

    def find(self, kind: Kind, namespace: str | None = None) -> None:
        resource = kind.resource
        if kind.group and resource not in self._served:
            return
        self._requests += 1
        try:
            items = self._api.find(self._as_served(kind), namespace).items
        except ForbiddenError:
            self.refused.append(Rule("list", resource, namespace or ""))
            return
        except UnreachableError as error:
            if error.status < 500 or not _is_custom(kind):
                raise
            return  # its operator's conversion webhook is down; the server itself answers
        self._requests += max(0, len(items) - 1) // _PAGE
        self.objects[resource] = [prune_object(resource, item) for item in items]

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        resource = kind.resource
        self._requests += 1
        try:
            objects = [prune_object(resource, self._api.get(kind, name, namespace))]
        except ForbiddenError:
            self.refused.append(Rule("get", resource, namespace or ""))
            return
        except NotThereError:
            objects = []
        self.objects[resource] = [*self.objects.get(resource, []), *objects]

    def rights(self, namespace: str, target: Target | None) -> dict[str, bool]:
        rights = dict.fromkeys(right for target in Target for right in rendered_rights_for(target.resource))
        review: Manifest = {
            "apiVersion": RULES_REVIEW.api_version,
            "kind": RULES_REVIEW.name,
            "metadata": {},
            "spec": {"namespace": namespace},
        }
        self._requests += 1
        try:
            known = rights_in(mapping(self._api.create(review), "status"), rights)
        except ForbiddenError:
            known = {}
        # EKS decides by a webhook too, which has no list: then a right that is not listed may still exist.
        for right in rendered_rights_for((target or Target.JOB).resource):
            if right.key in known or not right.is_required or self._requests >= MAX_REQUESTS - 1:
                continue  # the last question is for the name of the user
            self._requests += 1
            try:
                known[right.key] = is_allowed(self._api, right, namespace)
            except ForbiddenError:
                break  # if this is forbidden, the next one is, too
        return known

    def _as_served(self, kind: Kind) -> Kind:
        versions = self._served.get(kind.resource, (kind.version,))
        return kind if kind.version in versions else replace(kind, version=versions[0])


def _is_custom(kind: Kind) -> bool:
    return "." in kind.group and not kind.group.endswith(".k8s.io")
