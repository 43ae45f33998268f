"""Does a job get GPUs where only a claim gets them?"""

from typing import Any

import pytest
from tests.kube.torch_rendered import BIG, GPUS, rendered

from paceline.errors import ConfigError
from paceline.kube.intent import Profile
from paceline.kube.render import Target
from paceline.kube.validate import findings

Object = dict[str, Any]
CLAIMS: Object = {**GPUS, "gpu_claims": True}


def test_each_pod_claims_its_gpus_and_asks_no_device_plugin() -> None:
    made: Any = rendered(Target.PYTORCHJOB, {}, CLAIMS, BIG).objects
    template, job = made
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 8
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        pod = role["template"]["spec"]
        (claim,) = pod["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
        (container,) = pod["containers"]
        assert container["resources"]["claims"] == [{"name": claim["name"]}]
        assert "nvidia.com/gpu" not in str(container["resources"])


@pytest.mark.parametrize(
    ("target", "torch", "what"),
    [
        (Target.TRAINJOB, CLAIMS, "a TrainJob cannot carry a claim"),
        (Target.JOB, {"gpu_claims": True}, "no GPU is asked for"),
    ],
)
def test_what_cannot_be_claimed_is_refused(target: Target, torch: Object, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        rendered(target, {}, torch, BIG)


@pytest.mark.parametrize(
    "request_",
    [
        {"name": "gpus"},
        {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 0}},
        {"name": "gpus", "exactly": {"count": 1}},
        {"name": "gpus", "exactly": {"deviceClassName": "x", "allocationMode": "All", "count": 1}},
        {"name": "gpus", "exactli": {"deviceClassName": "x"}},
    ],
)
def test_a_broken_claim_is_found(request_: Object) -> None:
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "a"}}
    one = {**head, "spec": {"spec": {"devices": {"requests": [request_]}}}}
    assert findings(one, Profile.STRICT)
