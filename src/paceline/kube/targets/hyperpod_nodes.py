"""What does a pod on nodes of HyperPod want, whichever operator it belongs to? Healthy ones, and new ones."""

from paceline.kube.intent import Intent
from paceline.kube.parts import Object
from paceline.kube.torch_parts import placement, torch_of
from paceline.kube.well_known import HYPERPOD_HEALTH, INSTANCE_TYPE
from paceline.plan.codec import Json

_RESUME, _RETRIES = (
    "sagemaker.amazonaws.com/enable-job-auto-resume",
    "sagemaker.amazonaws.com/job-max-retry-count",
)


def is_hyperpod(intent: Intent) -> bool:
    """Its machines are called ml.*, and no others are."""
    return dict(torch_of(intent).node_labels).get(INSTANCE_TYPE, "").startswith("ml.")


def healthy(intent: Intent) -> Object:
    """Only nodes that HyperPod has found to be healthy, beside what is wanted anyway."""
    good: Object = {"key": HYPERPOD_HEALTH, "operator": "In", "values": ["Schedulable"]}
    terms: list[Json] = [{"matchExpressions": [good]}]
    wanted: Object = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    others = placement(intent).get("affinity")
    return {"nodeAffinity": wanted, **(others if isinstance(others, dict) else {})}


def auto_resume(intent: Intent) -> Object:
    """HyperPod replaces a bad machine, and then starts a PyTorchJob that says so again."""
    if not intent.limits.retries:
        return {}
    return {"annotations": {_RESUME: "true", _RETRIES: str(intent.limits.retries)}}
