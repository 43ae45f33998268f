"""The monitoring commands, on one small real run and on scripted ones."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording
from tests.monitoring.scripted_log import T0_NS, ScriptedLog, a_plan, followed, steady_log
from textual.widgets import Static

from paceline.cli.main import cli
from paceline.cli.top_app import TopApp
from paceline.core.clock import SystemClock
from paceline.core.errors import ConfigError
from paceline.events.log import EventLog
from paceline.events.schema import CoordinatorRow
from paceline.monitoring.metrics.http_server import MetricsServer, name_of
from paceline.monitoring.probes.collector import Collector
from paceline.monitoring.probes.gpu import GpuProbe
from paceline.monitoring.probes.host import HostProbe
from paceline.monitoring.view.feed import Feed, is_orphaned
from paceline.monitoring.view.run_track import RunTrack
from paceline.training.session import Session


def call(folder: Path, *args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, args, obj=Session(folder=folder))
    return result.exit_code, result.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = steady_log(100, 4, slow="worker-3")
    log.write(tmp_path / "runs" / "one", a_plan(4))
    return tmp_path


def test_status_and_top_once_show_the_newest_run(folder: Path) -> None:
    for words in (("status",), ("top", "-1")):
        code, text = call(folder, *words)
        assert code == 0
        assert "scripted" in text
        assert "digits" in text
        assert "▲ slow" in text
    code, text = call(folder, "--json", "status", "runs/one")
    data = json.loads(text)
    assert data["schema"] == "paceline.status/1"
    assert data["data"]["counts"]["slow"] == 1


def test_status_of_a_finished_run_prints_what_train_printed(tmp_path: Path) -> None:
    log = steady_log(30, 2)
    log.tell(40.0, "launcher", "run_finished", outcome="finished")
    log.write(tmp_path / "runs" / "one", a_plan(2))
    code, text = call(tmp_path, "status")
    assert code == 0
    assert " live" not in text
    code, text = call(tmp_path, "--json", "status")
    loss = json.loads(text)["data"]["loss"]
    assert loss["final"] == pytest.approx((1 / 29 + 1 / 30) / 2)  # of the last twenty steps
    assert loss["smooth"] > loss["final"]


def test_events_are_printed_as_sentences_and_as_lines_of_json(folder: Path, wording: Wording) -> None:
    code, text = call(folder, "events", "--kind", "run_started")
    assert code == 0
    wording(text.split("  ")[-1])
    code, text = call(folder, "--json", "events", "--last", "2")
    assert [json.loads(line)["kind"] for line in text.splitlines()] == ["worker_started", "worker_started"]


def test_events_are_followed_until_the_run_is_over(tmp_path: Path) -> None:
    log = ScriptedLog()
    path = tmp_path / "runs" / "one" / "events.jsonl"
    with followed(log, path.parent) as printed:
        log.lines.clear()
        log.tell(3.0, "launcher", "run_finished", outcome="stopped")
        with path.open("a") as file:
            file.write(log.lines[0] + "\n")
        assert json.loads(printed.readline())["kind"] == "run_finished"


def test_alerts_are_listed_silenced_exported_and_checked(folder: Path) -> None:
    code, text = call(folder, "alerts", "list")
    assert code == 0
    assert "WARNING   WorkerStraggling: worker-3 " in text
    assert " 0.25 " in text
    assert (
        call(folder, "alerts", "silence", "runs/one", "--rule", "WorkerStraggling", "--for", "99999h")[0] == 0
    )
    assert (
        "(silenced)" in call(folder, "alerts", "list", "--json")[1]
        or "silenced" in call(folder, "alerts", "list")[1]
    )
    assert "alert: WorkerStraggling" in call(folder, "alerts", "export")[1]
    assert "30 rules, notifiers: none" in call(folder, "alerts", "check")[1]
    with pytest.raises(ConfigError, match="'Nope'"):
        CliRunner().invoke(
            cli,
            ["alerts", "silence", "runs/one", "--rule", "Nope"],
            obj=Session(folder=folder),
            catch_exceptions=False,
            standalone_mode=False,
        )


def test_metrics_are_printed_served_and_drawn(folder: Path) -> None:
    assert 'paceline_worker_up{run="scripted",worker="worker-3"} 1.0' in call(folder, "metrics", "sample")[1]
    assert "paceline_train_loss\tgauge" in call(folder, "metrics", "list")[1]
    assert call(folder, "metrics", "export-grafana", "--out", "grafana")[0] == 0
    assert {path.name for path in (folder / "grafana").iterdir()} == {
        "paceline-run.json",
        "paceline-workers.json",
        "paceline-machines.json",
    }
    assert call(folder, "metrics", "export-rules", "--out", "rules.yml")[0] == 0
    assert "CoordinatorNoLeader" in (folder / "rules.yml").read_text()
    with (
        MetricsServer(folder / "runs" / "one", "127.0.0.1", 0) as server,
        urllib.request.urlopen(server.url, timeout=60) as answer,
    ):
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"paceline_health_score_ratio" in answer.read()


def test_the_metrics_are_for_this_machine_and_continue_after_a_damaged_line(folder: Path) -> None:
    with MetricsServer(folder / "runs" / "one", "127.0.0.1", 0) as server:
        requested = urllib.request.Request(server.url, headers={"Host": "evil.example:80"})
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(requested, timeout=60)
        refused.value.close()
        with (folder / "runs" / "one" / "events.jsonl").open("a") as file:
            file.write("no json\n")
        with urllib.request.urlopen(server.url, timeout=60) as answer:
            assert b"paceline_health_score_ratio" in answer.read()
    assert name_of("[::1]:9464") == "::1"


def test_beyond_loopback_every_request_for_metrics_needs_the_token(folder: Path, wording: Wording) -> None:
    token = "a-token-of-many-letters"
    with MetricsServer(folder / "runs" / "one", "0.0.0.0", 0, token=token) as server:
        for value in ("", "Bearer", "Bearer another", f"Basic {token}", token):
            requested = urllib.request.Request(server.url, headers={"Authorization": value})
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                urllib.request.urlopen(requested, timeout=60)
            refused.value.close()
        requested = urllib.request.Request(server.url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(requested, timeout=60) as answer:
            assert b"paceline_health_score_ratio" in answer.read()
    with wording.raises(ConfigError):
        CliRunner().invoke(
            cli,
            ["metrics", "serve", "runs/one", "--host", "0.0.0.0"],
            obj=Session(folder=folder),
            catch_exceptions=False,
            standalone_mode=False,
        )


def test_all_events_are_printed_however_many_and_an_unknown_kind_is_refused(
    folder: Path, wording: Wording
) -> None:
    log = ScriptedLog()
    for number in range(2500):
        log.tell(1 + number / 1000, "worker-0", "step_skipped", step=number, shards="0")
    log.write(folder / "runs" / "long", a_plan())
    assert len(call(folder, "--json", "events", "runs/long")[1].splitlines()) == 2501
    with wording.raises(ConfigError):
        CliRunner().invoke(
            cli,
            ["events", "runs/long", "--kind", "step_skiped"],
            obj=Session(folder=folder),
            catch_exceptions=False,
            standalone_mode=False,
        )


def talk_of(app: TopApp) -> str:
    return str(app.query_one("#talk", Static).render())


def test_top_sorts_filters_and_confirms_before_it_kills(folder: Path) -> None:
    async def story() -> None:
        app = TopApp(folder / "runs" / "one")
        async with app.run_test(size=(150, 40)) as pilot:
            await pilot.pause()
            assert [w["worker"] for w in app.shown()] == ["worker-0", "worker-1", "worker-2", "worker-3"]
            while app.sort_by != "speed":
                await pilot.press("s")
            assert app.shown()[0]["worker"] == "worker-3"
            await pilot.press("slash", *"slow", "enter")
            await pilot.pause()
            assert [w["worker"] for w in app.shown()] == ["worker-3"]
            await pilot.press("question_mark")
            assert "K kill" in talk_of(app)
            await pilot.press("K")
            assert talk_of(app).startswith("Kill worker-3?")
            await pilot.press("escape")
            await pilot.press("y")  # no further confirmation
            assert talk_of(app) == ""
        quiet = TopApp(folder / "runs" / "one", is_readonly=True)
        async with quiet.run_test() as pilot:
            await pilot.press("p")
            assert "--readonly" in talk_of(quiet)
            await pilot.press("q")

    asyncio.run(story())


def test_top_pauses_resumes_and_kills_as_the_other_commands_do(tmp_path: Path, wording: Wording) -> None:
    """One process stands for a worker: an action of top has the life cycle of every action."""

    def state_in(app: TopApp) -> object:
        return app.shown()[0]["state"]

    async def story(victim: "subprocess.Popen[bytes]") -> None:
        door = HostProbe(tmp_path)

        def is_stopped() -> bool:
            return door.processes(0, {"worker-0": victim.pid})[0].is_stopped

        app = TopApp(tmp_path)
        async with app.run_test(size=(150, 40)) as pilot:
            await pilot.pause()
            await pilot.press("p")
            await asyncio.to_thread(until, is_stopped, "it is stopped")
            await asyncio.to_thread(until, lambda: state_in(app) == "paused", "a sample says so")
            await pilot.press("p")
            await asyncio.to_thread(until, lambda: not is_stopped(), "it goes on")
            await asyncio.to_thread(until, lambda: state_in(app) != "paused", "a sample says so")
            await pilot.press("p")
            await asyncio.to_thread(until, is_stopped, "it is stopped again")
        until(lambda: not is_stopped(), "it goes on when top ends")
        again = TopApp(tmp_path)
        async with again.run_test(size=(150, 40)) as pilot:
            await pilot.pause()
            await pilot.press("K")
            wording(talk_of(again))
            await pilot.press("y")
            assert await asyncio.to_thread(victim.wait, 60) == -signal.SIGKILL

    sleeper = [sys.executable, "-c", "import time; time.sleep(600)", "paceline"]
    with subprocess.Popen(sleeper) as victim:
        ScriptedLog().write(tmp_path, a_plan())
        log = EventLog(tmp_path / "events.jsonl", who="worker-0", clock=SystemClock())
        log.write("worker_started", pid=victim.pid, clock=0)
        log.close()
        with Collector(tmp_path, lambda _: None, has_local_workers=True, every_s=0.05):
            asyncio.run(story(victim))
    text = (tmp_path / "events.jsonl").read_text()
    assert text.count('"fault_injected"') == 3  # two pauses and a kill
    for phase in ("requested", "accepted", "applied", "effect_seen"):
        assert f'"phase":"{phase}"' in text


def test_the_collector_writes_what_the_machine_reports_and_measures_its_own_process(tmp_path: Path) -> None:
    log = ScriptedLog()
    log.tell(0.1, "worker-0", "worker_started", pid=os.getpid(), clock=0)
    log.write(tmp_path, a_plan())
    notes: list[str] = []
    feed = Feed(tmp_path)

    def is_seen() -> bool:
        feed.read()
        return feed.view.track.worker("worker-0").memory_bytes is not None and bool(
            feed.view.track.machines.hosts
        )

    with Collector(tmp_path, notes.append, has_local_workers=True, every_s=0.05):
        until(is_seen, "a sample of the process and of the host")
    host = next(iter(feed.view.track.machines.hosts.values()))[-1]
    assert host.memory_size_bytes is not None
    assert host.memory_size_bytes > 0
    assert notes == []


class LateCoordinator:
    """Publishes its address only after the first requests."""

    def __init__(self) -> None:
        self._requests = 0

    def rows(self, at_ns: int) -> list[CoordinatorRow]:
        self._requests += 1
        if self._requests < 3:
            return []
        return [CoordinatorRow(at_ns, "a:1", 1, "leader", True, 1, 1, 1, 1, 0, True, 0.001)]

    def close(self) -> None:
        pass


def test_the_coordinator_is_first_sampled_as_soon_as_it_can_be_found(tmp_path: Path) -> None:
    ScriptedLog().write(tmp_path, a_plan())
    feed = Feed(tmp_path)

    def is_seen() -> bool:
        feed.read()
        return feed.view.track.coordinator.leader == 1

    coordinator = LateCoordinator()
    with Collector(tmp_path, print, has_local_workers=False, coordinator=coordinator, every_s=3600):
        until(is_seen, "a sample of the coordinator")


def test_status_names_the_leader_of_the_coordinator_or_its_absence(tmp_path: Path) -> None:
    log = ScriptedLog()
    log.rows(
        "watch", "coordinators", at_ns=T0_NS, address="a:1", node=2, role="leader", is_voter=True,
        leader=2, term=3, is_connected=True,
    )  # fmt: skip
    log.write(tmp_path / "runs" / "led", a_plan())
    assert "node 2, term 3" in call(tmp_path, "status", "runs/led")[1]
    log.rows(
        "watch", "coordinators", at_ns=T0_NS + 10**9, address="a:1", node=None, role="", is_voter=True,
    )  # fmt: skip
    log.write(tmp_path / "runs" / "lost", a_plan())
    assert "no leader; 0 of 1 " in call(tmp_path, "status", "runs/lost")[1]


class FakeError(Exception):
    """What a driver that lacks an answer raises."""


class FakeNvml:
    """A driver with one GPU that knows its memory and its use, and nothing else."""

    NVMLError = FakeError

    def nvmlInit(self) -> None: ...  # noqa: N802  # the library's names

    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> object:  # noqa: N802
        return type("Memory", (), {"used": 10, "total": 20})

    def nvmlDeviceGetUtilizationRates(self, _handle: int) -> object:  # noqa: N802
        return type("Rates", (), {"gpu": 75})

    def __getattr__(self, name: str) -> object:
        def lacks(*_args: object) -> object:
            raise FakeError(name)

        return lacks if name.startswith("nvmlDevice") else 1


def test_a_gpu_that_cannot_answer_everything_is_reported_by_what_it_can() -> None:
    door = GpuProbe("here", FakeNvml())
    (row,) = door.sample(5)
    door.close()
    assert (row.utilization, row.memory_used_bytes, row.memory_size_bytes) == (0.75, 10, 20)
    assert (row.temperature_c, row.power_w, row.is_throttled) == (None, None, None)


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    assert GpuProbe("here", None).sample(1) == []


def test_events_and_status_report_a_run_whose_processes_are_all_gone(
    tmp_path: Path, wording: Wording
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    log = ScriptedLog()
    log.tell(0.0, "launcher", "run_started", plan="p", launcher="local", pid=gone.pid)
    log.tell(0.1, "worker-0", "worker_started", pid=gone.pid, clock=0, node=socket.gethostname())
    log.rows("watch", "hosts", 1, at_ns=T0_NS, node=socket.gethostname())
    log.write(tmp_path / "runs" / "one", a_plan())
    result = CliRunner().invoke(cli, ["events", "--follow"], obj=Session(folder=tmp_path))
    assert result.exit_code == 0
    assert "worker-0 " in result.stdout
    wording(result.stderr)
    code, out = call(tmp_path, "status")
    assert code == 0
    assert " --resume" in out


def test_a_run_is_deserted_only_where_all_its_processes_can_be_seen() -> None:
    here, mine = socket.gethostname(), os.getpid()
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()

    def is_left(launcher: int | None, worker: int, node: str) -> bool:
        track = RunTrack(a_plan())
        log = ScriptedLog()
        log.tell(0.0, "launcher", "run_started", plan="p", launcher="local", pid=launcher)
        log.rows("watch", "hosts", 1, at_ns=T0_NS, node=here)
        log.tell(0.1, "worker-0", "worker_started", pid=worker, clock=0, node=node)
        for line in log.lines:
            track.take(line)
        return is_orphaned(track)

    assert is_left(gone.pid, gone.pid, here)
    assert not is_left(mine, gone.pid, here), "the launcher lives"
    assert not is_left(gone.pid, mine, here), "a worker lives"
    assert not is_left(gone.pid, gone.pid, "another-machine"), "who knows"
    assert not is_left(None, gone.pid, here), "an older log does not say"
