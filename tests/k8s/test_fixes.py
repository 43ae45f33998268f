"""Findings become the right fixes of the right tier, and no harmful fix is offered."""

import json
from datetime import date
from importlib.resources import files
from typing import Any

import pytest
from tests.fixtures.wording import Wording
from tests.k8s import clusters
from tests.k8s.test_cluster_checks import FITS

from paceline.cli import cluster_fix
from paceline.k8s.charts import CHARTS, EFA_PLUGIN
from paceline.k8s.check.checks import run_checks
from paceline.k8s.check.findings import Need, read_need
from paceline.k8s.check.nodes import efa_of, load_instance_types
from paceline.k8s.check.snapshot import read_snapshot
from paceline.k8s.fix import plan as manifests
from paceline.k8s.fix.actions import Create, Fix, Install, Tier, without_secrets
from paceline.k8s.fix.plan import NAMES, ClaimRequest, FixRequest, finished_helpers, plan_fixes
from paceline.k8s.spec.job import Profile, Target
from paceline.k8s.validate.offline import find_problems

Object = dict[str, Any]
TOKEN = "hf_" + "s3cret" * 6


def fixes(cluster: Object, need: Need | None = None, **options: Any) -> list[Fix]:
    seen = read_snapshot(cluster, "test")
    return plan_fixes(seen, run_checks(seen, need or Need()).findings, FixRequest(**options))


def tiers(results: list[Fix]) -> list[tuple[str, str]]:
    return [(result.tier.value, result.name) for result in results]


@pytest.mark.parametrize("name", clusters.CLUSTERS)
def test_nothing_is_fixed_where_nothing_is_wrong(name: str) -> None:
    assert fixes(clusters.CLUSTERS[name]()) == []


@pytest.mark.parametrize(("name", "need", "target"), FITS)
def test_nothing_is_fixed_where_what_is_required_is_there(
    name: str, need: str, target: Target | None
) -> None:
    assert [
        fix for fix in fixes(clusters.CLUSTERS[name](), read_need(need, target)) if fix.tier is not Tier.NEVER
    ] == []


def test_a_namespace_comes_before_what_is_in_it() -> None:
    cluster = clusters.minikube()
    cluster["objects"]["namespaces"] = []
    result = fixes(cluster, claims=(ClaimRequest(name="data", size="1Gi"),), hf_token=TOKEN, account="runner")
    assert tiers(result) == [("safe", n) for n in ("namespace", "claim", "secret", *["rights"] * 3)]


@pytest.mark.parametrize(
    ("requested", "modes"),
    [
        ("data=1Gi", ["ReadWriteOnce"]),
        ("data=1Gi:rwx", ["ReadWriteMany"]),
        ("data=1Gi:rox", ["ReadOnlyMany", "ReadWriteMany"]),  # a writer must be able to fill it
    ],
)
def test_a_claim_is_for_one_node_for_all_or_for_all_to_read(requested: str, modes: list[str]) -> None:
    (claim,) = fixes(clusters.minikube(), claims=(cluster_fix._claim(requested),))
    assert isinstance(claim.action, Create)
    assert claim.action.manifest["spec"]["accessModes"] == modes  # type: ignore[index,call-overload]  # JSON


def test_a_claim_that_is_there_is_left_alone() -> None:
    cluster = clusters.minikube()
    cluster["objects"]["persistentvolumeclaims"] = [
        {"metadata": {"name": "data", "namespace": "train"}, "status": {"phase": "Bound"}}
    ]
    assert fixes(cluster, claims=(ClaimRequest(name="data", size="1Gi"),)) == []


@pytest.mark.parametrize(
    ("target", "name"),
    [(Target.RAYJOB, "kuberay"), (Target.RAYCLUSTER, "kuberay"), (Target.TRAINJOB, "trainer")],
)
def test_an_operator_that_is_needed_is_planned_by_a_pinned_chart(target: Target, name: str) -> None:
    (fix,) = fixes(clusters.auto_mode(), Need(target=target))
    assert (fix.tier, fix.name) == (Tier.PLANNED, name)
    assert isinstance(fix.action, Install)
    words = fix.command.split()
    assert words[:3] == ["helm", "upgrade", "--install"]
    assert {"--atomic", "--wait", "--version"} <= set(words)


def test_a_chart_has_its_version_and_its_dry_run_is_not_atomic() -> None:
    for chart in CHARTS:
        assert chart.version in chart.upgrade()
        assert chart.upgrade(dry_run=True)[-1] == "--dry-run=server"
        assert "--atomic" not in chart.upgrade(dry_run=True)


def test_the_old_operator_is_for_a_person() -> None:
    (fix,) = fixes(clusters.auto_mode(), Need(target=Target.PYTORCHJOB))
    assert (fix.tier, fix.name) == (Tier.NEVER, "by-hand")
    assert fix.command.startswith("kubectl apply --server-side -k")


def blind(os: str = clusters.AL2023) -> Object:
    """GPUs are in the machine, and no device plugin allocates them."""
    return clusters.cluster(nodes=[clusters.node("gpu-0", "p5.48xlarge", os=os)])


