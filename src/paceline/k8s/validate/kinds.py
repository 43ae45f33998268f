"""Which kinds of object are checked, by which shape, and by whose rules?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from paceline.k8s.validate import admission as beside
from paceline.k8s.validate import admission as job
from paceline.k8s.validate import admission as stateful
from paceline.k8s.validate import admission_ray as ray
from paceline.k8s.validate import admission_training as hyperpod
from paceline.k8s.validate import admission_training as pytorch
from paceline.k8s.validate import admission_training as trainer
from paceline.k8s.validate.schema import Finding, ObjectOf, Path
from paceline.k8s.validate.schemas_core import (
    ACCOUNT,
    BINDING,
    CLAIM,
    CLAIM_TEMPLATE,
    CONFIGMAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    JOB,
    NETWORK_POLICY,
    ROLE,
    SERVICE,
    STATEFUL_SET,
    find_in_claim_template,
)
from paceline.k8s.validate.schemas_crds import (
    CLUSTER_RUNTIME,
    HYPERPODJOB,
    OLD_RAYCLUSTER,
    OLD_RAYJOB,
    PYTORCHJOB,
    RAYCLUSTER,
    RAYJOB,
    RUNTIME,
    TRAINJOB,
)

Spec = Mapping[str, object]
PodFinder = Callable[[Spec, Path], Iterator[tuple[Spec, Path]]]


@dataclass(frozen=True, slots=True)
class KindRules:
    schema: ObjectOf
    rules: Callable[[Spec, Path], Iterator[Finding]]
    pods: PodFinder | None = None  # whole ones
    patches: PodFinder | None = None  # what it changes about pods of others
    inside: tuple[str, ...] = ("spec",)  # where the rules look


_TRAINER, _RBAC = "trainer.kubeflow.org/v1alpha1", "rbac.authorization.k8s.io/v1"
KIND_RULES = {
    ("ray.io/v1", "RayCluster"): KindRules(RAYCLUSTER, ray.find_in_cluster, ray.pods_of_cluster),
    ("ray.io/v1", "RayJob"): KindRules(RAYJOB, ray.find_in_job, ray.pods_of_job),
    ("ray.io/v1alpha1", "RayCluster"): KindRules(OLD_RAYCLUSTER, ray.find_in_cluster, ray.pods_of_cluster),
    ("ray.io/v1alpha1", "RayJob"): KindRules(OLD_RAYJOB, ray.find_in_job, ray.pods_of_job),
    ("kubeflow.org/v1", "PyTorchJob"): KindRules(
        PYTORCHJOB, pytorch.find_in_pytorchjob, pytorch.pods_of_pytorchjob
    ),
    (_TRAINER, "TrainJob"): KindRules(TRAINJOB, trainer.find_in_trainjob, None, trainer.patched_pods),
    (_TRAINER, "TrainingRuntime"): KindRules(RUNTIME, trainer.find_in_runtime, trainer.pods_of_runtime),
    (_TRAINER, "ClusterTrainingRuntime"): KindRules(
        CLUSTER_RUNTIME, trainer.find_in_runtime, trainer.pods_of_runtime
    ),
    ("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob"): KindRules(
        HYPERPODJOB, hyperpod.find_in_hyperpod, hyperpod.pods_of_hyperpod
    ),
    ("batch/v1", "Job"): KindRules(JOB, job.find_in_job, job.pods_of_template),
    ("v1", "Service"): KindRules(SERVICE, ray.find_in_service),
    ("v1", "ConfigMap"): KindRules(CONFIGMAP, beside.find_in_configmap, inside=()),
    ("v1", "PersistentVolumeClaim"): KindRules(CLAIM, beside.find_in_claim),
    ("v1", "ServiceAccount"): KindRules(ACCOUNT, beside.find_nothing, inside=()),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): KindRules(CLAIM_TEMPLATE, find_in_claim_template),
    (_RBAC, "Role"): KindRules(ROLE, beside.find_in_role, inside=()),
    (_RBAC, "RoleBinding"): KindRules(BINDING, beside.find_in_binding, inside=()),
    ("networking.k8s.io/v1", "NetworkPolicy"): KindRules(NETWORK_POLICY, beside.find_in_policy),
    ("apps/v1", "StatefulSet"): KindRules(STATEFUL_SET, stateful.find_in_set, job.pods_of_template),
    ("apps/v1", "Deployment"): KindRules(DEPLOYMENT, stateful.find_in_deployment, job.pods_of_template),
    ("policy/v1", "PodDisruptionBudget"): KindRules(DISRUPTION_BUDGET, stateful.find_in_budget),
}
