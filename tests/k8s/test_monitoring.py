"""Metrics of jobs: which pod serves them, with which token, and how Prometheus finds it."""

from typing import Any

import pytest
import yaml
from tests.k8s.rendered import settings
from tests.k8s.torch_rendered import HOSTS

from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.k8s.deploy.apply import monitoring_files
from paceline.k8s.deploy.monitoring import Monitoring, render
from paceline.k8s.kinds import POD_MONITOR
from paceline.k8s.render.metrics import ANY, FIRST, INDEX, SERVES
from paceline.k8s.spec.job import JobOptions, Profile, Target, TorchrunOptions
from paceline.k8s.submit.manifests import render_job
from paceline.k8s.validate.offline import validate

Object = dict[str, Any]
PORT = 9464
NO_NAME = "Tr0ub4dor&3"
SETUP = Monitoring(namespace="train", prometheus_image="example.com/p:1", grafana_image="example.com/g:1")


def serving(**text: str) -> TrainConfig:
    config: TrainConfig = settings(name="demo", metrics_port=str(PORT), **text)
    return config


def rendered(
    target: Target, config: TrainConfig | None = None, torch: Object | None = None, **options: Any
) -> list[Any]:
    asked = JobOptions(image="example.com/x:1", torch=TorchrunOptions(**(torch or {})), **options)
    return list(render_job(config or serving(), asked, target).objects)


