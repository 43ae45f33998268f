"""Metrics of a run that is training: where they are served, and what happens when they cannot be."""

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.fixtures.waiting import until
from tests.monitoring.scripted_log import a_plan, steady_log

from paceline.config.load import load
from paceline.config.values import RawSetting
from paceline.core.errors import ConfigError
from paceline.monitoring.metrics.server_process import MetricsEndpoint, endpoint_of_flags, serving_metrics
from paceline.plan.check_task import check_metrics


def flags(**values: str) -> list[RawSetting]:
    return [RawSetting(key=key, raw=raw, where=f"--{key}") for key, raw in values.items()]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    steady_log(20, 2).write(tmp_path / "run", a_plan(2))
    return tmp_path / "run"


def test_the_endpoint_of_a_resumed_run_is_that_of_its_flags(tmp_path: Path) -> None:
    given = flags(metrics_port="9464", metrics_token_file="token", num_workers="3")
    assert endpoint_of_flags(given, tmp_path) == MetricsEndpoint(port=9464, token_file=tmp_path / "token")
    assert endpoint_of_flags(flags(num_workers="3"), tmp_path) is None
    with pytest.raises(ConfigError):
        endpoint_of_flags(flags(metrics_token_file="token"), tmp_path)
    with pytest.raises(ConfigError):
        endpoint_of_flags(flags(metrics_port="many"), tmp_path)


@pytest.mark.parametrize("values", [{"metrics_token_file": "t"}, {"metrics_port": "0", "events": "off"}])
def test_settings_by_which_nothing_could_be_served_are_refused(values: dict[str, str]) -> None:
    assert len(check_metrics(load(flags=flags(**values)).config)) == 1


def test_the_metrics_are_served_by_a_process_that_ends_with_the_run(run_dir: Path) -> None:
    notes: list[str] = []
    with serving_metrics(MetricsEndpoint(port=0), run_dir, notes.append):
        until(lambda: bool(notes), "the metrics are served")
        (note,) = notes
        url = note.removeprefix("metrics: ")
        with urllib.request.urlopen(url, timeout=60) as response:
            assert b"paceline_throughput_samples_per_second" in response.read()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=60)


def test_a_port_that_is_taken_is_reported_and_the_run_continues(run_dir: Path) -> None:
    notes: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = MetricsEndpoint(port=taken.getsockname()[1])
        with serving_metrics(endpoint, run_dir, notes.append):
            until(lambda: bool(notes), "the problem is reported")
    assert notes[0].startswith("warning: ")
