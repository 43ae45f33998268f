"""The objects of a coordinator: what `coordinator start` needs, strict, and valid by our own rules."""

import copy
import random
import shlex
from typing import Any

import click
import pytest
from tests.k8s.mutations import Mutation, at, misspell, mistype, paths_in

from paceline.cli.main import cli
from paceline.coordinator.admin.launch import start_command
from paceline.coordinator.client.nodes_file import NodesFile, is_address
from paceline.core.errors import ConfigError
from paceline.k8s.deploy.apply import coordinator_files
from paceline.k8s.deploy.coordinator import (
    DATA,
    PKI,
    PORT,
    Coordinator,
    arguments,
    kustomization,
    render,
    secret_commands,
    secret_keys,
)
from paceline.k8s.deploy.service import merge_patch
from paceline.k8s.spec.job import Profile
from paceline.k8s.validate.offline import find_problems, validate

ASKED = Coordinator(namespace="train", image="example.com/paceline:1", tls_secret="keys")
Object = dict[str, Any]


def stateful(coordinator: Coordinator = ASKED) -> Object:
    return copy.deepcopy(render(coordinator)["statefulset.yaml"])


def container(coordinator: Coordinator = ASKED) -> Object:
    containers: Object = stateful(coordinator)["spec"]["template"]["spec"]["containers"][0]
    return containers


@pytest.mark.parametrize("replicas", [1, 3, 5, 9])
@pytest.mark.parametrize("spread", ["required", "preferred"])
def test_everything_is_valid_and_restricted(replicas: int, spread: Any) -> None:
    coordinator = Coordinator(
        namespace="train",
        image="example.com/paceline:1",
        tls_secret="keys",
        replicas=replicas,
        spread=spread,
        storage_class="gp3",
        pull_secret="registry",
    )
    for name, text in coordinator_files(coordinator).items():
        assert validate(text, name).problems == (), name
    assert [entry["kind"] for entry in render(coordinator).values()] == [
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "StatefulSet",
    ]
    assert kustomization(coordinator)["resources"] == list(render(coordinator))


def test_a_pod_starts_as_a_node_of_the_compose_file_does() -> None:
    nodes = {node: ASKED.address(node) for node in ASKED.nodes}
    file = NodesFile(cluster=ASKED.name, nodes=nodes)
    requested = start_command(7, file, f"{DATA}/node", ["--tls-dir", PKI], listen=f"0.0.0.0:{PORT}")
    assert [word.replace("$(NODE)", "7") for word in arguments(ASKED)] == requested
    assert all(is_address(address) for address in nodes.values())


def test_names_of_pods_are_addresses_of_nodes_and_names_in_certificates() -> None:
    manifest = stateful()
    service = render(ASKED)["service.yaml"]
    first = manifest["spec"]["ordinals"]["start"]
    pods = [
        f"{manifest['metadata']['name']}-{first + number}" for number in range(manifest["spec"]["replicas"])
    ]
    hosts = [f"{pod}.{manifest['spec']['serviceName']}.train.svc" for pod in pods]
    assert hosts == [ASKED.host(node) for node in ASKED.nodes]
    assert manifest["spec"]["serviceName"] == service["metadata"]["name"]  # type: ignore[index,call-overload]  # JSON
    for node, host in enumerate(hosts, 1):
        assert f"--node {node}={host}" in secret_commands(ASKED)[0]


def test_each_container_sees_its_own_key_alone() -> None:
    volumes = {volume["name"]: volume for volume in stateful()["spec"]["template"]["spec"]["volumes"]}
    items = volumes["pki"]["secret"]["items"]
    (mount,) = [item for item in container()["volumeMounts"] if item["name"] == "pki"]
    assert mount["readOnly"]
    for node in ASKED.nodes:
        folder = mount["subPathExpr"].replace("$(NODE)", str(node))
        seen = sorted(item["path"].split("/")[1] for item in items if item["path"].startswith(f"{folder}/"))
        assert seen == ["ca.crt", f"node-{node}.crt", f"node-{node}.key"]
    assert {item["key"] for item in items} == set(secret_keys(ASKED))
    assert "ca.key" not in " ".join(secret_commands(ASKED))
    assert volumes["pki"]["secret"]["defaultMode"] & 0o037 == 0, (
        "the coordinator refuses a key others can read"
    )


def test_a_majority_stays_and_nothing_is_thrown_away() -> None:
    budget = render(ASKED)["poddisruptionbudget.yaml"]["spec"]
    assert isinstance(budget, dict)
    assert budget["maxUnavailable"] == 1
    spec = stateful()["spec"]
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["template"]["spec"]["automountServiceAccountToken"] is False


def test_probes_call_the_node_itself() -> None:
    (_shell, _flag, words) = container()["readinessProbe"]["exec"]["command"]
    assert "$(" not in words, "Kubernetes fills in labels in commands, but not in probes"
    assert f"--at {ASKED.address('${NODE}')} --tls-dir {PKI} --tls-name node-${{NODE}}" in words


def test_our_own_command_line_takes_every_command_that_is_rendered() -> None:
    probe = container()["readinessProbe"]["exec"]["command"][2].removeprefix("exec ")
    words = [word.replace("$(NODE)", "1") for word in ["paceline", *arguments(ASKED)]]
    messages = [shlex.join(words), probe.replace("${NODE}", "1"), secret_commands(ASKED)[0]]
    for line in messages:
        program, *rest = shlex.split(line)
        assert program == "paceline"
        place: Any = cli
        while isinstance(place, click.Group):
            place = place.get_command(click.Context(place), rest.pop(0))
        place.make_context(line, rest)  # raises for a flag that is not there