def templates(value: object) -> list[Object]:
    """Every pod template at any depth."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            return [value]
        return [template for inner in value.values() for template in templates(inner)]
    return [t for inner in value for t in templates(inner)] if isinstance(value, list) else []


def serving_templates(objects: list[Any]) -> list[Object]:
    return [t for t in templates(objects) if SERVES in t["metadata"].get("labels", {})]


KINDS: dict[str, tuple[Target, Object, str, bool]] = {
    # target, options of torchrun, which pod serves, and whether its index says so
    "pytorchjob": (Target.PYTORCHJOB, {"nodes": 2}, FIRST, False),
    "pytorchjob-c10d": (Target.PYTORCHJOB, {"nodes": 2, "rdzv": "c10d"}, ANY, False),
    "job": (Target.JOB, {"nodes": 2}, FIRST, True),
    "job-c10d": (Target.JOB, {"nodes": 2, "rdzv": "c10d"}, ANY, False),
    "trainjob": (Target.TRAINJOB, {"nodes": 2}, FIRST, True),
    "hyperpod": (Target.HYPERPOD, {"nodes": 2}, ANY, False),
    "rayjob": (Target.RAYJOB, {}, FIRST, False),
    "raycluster": (Target.RAYCLUSTER, {}, FIRST, False),
}


@pytest.mark.parametrize("name", KINDS)
def test_one_template_serves_metrics_with_the_token_of_a_secret_and_a_monitor_selects_it(name: str) -> None:
    target, torch, which, has_index = KINDS[name]
    objects = rendered(target, None, torch, pod_monitor=True, metrics_secret="scrape/key")
    (template,) = serving_templates(objects)
    assert template["metadata"]["labels"][SERVES] == which
    annotations = template["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/port"] == str(PORT)
    container = template["spec"]["containers"][0]
    assert {"containerPort": PORT, "name": "metrics"} in container["ports"]
    mount = next(m for m in container["volumeMounts"] if m["name"] == "metrics")
    assert mount == {"name": "metrics", "mountPath": "/metrics", "readOnly": True}
    volume = next(v for v in template["spec"]["volumes"] if v["name"] == "metrics")["secret"]
    assert (volume["secretName"], volume["defaultMode"]) == ("scrape", 0o440)
    assert volume["items"] == [{"key": "key", "path": "token"}]
    (monitor,) = (o for o in objects if o["kind"] == POD_MONITOR.name)
    selected = monitor["spec"]["selector"]["matchLabels"]
    assert selected.items() - {(INDEX, "0")} <= template["metadata"]["labels"].items()
    assert (INDEX in selected) == has_index
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "scrape", "key": "key"}
    if target is not Target.RAYCLUSTER:  # its command is not in the manifest
        assert f"--metrics-port {PORT} --metrics-token-file /metrics/token" in _words(objects)


def _words(value: object) -> str:
    """All texts of the objects, in order."""
    if isinstance(value, dict):
        return " ".join(map(_words, value.values()))
    return " ".join(map(_words, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("target", [Target.PYTORCHJOB, Target.JOB, Target.TRAINJOB])
def test_of_an_elastic_job_the_pod_with_the_command_serves_metrics(target: Target) -> None:
    objects = rendered(target, serving(mode="ssgd", elastic="yes"), HOSTS, pod_monitor=True)
    (template,) = serving_templates(objects)
    assert "paceline train" in _words(template) or "train" in template["spec"]["containers"][0]["args"]
    (monitor,) = (o for o in objects if o["kind"] == POD_MONITOR.name)
    assert (INDEX in monitor["spec"]["selector"]["matchLabels"]) == (target is Target.JOB)


def test_a_job_without_metrics_has_nothing_of_them() -> None:
    words = _words(rendered(Target.JOB, settings(name="demo"), {"nodes": 2}))
    assert "prometheus" not in words
    assert "metrics" not in words


@pytest.mark.parametrize("target", [Target.JOB, Target.RAYJOB])
def test_a_network_policy_lets_prometheus_in_on_the_port_of_the_metrics_only(target: Target) -> None:
    torch: Object = {"network_policy": True, **({"nodes": 2} if target is Target.JOB else {})}
    (policy,) = (o for o in rendered(target, None, torch) if o["kind"] == "NetworkPolicy")
    open_to_all = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert open_to_all == [{"ports": [{"port": PORT, "protocol": "TCP"}]}]


@pytest.mark.parametrize(
    ("text", "torch", "options"),
    [
        ({"metrics_port": "80"}, {}, {}),
        ({"metrics_port": "0"}, {}, {}),
        ({"metrics_port": "29500"}, {}, {}),
        ({"metrics_port": "9464", "metrics_token_file": "token"}, {}, {}),
        ({"metrics_port": "9464"}, {}, {"metrics_secret": NO_NAME}),
        ({"metrics_port": "9464"}, {"runtime": "ours"}, {}),
        ({}, {}, {"pod_monitor": True}),
    ],
)
def test_what_a_pod_cannot_serve_is_refused(text: dict[str, str], torch: Object, options: Object) -> None:
    target = Target.TRAINJOB if torch else Target.JOB
    with pytest.raises(ConfigError) as refused:
        rendered(target, settings(name="demo", **text), {"nodes": 2, **torch}, **options)
    assert NO_NAME not in str(refused.value), "it may be the token itself"


def test_the_monitoring_set_up_is_valid_and_restricted() -> None:
    for name, text in monitoring_files(SETUP).items():
        assert validate(text, name, Profile.STRICT).problems == (), name
    with pytest.raises(ConfigError) as refused:
        monitoring_files(
            Monitoring(
                namespace="No", prometheus_image="a b", grafana_image="", storage="x", token_secret="/"
            )
        )
    assert len(refused.value.problems) == 5


def test_grafana_reaches_prometheus_and_each_mount_has_its_volume() -> None:
    made: dict[str, Any] = render(SETUP)
    source = yaml.safe_load(made["grafana-config.yaml"]["data"]["datasource.yaml"])["datasources"][0]
    service = made["prometheus-service.yaml"]
    (port,) = service["spec"]["ports"]
    assert source["url"] == f"http://{service['metadata']['name']}:{port['port']}"
    for part in ("prometheus", "grafana"):
        pod = made[f"{part}-deployment.yaml"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        files = made[f"{part}-config.yaml"]["data"]
        for volume in volumes.values():
            for item in volume.get("configMap", {}).get("items", []):
                assert item["key"] in files
