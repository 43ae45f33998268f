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
from paceline.k8s.validate.schema import Finding, Path

Spec = Mapping[str, object]
PodFinder = Callable[[Spec, Path], Iterator[tuple[Spec, Path]]]


@dataclass(frozen=True, slots=True)
class KindRules:
    schema_file: str  # of schemas/, without .json
    rules: Callable[[Spec, Path], Iterator[Finding]]
    pods: PodFinder | None = None  # whole ones
    patches: PodFinder | None = None  # what it changes about pods of others
    inside: tuple[str, ...] = ("spec",)  # where the rules look


_TRAINER, _RBAC = "trainer.kubeflow.org/v1alpha1", "rbac.authorization.k8s.io/v1"
KIND_RULES = {
    ("ray.io/v1", "RayCluster"): KindRules("raycluster", ray.find_in_cluster, ray.pods_of_cluster),
    ("ray.io/v1", "RayJob"): KindRules("rayjob", ray.find_in_job, ray.pods_of_job),
    ("ray.io/v1alpha1", "RayCluster"): KindRules("raycluster", ray.find_in_cluster, ray.pods_of_cluster),
    ("ray.io/v1alpha1", "RayJob"): KindRules("rayjob", ray.find_in_job, ray.pods_of_job),
    ("kubeflow.org/v1", "PyTorchJob"): KindRules(
        "pytorchjob", pytorch.find_in_pytorchjob, pytorch.pods_of_pytorchjob
    ),
    (_TRAINER, "TrainJob"): KindRules("trainjob", trainer.find_in_trainjob, None, trainer.patched_pods),
    (_TRAINER, "TrainingRuntime"): KindRules(
        "trainingruntime", trainer.find_in_runtime, trainer.pods_of_runtime
    ),
    (_TRAINER, "ClusterTrainingRuntime"): KindRules(
        "trainingruntime", trainer.find_in_runtime, trainer.pods_of_runtime
    ),
    ("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob"): KindRules(
        "hyperpodpytorchjob", hyperpod.find_in_hyperpod, hyperpod.pods_of_hyperpod
    ),
    ("batch/v1", "Job"): KindRules("job", job.find_in_job, job.pods_of_template),
    ("v1", "Service"): KindRules("service", ray.find_in_service),
    ("v1", "ConfigMap"): KindRules("configmap", beside.find_in_configmap, inside=()),
    ("v1", "PersistentVolumeClaim"): KindRules("persistentvolumeclaim", beside.find_in_claim),
    ("v1", "ServiceAccount"): KindRules("serviceaccount", beside.find_nothing, inside=()),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): KindRules(
        "resourceclaimtemplate", job.find_in_claim_template
    ),
    (_RBAC, "Role"): KindRules("role", beside.find_in_role, inside=()),
    (_RBAC, "RoleBinding"): KindRules("rolebinding", beside.find_in_binding, inside=()),
    ("networking.k8s.io/v1", "NetworkPolicy"): KindRules("networkpolicy", beside.find_in_policy),
    ("apps/v1", "StatefulSet"): KindRules("statefulset", stateful.find_in_set, job.pods_of_template),
    ("apps/v1", "Deployment"): KindRules("deployment", stateful.find_in_deployment, job.pods_of_template),
    ("policy/v1", "PodDisruptionBudget"): KindRules("poddisruptionbudget", stateful.find_in_budget),
}