def test_a_device_plugin_is_planned_where_none_allocates_gpus() -> None:
    assert ("planned", "gpu-plugin") in tiers(fixes(blind(), Need(gpus=8)))


def _with_operator(cluster: Object) -> Object:
    cluster["objects"]["deployments.apps"].append(
        clusters.deployment("gpu-operator", "gpu-operator", app="gpu-operator")
    )
    return cluster


def _with_dra(cluster: Object) -> Object:
    cluster["objects"]["resourceslices.resource.k8s.io"] = [clusters.gpu_slice("elsewhere", 8)]
    return cluster


def _with_a_plugin(cluster: Object) -> Object:
    cluster["objects"]["daemonsets.apps"].append(
        clusters.daemon_set("kube-system", "nvidia-device-plugin-daemonset", 1)
    )
    return cluster


def _unseen(cluster: Object) -> Object:
    del cluster["objects"]["daemonsets.apps"]
    return cluster


@pytest.mark.parametrize(
    "cluster",
    [
        _with_operator(blind()),
        _with_dra(blind()),
        _with_a_plugin(blind()),
        _unseen(blind()),
        blind(clusters.BOTTLEROCKET),
        blind("Ubuntu 24.04.3 LTS"),
    ],
    ids=["operator", "dra", "plugin", "unseen", "bottlerocket", "ubuntu"],
)
def test_a_second_device_plugin_is_never_installed(cluster: Object, wording: Wording) -> None:
    result = fixes(cluster, Need(gpus=8))
    assert not [fix for fix in result if fix.tier is Tier.PLANNED]
    never = [fix.what for fix in result if fix.tier is Tier.NEVER]
    assert never
    wording("\n".join(never))


def test_a_runtime_is_generated_with_an_image_and_comes_from_the_chart_without() -> None:
    cluster = clusters.gpu_operator()
    cluster["objects"][clusters.CLUSTER_RUNTIMES] = []
    assert tiers(fixes(cluster)) == [("planned", "trainer")]
    assert tiers(fixes(cluster, image="example.com/x:1")) == [("safe", "runtime")]


def test_everything_that_is_created_is_valid_and_labelled() -> None:
    made = [
        manifests.claim_manifest(
            ClaimRequest(name="data", size="1Gi", is_shared=True, storage_class="fsx"), "train"
        ),
        *manifests.identity_manifests("runner", "train", Target.TRAINJOB),
        manifests.runtime_manifest("example.com/x:1", "train"),
    ]
    for manifest in made:
        assert find_problems(manifest, Profile.STRICT) == [], manifest["kind"]
        about = manifest["metadata"]
        assert isinstance(about, dict)
        assert about["labels"]["app.kubernetes.io/managed-by"] == "paceline"  # type: ignore[index,call-overload]  # JSON


def test_a_role_gives_no_more_than_a_job_needs() -> None:
    _account, role, _binding = manifests.identity_manifests("runner", "train", Target.JOB)
    text = str(role["rules"])
    assert "*" not in text
    assert "secrets" not in text


def test_helpers_that_work_are_left_alone() -> None:
    def pod(name: str, phase: str) -> Object:
        return {"metadata": {"name": name, "namespace": "train"}, "status": {"phase": phase}}

    result = finished_helpers(
        [pod("a", "Running"), pod("b", "Succeeded"), pod("c", "Pending"), pod("d", "Failed")]
    )
    assert [fix.what.split()[2].strip(",") for fix in result] == ["b", "d"]


def test_no_secret_is_shown() -> None:
    (fix,) = fixes(clusters.minikube(), hf_token=TOKEN)
    assert isinstance(fix.action, Create)
    assert TOKEN in str(fix.action.manifest)
    assert TOKEN not in str(without_secrets(fix.action.manifest)) + str(fix.to_json()) + "".join(fix.lines())


def test_only_takes_what_it_names_and_accepts_every_name() -> None:
    cluster = clusters.auto_mode()
    cluster["objects"]["namespaces"] = []
    assert tiers(fixes(cluster, Need(target=Target.RAYJOB), only=("kuberay",))) == [("planned", "kuberay")]
    assert tuple(cluster_fix._ONLY) == NAMES  # a list of its own: --help is quick


@pytest.mark.parametrize(
    "data",
    [
        "images/lint/data/bases.json",
        "images/lint/data/matrix.json",
        "images/lint/data/wheels.json",
        "k8s/data/machines.json",
    ],
)
def test_tables_of_other_makers_are_not_older_than_a_year(data: str) -> None:
    document = json.loads((files("paceline") / data).read_text("utf-8"))
    age = date.today() - date.fromisoformat(document["dated"])
    assert age.days <= 365, f"compare {data} with what its makers publish now, and date it"


def test_a_newer_chart_for_efa_requires_another_check_of_the_machines() -> None:
    assert load_instance_types().efa_chart == EFA_PLUGIN.version


def test_machines_with_efa_of_each_generation_are_known() -> None:
    known = {
        "p4d.24xlarge": 4,
        "p5.48xlarge": 32,
        "p5en.48xlarge": 16,
        "p6-b200.48xlarge": 8,
        "trn2.48xlarge": 16,
    }
    assert {name: efa_of(name) for name in known} == known
    assert efa_of("m5.large") is None