def broken(change: str) -> Object:
    manifest = stateful()
    spec, pod = manifest["spec"], manifest["spec"]["template"]["spec"]
    match change:
        case "misspelt":
            spec["serviceNames"] = spec.pop("serviceName")
        case "ordinals":
            spec["ordinals"] = {"begin": 1}
        case "policy":
            spec["podManagementPolicy"] = "AllAtOnce"
        case "labels":
            spec["template"]["metadata"]["labels"] = {"app": "other"}
        case "selector":
            spec["selector"] = {}
        case "restart":
            pod["restartPolicy"] = "Never"
        case "mount":
            spec["volumeClaimTemplates"] = []
        case "claims":
            spec["volumeClaimTemplates"] *= 2
        case "claim":
            del spec["volumeClaimTemplates"][0]["spec"]["accessModes"]
        case "root":
            pod["securityContext"]["runAsNonRoot"] = False
        case "memory":
            del pod["containers"][0]["resources"]["limits"]
        case "secret":
            pod["containers"][0]["args"] += ["--token", "s3cret"]
    return manifest


@pytest.mark.parametrize(
    "change",
    [
        "misspelt",
        "ordinals",
        "policy",
        "labels",
        "selector",
        "restart",
        "mount",
        "claims",
        "claim",
        "root",
        "memory",
        "secret",
    ],
)
def test_a_broken_set_is_found(change: str) -> None:
    assert find_problems(stateful(), Profile.STRICT) == []
    assert find_problems(broken(change), Profile.STRICT), change


@pytest.mark.parametrize(
    "spec",
    [
        {"maxUnavailable": 1, "minAvailable": 1, "selector": {}},
        {"selector": {"matchLabels": {"a": "b"}}},
        {"maxUnavailable": 1},
        {"maxUnavailable": -1, "selector": {}},
        {"maxUnavailable": "three", "selector": {}},
        {"maxUnavailables": 1, "selector": {}},
    ],
)
def test_a_broken_budget_is_found(spec: Object) -> None:
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"}}
    assert find_problems({**head, "spec": spec}, Profile.STRICT)


@pytest.mark.parametrize("share", [0, 1, "0%", "25%"])
def test_a_sound_budget_is_sound(share: int | str) -> None:
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"}}
    assert find_problems({**head, "spec": {"minAvailable": share, "selector": {}}}, Profile.STRICT) == []


@pytest.mark.parametrize("mutation", [misspell, mistype])
def test_a_typo_anywhere_is_found(mutation: Mutation) -> None:
    """But in probes, which are not looked into, and where a port may be called by any name."""
    rng, missed = random.Random(11), list[str]()
    for name, whole in render(ASKED).items():
        for path in [
            path for path in paths_in(whole) if path and not any("Probe" in str(step) for step in path)
        ]:
            copied = copy.deepcopy(whole)
            is_named_port = mutation is mistype and path[-1] == "port"
            if (
                not is_named_port
                and mutation(copied, path, rng)
                and not find_problems(copied, Profile.STRICT)
            ):
                missed.append(f"{name} {path}: is {at(copied, path[:-1])}")
    assert missed == []


@pytest.mark.parametrize("odd", [None, "", [], {}, 0, [None], {"": None}])
def test_whatever_stands_anywhere_is_never_a_crash(odd: Any) -> None:
    for whole in render(ASKED).values():
        for path in [path for path in paths_in(whole) if path]:
            copied: Any = copy.deepcopy(whole)
            at(copied, path[:-1])[path[-1]] = odd
            find_problems(copied, Profile.STRICT)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"replicas": 4}, "--replicas"),
        ({"name": "Large"}, "--name"),
        ({"name": "1st"}, "--name"),
        ({"name": "x" * 41}, "--name"),
        ({"namespace": "a.b"}, "--namespace"),
        ({"image": "Not An Image"}, "--image"),
        ({"storage": "much"}, "--storage"),
        ({"memory": ""}, "--memory"),
        ({"tls_secret": "keys; rm -r x"}, "--tls-secret"),
        ({"pull_secret": "A"}, "--pull-secret"),
        ({"storage_class": "gp3 fast"}, "--storage-class"),
    ],
)
def test_what_cannot_work_is_refused(change: Object, where: str) -> None:
    given: Object = {"namespace": "train", "image": "example.com/paceline:1", "tls_secret": "keys"}
    with pytest.raises(ConfigError) as caught:
        coordinator_files(Coordinator(**{**given, **change}))
    assert [problem.where for problem in caught.value.problems] == [where]


def test_what_a_server_adds_changes_nothing() -> None:
    manifest = stateful()
    there = copy.deepcopy(manifest)
    there["metadata"]["uid"] = "1"
    there["status"] = {"replicas": 3}
    there["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"] = "TCP"
    # As a server writes them: amounts in their shortest form, and nothing that is empty.
    there["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1024Mi"
    assert merge_patch(manifest, there) == {}
    assert merge_patch({"spec": {"egress": [], "podSelector": {}}}, {"spec": {}}) == {}
    assert merge_patch({"spec": {"egress": []}}, {"spec": {"egress": [{}]}}) == {"spec": {"egress": []}}
    there["spec"]["template"]["spec"]["containers"][0]["image"] = "example.com/paceline:2"
    assert list(merge_patch(manifest, there)) == ["spec"]
    assert list(merge_patch(manifest, there)["spec"]) == ["template"]  # type: ignore[arg-type]  # JSON
    assert merge_patch({"a": [1]}, {"a": [1, 2]}) == {"a": [1]}
    assert merge_patch({"a": {"b": 1}, "c": [1]}, {"a": {"b": 1, "d": 2}, "c": [1]}) == {}
    assert merge_patch({"a": {"b": 1}}, {}) == {"a": {"b": 1}}
