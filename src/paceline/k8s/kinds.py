"""Kinds of Kubernetes objects, and the paths under which a server keeps them."""

from dataclasses import dataclass
from urllib.parse import quote

from paceline.core.errors import ManifestError, Problem


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    plural: str
    version: str = "v1"
    group: str = ""  # the core has none
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """Resource name as in `kubectl` and RBAC, such as `jobs.batch`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """API path. Without a namespace: the objects of all namespaces. Raises ConfigError for an invalid
        name: an empty one would mean all objects of the kind, and dots those above it."""
        parts = ["apis", self.group] if self.group else ["api"]
        parts.append(self.version)
        if self.is_namespaced and namespace is not None:
            parts += ["namespaces", _named(namespace, "Namespace")]
        parts += [self.plural] if name is None else [self.plural, _named(name, self.name)]
        return "/" + "/".join(parts)


def _named(name: str, kind: str) -> str:
    if name in ("", ".", ".."):
        hint = "list the names: paceline job list"
        raise ManifestError([Problem(f"{name!r} is not a valid name of a {kind}", hint)])
    return quote(name, safe="")


POD = Kind("Pod", "pods")
EVENT = Kind("Event", "events")
NODE = Kind("Node", "nodes", is_namespaced=False)
NAMESPACE = Kind("Namespace", "namespaces", is_namespaced=False)
CONFIG_MAP = Kind("ConfigMap", "configmaps")
SECRET = Kind("Secret", "secrets")
SERVICE = Kind("Service", "services")
SERVICE_ACCOUNT = Kind("ServiceAccount", "serviceaccounts")
CLAIM = Kind("PersistentVolumeClaim", "persistentvolumeclaims")
QUOTA = Kind("ResourceQuota", "resourcequotas")
DEPLOYMENT = Kind("Deployment", "deployments", group="apps")
DAEMON_SET = Kind("DaemonSet", "daemonsets", group="apps")
STATEFUL_SET = Kind("StatefulSet", "statefulsets", group="apps")
PRIORITY_CLASS = Kind("PriorityClass", "priorityclasses", group="scheduling.k8s.io", is_namespaced=False)
JOB = Kind("Job", "jobs", group="batch")
ROLE = Kind("Role", "roles", group="rbac.authorization.k8s.io")
ROLE_BINDING = Kind("RoleBinding", "rolebindings", group="rbac.authorization.k8s.io")
NETWORK_POLICY = Kind("NetworkPolicy", "networkpolicies", group="networking.k8s.io")
DISRUPTION_BUDGET = Kind("PodDisruptionBudget", "poddisruptionbudgets", group="policy")
STORAGE_CLASS = Kind("StorageClass", "storageclasses", group="storage.k8s.io", is_namespaced=False)
CSI_DRIVER = Kind("CSIDriver", "csidrivers", group="storage.k8s.io", is_namespaced=False)
RESOURCE_SLICE = Kind("ResourceSlice", "resourceslices", group="resource.k8s.io", is_namespaced=False)
CLAIM_TEMPLATE = Kind("ResourceClaimTemplate", "resourceclaimtemplates", group="resource.k8s.io")
VALIDATING_WEBHOOK = Kind(
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
    is_namespaced=False,
)
ACCESS_REVIEW = Kind(
    "SelfSubjectAccessReview", "selfsubjectaccessreviews", group="authorization.k8s.io", is_namespaced=False
)
RULES_REVIEW = Kind(
    "SelfSubjectRulesReview", "selfsubjectrulesreviews", group="authorization.k8s.io", is_namespaced=False
)
USER_REVIEW = Kind(
    "SelfSubjectReview", "selfsubjectreviews", group="authentication.k8s.io", is_namespaced=False
)
PYTORCH_JOB = Kind("PyTorchJob", "pytorchjobs", group="kubeflow.org")
TRAIN_JOB = Kind("TrainJob", "trainjobs", "v1alpha1", "trainer.kubeflow.org")
TRAINING_RUNTIME = Kind("TrainingRuntime", "trainingruntimes", "v1alpha1", "trainer.kubeflow.org")
CLUSTER_RUNTIME = Kind(
    "ClusterTrainingRuntime",
    "clustertrainingruntimes",
    "v1alpha1",
    "trainer.kubeflow.org",
    is_namespaced=False,
)
JOB_SET = Kind("JobSet", "jobsets", "v1alpha2", "jobset.x-k8s.io")
RAY_JOB = Kind("RayJob", "rayjobs", group="ray.io")
RAY_CLUSTER = Kind("RayCluster", "rayclusters", group="ray.io")
HYPERPOD_JOB = Kind("HyperPodPyTorchJob", "hyperpodpytorchjobs", group="sagemaker.amazonaws.com")
LOCAL_QUEUE = Kind("LocalQueue", "localqueues", "v1beta1", "kueue.x-k8s.io")
WORKLOAD = Kind("Workload", "workloads", "v1beta1", "kueue.x-k8s.io")
POD_MONITOR = Kind("PodMonitor", "podmonitors", group="monitoring.coreos.com")
CLUSTER_POLICY = Kind("ClusterPolicy", "clusterpolicies", group="nvidia.com", is_namespaced=False)

# One of them represents a whole job; operators derive later kinds from earlier ones, under the same name.
JOB_KINDS = (PYTORCH_JOB, TRAIN_JOB, RAY_JOB, RAY_CLUSTER, HYPERPOD_JOB, JOB_SET, JOB)
KINDS = tuple(
    value for value in list(globals().values()) if isinstance(value, Kind) and "/" not in value.plural
)


def kind_of(manifest: dict[str, object]) -> Kind:
    """Raises KeyError for an unknown kind."""
    for kind in KINDS:
        if (kind.name, kind.api_version) == (manifest.get("kind"), manifest.get("apiVersion")):
            return kind
    raise KeyError(f"{manifest.get('apiVersion')} {manifest.get('kind')}")
