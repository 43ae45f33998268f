"""The kinds of object that are validated: the file of each one's schema, and the rules of its operator."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from paceline.k8s.kinds import (
    CLAIM,
    CLAIM_TEMPLATE,
    CLUSTER_RUNTIME,
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    HYPERPOD_JOB,
    JOB,
    NETWORK_POLICY,
    PYTORCH_JOB,
    RAY_CLUSTER,
    RAY_JOB,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    TRAIN_JOB,
    TRAINING_RUNTIME,
    Kind,
)
from paceline.k8s.validate import admission, admission_ray, admission_training
from paceline.k8s.validate.schema import Finding, ObjectOf, Path
from paceline.k8s.validate.schema_files import load_schema

Spec = Mapping[str, object]
PodFinder = Callable[[Spec, Path], Iterator[tuple[Spec, Path]]]


@dataclass(frozen=True, slots=True)
class KindRules:
    kind: Kind
    rules: Callable[[Spec, Path], Iterator[Finding]]
    pods: PodFinder | None = None  # whole ones
    patches: PodFinder | None = None  # its patches of other objects' pods
    inside: tuple[str, ...] = ("spec",)  # field that the rules check
    schema_file: str = ""  # file in schemas/, without .json; empty: named like the kind

    @property
    def schema(self) -> ObjectOf:
        file = self.schema_file or self.kind.name.lower()
        return load_schema(file, self.kind.api_version, self.kind.name)


def _ray(version: str) -> tuple[KindRules, KindRules]:
    """Every KubeRay serves v1alpha1 in addition to v1, with the same fields."""
    cluster = replace(RAY_CLUSTER, version=version)
    job = replace(RAY_JOB, version=version)
    return (
        KindRules(cluster, admission_ray.find_in_cluster, admission_ray.pods_of_cluster),
        KindRules(job, admission_ray.find_in_job, admission_ray.pods_of_job),
    )


_RULES = (
    *_ray("v1"),
    *_ray("v1alpha1"),
    KindRules(PYTORCH_JOB, admission_training.find_in_pytorchjob, admission_training.pods_of_pytorchjob),
    KindRules(TRAIN_JOB, admission_training.find_in_trainjob, None, admission_training.patched_pods),
    KindRules(TRAINING_RUNTIME, admission_training.find_in_runtime, admission_training.pods_of_runtime),
    KindRules(
        CLUSTER_RUNTIME,
        admission_training.find_in_runtime,
        admission_training.pods_of_runtime,
        schema_file="trainingruntime",
    ),
    KindRules(HYPERPOD_JOB, admission_training.find_in_hyperpod, admission_training.pods_of_hyperpod),
    KindRules(JOB, admission.find_in_job, admission.pods_of_template),
    KindRules(SERVICE, admission_ray.find_in_service),
    KindRules(CONFIG_MAP, admission.find_in_configmap, inside=()),
    KindRules(CLAIM, admission.find_in_claim),
    KindRules(SERVICE_ACCOUNT, admission.find_nothing, inside=()),
    KindRules(CLAIM_TEMPLATE, admission.find_in_claim_template),
    KindRules(ROLE, admission.find_in_role, inside=()),
    KindRules(ROLE_BINDING, admission.find_in_binding, inside=()),
    KindRules(NETWORK_POLICY, admission.find_in_policy),
    KindRules(STATEFUL_SET, admission.find_in_set, admission.pods_of_template),
    KindRules(DEPLOYMENT, admission.find_in_deployment, admission.pods_of_template),
    KindRules(DISRUPTION_BUDGET, admission.find_in_budget),
)
KIND_RULES = {(rules.kind.api_version, rules.kind.name): rules for rules in _RULES}
