"""Jobs get GPUs by resource claims (DRA) on clusters without a device plugin."""

from typing import Any

import pytest
from tests.fixtures.wording import Wording
from tests.k8s.torch_rendered import BIG, GPUS, rendered

from paceline.core.errors import ConfigError
from paceline.k8s.spec.job import Profile, Target
from paceline.k8s.submit.capacity import CLAIMED_GPUS, check_capacity, quota_rows, with_claims, with_devices
from paceline.k8s.submit.requirements import roles
from paceline.k8s.validate.offline import find_problems

Object = dict[str, Any]
CLAIMS: Object = {**GPUS, "gpu_claims": True}


def test_each_pod_claims_its_gpus_and_requests_none_of_a_device_plugin() -> None:
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
    ("target", "torch"),
    [
        (Target.TRAINJOB, CLAIMS),
        (Target.JOB, {"gpu_claims": True}),
    ],
)
def test_what_cannot_be_claimed_is_refused(target: Target, torch: Object, wording: Wording) -> None:
    with wording.raises(ConfigError):
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
    values = {**head, "spec": {"spec": {"devices": {"requests": [request_]}}}}
    assert find_problems(values, Profile.STRICT)


def slices(node: str, gpus: int, generation: int = 1) -> Object:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    whole = [{"name": f"gpu-{n}", "attributes": {"type": {"string": "gpu"}}} for n in range(gpus)]
    parts = [{"name": "mig-0", "attributes": {"type": {"string": "mig"}}}]
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": [*whole, *parts]}
    return {"metadata": {"name": f"{node}-{generation}"}, "spec": spec}


@pytest.mark.parametrize(("offered", "is_enough"), [((8, 8), True), ((8, 4), False), ((0, 0), False)])
def test_claimed_gpus_are_counted_before_anything_exists(offered: tuple[int, int], is_enough: bool) -> None:
    made: Any = rendered(Target.PYTORCHJOB, {}, {**CLAIMS, "nodes": 2}, BIG).objects
    room = {"cpu": "192", "memory": "2Ti"}
    nodes: Any = [{"metadata": {"name": name}, "status": {"allocatable": room}} for name in ("a", "b")]
    gang = with_claims(roles(made), made)
    seen = [slices("a", 1, 0), *(slices(name, n) for name, n in zip(("a", "b"), offered, strict=True))]
    rows = check_capacity(gang, with_devices(nodes, seen))
    assert all(row.is_enough for row in rows) is is_enough
    assert any(row.what == CLAIMED_GPUS and row.is_enough is is_enough for row in rows)
    quota: Any = {
        "metadata": {"name": "team"},
        "status": {"hard": {CLAIMED_GPUS: "8"}, "used": {CLAIMED_GPUS: "0"}},
    }
    (row,) = quota_rows(gang, [quota])
    assert (row.needs, row.has, row.is_enough) == ("16", "8 of 8", False)
