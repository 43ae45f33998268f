"""The objects of a small monitoring set-up: Prometheus, which finds the jobs of a namespace, and Grafana.

Prometheus scrapes the pods that `job render --metrics-port` annotates, with the token of their Secret, and
evaluates the alert rules. Grafana starts with the data source and the dashboards. Both keep their data in
the pod: they are lost with it. Clusters with Prometheus' operator need none of this, but `--pod-monitor`.
See docs/guides/monitoring.md.
"""

import json
from dataclasses import dataclass

import yaml

from paceline.k8s.deploy import service
from paceline.k8s.kinds import ROLE, ROLE_BINDING
from paceline.k8s.render.metrics import ANY, FIRST, INDEX, PORT_NAME, SERVES
from paceline.k8s.render.pod import Object
from paceline.monitoring.alerts.rule_file import default_rules
from paceline.monitoring.metrics.provisioning import dashboards, rules_file
from paceline.plan.codec import Json

PROMETHEUS_PORT = 9090
GRAFANA_PORT = 3000
TOKEN = "/metrics"  # the folder of the token of the jobs
PASSWORD = "/password"
_GRAFANA_USER = 472  # of Grafana's image
_RETENTION = "15d"
_SCRAPE_INTERVAL = "5s"
_DASHBOARDS = "/var/lib/grafana-dashboards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    namespace: str
    prometheus_image: str
    grafana_image: str
    name: str = "paceline-monitoring"
    token_secret: str = "paceline-metrics"  # key `token`: the one of the jobs
    password_secret: str = "paceline-grafana"  # key `password`: of Grafana's user admin
    storage: str = "10Gi"  # for the data of Prometheus, in the pod
    pull_secret: str | None = None

    @property
    def prometheus(self) -> str:
        return f"{self.name}-prometheus"

    @property
    def grafana(self) -> str:
        return f"{self.name}-grafana"


def render(options: Monitoring) -> dict[str, Object]:
    """Manifests by file name, in order of creation."""
    return {
        "serviceaccount.yaml": _head(options, "prometheus", "v1", "ServiceAccount"),
        "role.yaml": _role(options),
        "rolebinding.yaml": _binding(options),
        "prometheus-config.yaml": _config_map(options, "prometheus", prometheus_files(options)),
        "prometheus-service.yaml": _service(options, "prometheus", PROMETHEUS_PORT),
        "prometheus-networkpolicy.yaml": _policy(options, "prometheus", PROMETHEUS_PORT),
        "prometheus-deployment.yaml": _prometheus(options),
        "grafana-config.yaml": _config_map(options, "grafana", grafana_files(options)),
        "grafana-service.yaml": _service(options, "grafana", GRAFANA_PORT),
        "grafana-networkpolicy.yaml": _policy(options, "grafana", GRAFANA_PORT),
        "grafana-deployment.yaml": _grafana(options),
    }


def kustomization(options: Monitoring) -> Object:
    return service.kustomization(options.namespace, render(options))


def secret_commands(options: Monitoring) -> list[str]:
    """Commands that create the token and the password; neither is on a command line."""
    make = "python -c 'import secrets; print(secrets.token_urlsafe(24), end=\"\")'"
    create = f"kubectl -n {options.namespace} create secret generic"
    return [
        f"(umask 077; {make} > token; {make} > password)",
        f"{create} {options.token_secret} --from-file=token",
        f"{create} {options.password_secret} --from-file=password",
    ]


def access_commands(options: Monitoring) -> list[str]:
    forward = f"kubectl -n {options.namespace} port-forward service"
    return [
        f"{forward}/{options.prometheus} {PROMETHEUS_PORT}:{PROMETHEUS_PORT}",
        f"{forward}/{options.grafana} {GRAFANA_PORT}:{GRAFANA_PORT}",
    ]


def prometheus_files(options: Monitoring) -> dict[str, str]:
    return {
        "prometheus.yml": _yaml(scrape_configuration(options.namespace)),
        "paceline.rules.yml": rules_file(default_rules()),
    }


def scrape_configuration(namespace: str) -> Object:
    job: Object = {
        "job_name": "paceline",
        "authorization": {"credentials_file": f"{TOKEN}/token"},
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [namespace]}}],
        "relabel_configs": _relabeling(),
    }
    return {
        "global": {"scrape_interval": _SCRAPE_INTERVAL, "evaluation_interval": _SCRAPE_INTERVAL},
        "rule_files": ["paceline.rules.yml"],
        "scrape_configs": [job],
    }


def _relabeling() -> list[Json]:
    """Keeps the pods that serve metrics, on the port of that name, while they run."""
    pod = "__meta_kubernetes_pod"
    which = [f"{pod}_label_{_meta(SERVES)}", f"{pod}_label_{_meta(INDEX)}"]
    return [
        {"source_labels": list(which), "regex": f"{ANY};.*|{FIRST};0?", "action": "keep"},
        {"source_labels": [f"{pod}_container_port_name"], "regex": PORT_NAME, "action": "keep"},
        {"source_labels": [f"{pod}_phase"], "regex": "Running", "action": "keep"},
        {"source_labels": [f"{pod}_name"], "target_label": "pod"},
    ]


