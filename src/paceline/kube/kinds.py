"""Which kinds of object are checked, by which shape, and by whose rules?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from paceline.kube import admission_beside as beside
from paceline.kube import admission_hyperpod as hyperpod
from paceline.kube import admission_job as job
from paceline.kube import admission_pytorch as pytorch
from paceline.kube import admission_ray as ray
from paceline.kube import admission_stateful as stateful
from paceline.kube import admission_trainer as trainer
from paceline.kube.schema import Fields, Finding, Path
from paceline.kube.schema_beside import ACCOUNT, BINDING, CLAIM, CONFIGMAP, NETWORK_POLICY, ROLE
from paceline.kube.schema_deployment import DEPLOYMENT
from paceline.kube.schema_device_claim import CLAIM_TEMPLATE, find_in_claim_template
from paceline.kube.schema_job import JOB
from paceline.kube.schema_pytorch import HYPERPODJOB, PYTORCHJOB
from paceline.kube.schema_ray import OLD_RAYCLUSTER, OLD_RAYJOB, RAYCLUSTER, RAYJOB
from paceline.kube.schema_service import SERVICE
from paceline.kube.schema_stateful import DISRUPTION_BUDGET, STATEFUL_SET
from paceline.kube.schema_trainer import CLUSTER_RUNTIME, RUNTIME, TRAINJOB

Spec = Mapping[str, object]
Pods = Callable[[Spec, Path], Iterator[tuple[Spec, Path]]]


@dataclass(frozen=True, slots=True)
class Kind:
    schema: Fields
    rules: Callable[[Spec, Path], Iterator[Finding]]
    pods: Pods | None = None  # whole ones
    patches: Pods | None = None  # what it changes about pods of others
    inside: tuple[str, ...] = ("spec",)  # where the rules look


_TRAINER, _RBAC = "trainer.kubeflow.org/v1alpha1", "rbac.authorization.k8s.io/v1"
KINDS = {
    ("ray.io/v1", "RayCluster"): Kind(RAYCLUSTER, ray.find_in_cluster, ray.pods_of_cluster),
    ("ray.io/v1", "RayJob"): Kind(RAYJOB, ray.find_in_job, ray.pods_of_job),
    ("ray.io/v1alpha1", "RayCluster"): Kind(OLD_RAYCLUSTER, ray.find_in_cluster, ray.pods_of_cluster),
    ("ray.io/v1alpha1", "RayJob"): Kind(OLD_RAYJOB, ray.find_in_job, ray.pods_of_job),
    ("kubeflow.org/v1", "PyTorchJob"): Kind(
        PYTORCHJOB, pytorch.find_in_pytorchjob, pytorch.pods_of_pytorchjob
    ),
    (_TRAINER, "TrainJob"): Kind(TRAINJOB, trainer.find_in_trainjob, None, trainer.patched_pods),
    (_TRAINER, "TrainingRuntime"): Kind(RUNTIME, trainer.find_in_runtime, trainer.pods_of_runtime),
    (_TRAINER, "ClusterTrainingRuntime"): Kind(
        CLUSTER_RUNTIME, trainer.find_in_runtime, trainer.pods_of_runtime
    ),
    ("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob"): Kind(
        HYPERPODJOB, hyperpod.find_in_hyperpod, hyperpod.pods_of_hyperpod
    ),
    ("batch/v1", "Job"): Kind(JOB, job.find_in_job, job.pods_of_template),
    ("v1", "Service"): Kind(SERVICE, ray.find_in_service),
    ("v1", "ConfigMap"): Kind(CONFIGMAP, beside.find_in_configmap, inside=()),
    ("v1", "PersistentVolumeClaim"): Kind(CLAIM, beside.find_in_claim),
    ("v1", "ServiceAccount"): Kind(ACCOUNT, beside.find_nothing, inside=()),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): Kind(CLAIM_TEMPLATE, find_in_claim_template),
    (_RBAC, "Role"): Kind(ROLE, beside.find_in_role, inside=()),
    (_RBAC, "RoleBinding"): Kind(BINDING, beside.find_in_binding, inside=()),
    ("networking.k8s.io/v1", "NetworkPolicy"): Kind(NETWORK_POLICY, beside.find_in_policy),
    ("apps/v1", "StatefulSet"): Kind(STATEFUL_SET, stateful.find_in_set, job.pods_of_template),
    ("apps/v1", "Deployment"): Kind(DEPLOYMENT, stateful.find_in_deployment, job.pods_of_template),
    ("policy/v1", "PodDisruptionBudget"): Kind(DISRUPTION_BUDGET, stateful.find_in_budget),
}
