"""Grafana's files have the fields that it requires; no Grafana is started.

The fields are those of Grafana's documentation: provisioning of data sources and dashboards, and the JSON
model of a dashboard.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.k8s.deploy.monitoring import Monitoring, grafana_files, render
from paceline.monitoring.metrics.provisioning import dashboards

ROOT = Path(__file__).parents[2]
SETUP = Monitoring(namespace="train", prometheus_image="example.com/p:1", grafana_image="example.com/g:1")
DATA_SOURCE_FIELDS = {
    "name": str, "type": str, "access": str, "orgId": int, "uid": str, "url": str, "user": str,
    "database": str, "basicAuth": bool, "basicAuthUser": str, "withCredentials": bool, "isDefault": bool,
    "jsonData": dict, "secureJsonData": dict, "version": int, "editable": bool,
}  # fmt: skip
PROVIDER_FIELDS = {
    "name": str, "orgId": int, "folder": str, "folderUid": str, "type": str, "disableDeletion": bool,
    "updateIntervalSeconds": int, "allowUiUpdates": bool, "options": dict,
}  # fmt: skip
GRID_WIDTH = 24


def _files() -> dict[str, dict[str, str]]:
    """The files of compose, and those of the cluster."""
    folder = ROOT / "docker" / "grafana"
    compose = {
        "datasource.yaml": (folder / "datasource.yaml").read_text(),
        "provider.yaml": (folder / "dashboards.yaml").read_text(),
    }
    return {"compose": compose, "cluster": grafana_files(SETUP)}


FILES = _files()


def _require(entry: dict[str, Any], required: set[str], fields: dict[str, type]) -> None:
    assert required <= set(entry) <= set(fields)
    for name, value in entry.items():
        assert isinstance(value, fields[name]), name


@pytest.mark.parametrize("place", FILES)
def test_the_data_source_is_prometheus_and_the_default(place: str) -> None:
    file = yaml.safe_load(FILES[place]["datasource.yaml"])
    assert set(file) == {"apiVersion", "datasources"}
    assert file["apiVersion"] == 1
    (source,) = file["datasources"]
    _require(source, {"name", "type", "access", "url"}, DATA_SOURCE_FIELDS)
    assert (source["type"], source["access"], source["isDefault"]) == ("prometheus", "proxy", True)


@pytest.mark.parametrize("place", FILES)
def test_the_provider_reads_the_folder_in_which_the_dashboards_are_mounted(place: str) -> None:
    file = yaml.safe_load(FILES[place]["provider.yaml"])
    assert set(file) == {"apiVersion", "providers"}
    assert file["apiVersion"] == 1
    (provider,) = file["providers"]
    _require(provider, {"name", "type", "options"}, PROVIDER_FIELDS)
    assert provider["type"] == "file"
    assert provider["options"]["path"] in _mount_paths(place)


def _mount_paths(place: str) -> list[str]:
    if place == "compose":
        compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
        return [volume["target"] for volume in compose["services"]["grafana"]["volumes"]]
    deployment: Any = render(SETUP)["grafana-deployment.yaml"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return [mount["mountPath"] for mount in container["volumeMounts"]]


def test_the_cluster_has_every_dashboard() -> None:
    for name, dashboard in dashboards().items():
        assert json.loads(FILES["cluster"][name]) == dashboard


@pytest.mark.parametrize("name", dashboards())
def test_a_dashboard_has_what_grafana_requires(name: str) -> None:
    dashboard: Any = dashboards()[name]
    assert 0 < len(dashboard["uid"]) <= 40
    assert dashboard["title"]
    assert isinstance(dashboard["schemaVersion"], int)
    assert set(dashboard["time"]) == {"from", "to"}
    variables = {variable["name"]: variable["type"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource": "datasource", "run": "query"}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        _check_panel(panel)
    assert not _overlap([panel["gridPos"] for panel in panels])


def _check_panel(panel: dict[str, Any]) -> None:
    assert panel["type"] == "timeseries"
    place = panel["gridPos"]
    assert place["x"] + place["w"] <= GRID_WIDTH
    assert set(panel["fieldConfig"]) == {"defaults", "overrides"}
    targets = panel["targets"]
    assert len({target["refId"] for target in targets}) == len(targets) > 0
    for target in targets:
        assert target["expr"]
        assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def _overlap(places: list[dict[str, int]]) -> bool:
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    return len(set(cells)) < len(cells)
