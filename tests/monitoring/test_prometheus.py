"""A real Prometheus scrapes a real run: its queries show staleness, lag and throughput."""

from pathlib import Path
from typing import Any

import yaml
from tests.fixtures.processes.command import training
from tests.fixtures.processes.prometheus import (
    Prometheus,
    needs_prometheus,
    needs_promtool,
    prometheus,
    promtool,
)
from tests.fixtures.runs.torchrun import free_port
from tests.fixtures.waiting import until, until_gone

from paceline.k8s.deploy.monitoring import scrape_configuration
from paceline.k8s.render.metrics import ANY, FIRST, INDEX, SERVES
from paceline.monitoring.alerts.rule_file import default_rules
from paceline.monitoring.metrics.provisioning import expressions, rules_file

ROOT = Path(__file__).parents[2]
SSP = ("--mode", "ssp", "--staleness", "3", "--straggler", "worker=1,factor=3")


def configuration(folder: Path, port: int) -> Path:
    """The scrape configuration of docs/guides/monitoring.md, and one that sends no token."""
    target = {"scrape_interval": "1s", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    token = {"authorization": {"credentials_file": str(folder / "token")}}
    scrapes = [{"job_name": "paceline", **target, **token}, {"job_name": "stranger", **target}]
    (folder / "paceline.rules.yml").write_text(rules_file(default_rules()))
    path = folder / "prometheus.yml"
    written = {"global": {"evaluation_interval": "1s"}, "rule_files": ["paceline.rules.yml"]}
    path.write_text(yaml.safe_dump({**written, "scrape_configs": scrapes}))
    return path


@needs_prometheus
def test_prometheus_shows_staleness_lag_and_throughput_of_a_run_and_no_stranger_reads_them(
    tmp_path: Path,
) -> None:
    port = free_port()
    flags = ("--metrics-port", str(port), "--metrics-token-file", str(tmp_path / "token"))
    with (
        training(tmp_path / "run", *SSP, *flags, participants=3) as run,
        prometheus(tmp_path, configuration(tmp_path, port)) as server,
    ):
        _staleness_lag_and_throughput(server)
        _queries_of_panels_and_rules(server)
        until(lambda: server.targets()["stranger"]["health"] == "down", "it was scraped without a token")
        assert "401" in server.targets()["stranger"]["lastError"]
        assert server.targets()["paceline"]["health"] == "up"
        processes = run.processes()
        run.process.terminate()
        run.end()
        until_gone(processes)
        until(lambda: server.targets()["paceline"]["health"] == "down", "the run has ended")


def _staleness_lag_and_throughput(server: Prometheus) -> None:
    ((labels, throughput),) = server.until("paceline_throughput_samples_per_second > 0")
    assert labels["run"] == "xor-ssp"
    assert throughput > 0
    assert server.until("sum by (run) (rate(paceline_samples_total[1m])) > 0")
    lags = server.until("paceline_worker_lag_steps")
    assert {labels["worker"] for labels, _ in lags} == {"worker-0", "worker-1"}
    assert server.until("max(paceline_worker_lag_steps) > 0")
    assert server.until("paceline_staleness_p95_steps > 0")
    assert server.until("sum(rate(paceline_gradient_staleness_steps_count[1m])) > 0")
    assert server.until("paceline_staleness_max_gap_steps <= paceline_staleness_bound_steps")


def _queries_of_panels_and_rules(server: Prometheus) -> None:
    for expression in expressions():
        server.query(expression.replace("$run", "xor-ssp"))

    def rules() -> list[str]:
        groups = server.get("/api/v1/rules")["groups"]
        return [rule["health"] for group in groups for rule in group["rules"]]

    until(lambda: "unknown" not in rules(), "every rule was evaluated")
    assert rules() == ["ok"] * len(default_rules().rules)


# Discovered pods: which of them serves metrics, its index in a Job, the name of the port, the phase.
PODS = {
    "master": (FIRST, None, "metrics", "Running"),
    "first": (FIRST, "0", "metrics", "Running"),
    "second": (FIRST, "1", "metrics", "Running"),
    "any": (ANY, "1", "metrics", "Running"),
    "rendezvous": (FIRST, "0", "rendezvous", "Running"),
    "finished": (FIRST, "0", "metrics", "Succeeded"),
    "other": (None, None, "metrics", "Running"),
}


def discovered(name: str) -> Any:  # Any: JSON
    """A pod as Kubernetes' discovery describes it, at an address where nothing listens."""
    serves, index, port, phase = PODS[name]
    labels = {"name": name, "phase": phase, "container_port_name": port}
    named = {
        "label_" + "".join(c if c.isalnum() else "_" for c in key): value
        for key, value in (
            (SERVES, serves),
            (INDEX, index),
        )
    }
    known = {f"__meta_kubernetes_pod_{key}": v for key, v in (labels | named).items() if v is not None}
    return {"targets": [f"127.0.0.1:{list(PODS).index(name) + 1}"], "labels": known}


@needs_promtool
def test_the_configuration_of_compose_is_valid() -> None:
    code, text = promtool("check", "config", str(ROOT / "docker" / "prometheus" / "prometheus.yml"))
    assert code == 0, text


@needs_prometheus
def test_prometheus_of_the_cluster_keeps_the_pods_that_serve_metrics(tmp_path: Path) -> None:
    written: Any = scrape_configuration("train")
    (job,) = written["scrape_configs"]
    path = tmp_path / "prometheus.yml"
    # Debian's Prometheus is built without this discovery, so its results are given.
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["train"]}}]
    job["static_configs"] = [discovered(name) for name in PODS]
    job["authorization"] = {"credentials_file": str(tmp_path / "token")}
    (tmp_path / "token").write_text("a-token")
    path.write_text(yaml.safe_dump(written))
    with prometheus(tmp_path, path) as server:
        until(lambda: bool(server.targets()), "the targets are known")
        kept = {row["labels"]["pod"] for row in server.get("/api/v1/targets")["activeTargets"]}
    assert kept == {"master", "first", "any"}