def _meta(name: str) -> str:
    """A label as Prometheus' discovery writes it."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def grafana_files(options: Monitoring) -> dict[str, str]:
    source: Object = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "isDefault": True}
    source["url"] = f"http://{options.prometheus}:{PROMETHEUS_PORT}"
    provider: Object = {"name": "paceline", "type": "file", "options": {"path": _DASHBOARDS}}
    return {
        "datasource.yaml": _yaml({"apiVersion": 1, "datasources": [source]}),
        "provider.yaml": _yaml({"apiVersion": 1, "providers": [provider]}),
        **{name: json.dumps(dashboard) + "\n" for name, dashboard in dashboards().items()},
    }


def _yaml(value: Object) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=1000)


def labels(options: Monitoring, component: str) -> Object:
    return service.labels(component, f"{options.name}-{component}")


def _head(options: Monitoring, component: str, version: str, kind: str) -> Object:
    return service.object_head(component, f"{options.name}-{component}", options.namespace, version, kind)


def _role(options: Monitoring) -> Object:
    """Prometheus lists the pods of its namespace, and nothing else."""
    rules: list[Json] = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    return {**_head(options, "prometheus", ROLE.api_version, ROLE.name), "rules": rules}


def _binding(options: Monitoring) -> Object:
    account: Object = {"kind": "ServiceAccount", "name": options.prometheus, "namespace": options.namespace}
    return {
        **_head(options, "prometheus", ROLE_BINDING.api_version, ROLE_BINDING.name),
        "roleRef": {"apiGroup": ROLE.group, "kind": ROLE.name, "name": options.prometheus},
        "subjects": [account],
    }


def _config_map(options: Monitoring, component: str, files: dict[str, str]) -> Object:
    return {**_head(options, component, "v1", "ConfigMap"), "data": dict(files)}


def _service(options: Monitoring, component: str, port: int) -> Object:
    return {
        **_head(options, component, "v1", "Service"),
        "spec": {
            "type": "ClusterIP",
            "selector": labels(options, component),
            "ports": [{"name": "http", "port": port, "targetPort": "http"}],
        },
    }


def _policy(options: Monitoring, component: str, port: int) -> Object:
    """Ingress: Grafana reaches Prometheus, which has no login; `kubectl port-forward` bypasses it."""
    grafana: Object = {"podSelector": {"matchLabels": labels(options, "grafana")}}
    ports: list[Json] = [{"port": port, "protocol": "TCP"}]
    allowed: list[Json] = [{"from": [grafana], "ports": ports}] if component == "prometheus" else []
    return {
        **_head(options, component, "networking.k8s.io/v1", "NetworkPolicy"),
        "spec": {
            "podSelector": {"matchLabels": labels(options, component)},
            "policyTypes": ["Ingress"],
            "ingress": allowed,
        },
    }


def _deployment(options: Monitoring, component: str, pod: Object) -> Object:
    return {
        **_head(options, component, "apps/v1", "Deployment"),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels(options, component)},
            "template": {"metadata": {"labels": labels(options, component)}, "spec": pod},
        },
    }


def _container(
    name: str, image: str, port: int, ready: str, volumes: dict[str, str], *, memory: str
) -> Object:
    """`volumes`: mount path by name."""
    probe: Object = {"httpGet": {"path": ready, "port": "http"}, "timeoutSeconds": 5}
    mounts: list[Json] = [{"name": volume, "mountPath": path} for volume, path in volumes.items()]
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": "http", "containerPort": port}],
        "resources": service.resource_requirements("100m", memory),
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "securityContext": dict(service.CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _prometheus(options: Monitoring) -> Object:
    volumes = {"config": "/etc/prometheus", "token": TOKEN, "data": "/prometheus"}
    container = _container(
        "prometheus", options.prometheus_image, PROMETHEUS_PORT, "/-/ready", volumes, memory="1Gi"
    )
    container["args"] = [
        "--config.file=/etc/prometheus/prometheus.yml",
        "--storage.tsdb.path=/prometheus",
        f"--storage.tsdb.retention.time={_RETENTION}",
    ]
    pod: Object = {
        **service.restricted_pod(options.pull_secret),
        "serviceAccountName": options.prometheus,
        "automountServiceAccountToken": True,  # it lists pods
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": options.prometheus}},
            {"name": "token", "secret": _secret(options.token_secret)},
            {"name": "data", "emptyDir": {"sizeLimit": options.storage}},
        ],
    }
    return _deployment(options, "prometheus", pod)


def _grafana(options: Monitoring) -> Object:
    provisioning = "/etc/grafana/provisioning"
    volumes = {"password": PASSWORD, "data": "/var/lib/grafana", "tmp": "/tmp", "dashboards": _DASHBOARDS}
    volumes |= {"datasources": f"{provisioning}/datasources", "providers": f"{provisioning}/dashboards"}
    container = _container(
        "grafana", options.grafana_image, GRAFANA_PORT, "/api/health", volumes, memory="512Mi"
    )
    variables = {
        "GF_SECURITY_ADMIN_PASSWORD__FILE": f"{PASSWORD}/password",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
    container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    user: Object = {"runAsUser": _GRAFANA_USER, "runAsGroup": _GRAFANA_USER, "fsGroup": _GRAFANA_USER}
    restricted = service.restricted_pod(options.pull_secret)
    security = restricted["securityContext"]
    assert isinstance(security, dict), "a pod has a security context"
    pod: Object = {
        **restricted,
        "securityContext": {**security, **user},
        "containers": [container],
        "volumes": [
            {"name": "password", "secret": _secret(options.password_secret)},
            {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            _part(options, "dashboards", list(dashboards())),
            _part(options, "datasources", ["datasource.yaml"]),
            _part(options, "providers", ["provider.yaml"]),
        ],
    }
    return _deployment(options, "grafana", pod)


def _secret(name: str) -> Object:
    return {"secretName": name, "defaultMode": 0o440}


def _part(options: Monitoring, name: str, files: list[str]) -> Object:
    """A volume with these files of Grafana's ConfigMap."""
    items: list[Json] = [{"key": file, "path": file} for file in files]
    return {"name": name, "configMap": {"name": options.grafana, "items": items}}
