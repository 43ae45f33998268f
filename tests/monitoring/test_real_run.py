"""Monitoring of a real run, one of whose workers is killed."""

import json
from pathlib import Path
from typing import Any

from tests.fixtures.processes.command import training
from tests.fixtures.runs.elastic_runs import stop
from tests.fixtures.waiting import kill_all

from paceline.monitoring.view.feed import Feed, Replay

RULES = """
version: 1
rules:
  - name: SharpAfterALoss
    severity: critical
    all:
      - {metric: paceline_generation, above: 1}
      - {metric: paceline_custom, where: {name: sharpness}, above: 5}
    by: [run]
    summary: generation {value}, and it is sharp
notifiers:
  - {kind: log, path: told.jsonl}
"""


def test_a_killed_worker_is_detected_reported_once_and_replayed_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    run_dir = tmp_path / "run"
    task, rules = "tests.fixtures.tasks.watched_task:WatchedTask", str(tmp_path / "rules.yaml")
    with training(
        run_dir, "--task", task, "--mode", "ssgd", "--num-workers", "2", "--elastic", "--alerts", rules
    ) as run:
        run.until_it_trains()
        feed = Feed(run_dir)

        def shot() -> Any:  # Any: JSON
            feed.read()
            return feed.view.snapshot(feed.now_ns())

        run.until(lambda: bool(shot()["custom"]) and shot()["coordinator"] is not None, "numbers of its own")
        run.until(lambda: all(w["memory_bytes"] for w in shot()["workers"]), "the processes are looked at")
        kill_all([int(next(w["pid"] for w in shot()["workers"] if w["worker"] == "worker-1"))])
        run.until(lambda: any(g["recovery"] for g in shot()["generations"]), "a recovery, by its stages")
        run.until(lambda: "SharpAfterALoss" in _read(run_dir / "told.jsonl"), "the alert was sent")
        stop(run)
    reported = [json.loads(line)["state"] for line in _read(run_dir / "told.jsonl").splitlines()]
    assert reported == ["firing", "resolved"]
    last = shot()
    assert last["state"] == "stopped"
    assert next(w for w in last["workers"] if w["worker"] == "worker-1")["restarts"] >= 1
    replay = Replay(run_dir)
    replay.seek(replay.duration_s)
    assert json.dumps(replay.view.snapshot()) == json.dumps(feed.view.snapshot())


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
