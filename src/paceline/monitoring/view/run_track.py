"""State of a run as its log records it: the sums and newest values that all views derive from.

Every line of the log updates it, and nothing else does: no clock, no file. Pure.
"""

import json
import re
from collections import deque
from collections.abc import Mapping

from paceline.events.follow import ColumnReader, as_float, optional_float, optional_int
from paceline.events.schema import SCHEMA, CustomRow, LinkRow, ProcessRow
from paceline.monitoring.view.loss import LossRecord
from paceline.monitoring.view.machines import CoordinatorTrack, Machines
from paceline.monitoring.view.recoveries import Generations, Restarts
from paceline.monitoring.view.worker_track import BOUNDS_S, Batch, Histogram, LaneRow, WorkerTrack
from paceline.plan.catalog import hides_waiting
from paceline.plan.codec import Json
from paceline.plan.plan import Plan

# kind: (sign, sentence with the event's fields)
_TEMPLATES: dict[str, tuple[str, str]] = {
    "run_started": ("▶", "the run begins"),
    "run_resumed": ("▶", "the run goes on from version {version}"),
    "worker_started": ("◐", "{who} is ready (process {pid})"),
    "worker_finished": ("✔", "{who} ended after {steps} steps: {reason}"),
    "worker_lost": ("✕", "a process was lost: {cause}"),
    "stop_requested": ("■", "asked to stop by {by}"),
    "checkpoint": ("✚", "checkpoint of step {step} by {who}"),
    "checkpoint_failed": ("✕", "the checkpoint of step {step} failed: {reason}"),
    "checkpoint_skipped": ("▲", "no checkpoint of step {step}: earlier ones are still being written"),
    "evaluated": ("◇", "evaluated after step {step}: {metrics}"),
    "early_stop": ("■", "stopped early after step {step}: {reason}"),
    "adapted": ("⇄", "after step {step} from {from} to {to}: {reason}"),
    "generation_entered": ("■", "{who} enters generation {number}: {why}"),
    "generation_lost": ("▲", "{who} leaves generation {number}: {why}"),
    "server_started": ("◐", "{who} serves part {part} from version {version}"),
    "server_promoted": ("▲", "{who} took over part {part} from {instead_of}"),
    "server_restored": ("▲", "part {part} goes back to version {version}"),
    "backup_placed": ("✚", "{backup} is the backup of part {part}"),
    "push_refused": ("▲", "{who}: the share at {position} was given up meanwhile"),
    "supervision": ("●", "{decision}"),
    "slow_worker": ("▲", "{worker}: {reason}"),
    "shards_dealt": ("⇄", "shards are dealt out anew from step {step}: {reason}"),
    "step_skipped": ("▲", "step {step} was left out: the gradient of {shards} was not finite"),
    "alert_silenced": ("●", "{by} silenced {rule}: {comment}"),
    "notified": ("●", "{alerts} alerts by {notifier}: {outcome}"),
    "action": ("⚡", "{action} {target}: {phase}, {note}"),
    "fault_injected": ("⚡", "{by} injects {fault} into {target}"),
    "run_finished": ("■", "the run is over: {outcome}"),
}


def describe_event(kind: str, who: str, fields: Mapping[str, object]) -> tuple[str, str]:
    """(sign, sentence). A kind of a newer version is told by its name."""
    sign, words = _TEMPLATES.get(kind, ("●", f"{kind} by {{who}}"))
    return sign, words.format_map(_KeepUnknown({"who": who, **fields}))


class _KeepUnknown(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


def event_to_dict(seq: int, kind: str, who: str, at_s: float, fields: Mapping[str, Json]) -> dict[str, Json]:
    sign, words = describe_event(kind, who, fields)
    return {
        "seq": seq,
        "t_s": at_s,
        "kind": kind,
        "who": who,
        "glyph": sign,
        "text": words,
        "fields": dict(fields),
    }


EVENTS_KEPT = 2_000
BATCHES_KEPT = 4_000
BATCHED_ROWS = 100_000  # in all of them: a row takes 88 bytes
REBOOTED_S = 10.0  # a resumed run whose clock differs by more is on another machine, or the same one rebooted
LAUNCHER_COLLECTOR = "watch"  # who writes the launcher's own machine, each second
_LOST = re.compile(r"(worker-\d+) (?:was lost|ended) \((.*)")
_LEFT = re.compile(r"(worker-\d+) left the run")


class RunTrack:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seq = 0
        self.run, self.plan_hash, self.t0_ns, self.started_unix_s = plan.run, "", 0, 0.0
        self.last_ns = 0
        self._shift_ns = 0
        self.workers: dict[str, WorkerTrack] = {}
        self.loss = LossRecord()
        self.generations = Generations()
        self.machines = Machines()
        self.coordinator = CoordinatorTrack()
        self.outcome: str | None = None
        self.over_s: float | None = None  # when it ended; what is written into its log later changes nothing
        self.is_stopping = False
        self.launcher_pid: int | None = None  # of the command that began this session
        self.launcher_node: str | None = None
        self.last_step_s: float | None = None
        self.first_step_s: float | None = None
        self.last_tick_s: float | None = None
        self.max_position = -1
        self.max_gap: int | None = None
        self.skipped = 0
        self.dropped: dict[str, int] = {}
        self.checkpoint: dict[str, Json] | None = None
        self.checkpoint_s: float | None = None
        self.checkpoints = self.checkpoints_failed = self.checkpoints_skipped = 0
        self.checkpoint_write_s = self.checkpoint_pause_s = 0.0
        self.checkpoint_stages = {"copy": Histogram(BOUNDS_S), "write": Histogram(BOUNDS_S)}
        self.collectives = Histogram(BOUNDS_S)  # of the steps that moved something
        self.setbacks = Restarts()
        self.custom: dict[tuple[str, str], CustomRow] = {}
        self.injected: list[tuple[float, str, str]] = []  # when, whom it struck, and what it was
        self.silences: list[Mapping[str, object]] = []
        self.notifications: dict[tuple[str, str], int] = {}
        self.events: deque[dict[str, Json]] = deque(maxlen=EVENTS_KEPT)
        self.batches: deque[Batch] = deque()
        self.newest_rows: list[LaneRow] = []  # of the line of steps that was told last
        self._batched = 0  # rows in them

    def keep_all_events(self) -> deque[dict[str, Json]]:
        """From now on, for somebody who takes them out: else only the newest are kept."""
        self.events = deque(self.events)
        return self.events

    def seconds(self, at_ns: int) -> float:
        return (at_ns + self._shift_ns - self.t0_ns) / 1e9

    def seconds_of_last(self) -> float:
        """The newest moment that the log has told."""
        return (self.last_ns - self.t0_ns) / 1e9

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    def worker(self, name: str) -> WorkerTrack:
        return self.workers.setdefault(name, WorkerTrack(name))

    def take(self, line: str) -> str:
        """One whole line; its kind, and `tick` for one that says that a second is complete."""
        self.seq += 1
        event = json.loads(line)
        if self.seq == 1:
            self._header(event)
            return "header"
        kind, who = str(event["kind"]), str(event["who"])
        if "columns" in event:
            self._columns(kind, who, ColumnReader(event))
            return "tick" if kind == "hosts" and who == LAUNCHER_COLLECTOR else kind
        self._plain(kind, who, event)
        return kind

    def skip(self) -> None:
        """A line that the caller has no use for; lines are counted."""
        self.seq += 1

    def _header(self, event: Mapping[str, object]) -> None:
        assert event["schema"] == SCHEMA, f"this version reads {SCHEMA}, not {event['schema']}"
        self.run, self.plan_hash = str(event["run"]), str(event["plan"])
        self.t0_ns = self.last_ns = int(str(event["t0_ns"]))
        self.started_unix_s = as_float(event["started_unix_s"])

    def _at(self, at_ns: int) -> float:
        """Seconds of the run; the log has been told until then."""
        self.last_ns = max(self.last_ns, at_ns + self._shift_ns)
        return self.seconds(at_ns)

    def _columns(self, kind: str, who: str, columns: ColumnReader) -> None:
        match kind:
            case "steps":
                self._steps(who, columns)
            case "server":
                self._server(columns)
            case "abandoned":
                self.worker(who).abandoned += columns.count
            case "hosts":
                self.machines.take_hosts(columns, self._shift_ns)
                if who == LAUNCHER_COLLECTOR:  # what other machines tell comes late, in batches
                    self.last_tick_s = self._at(max(columns.ints("at_ns")))
                    self.launcher_node = str(columns.of("node")[-1])
            case "gpus":
                self.machines.take_gpus(columns, self._shift_ns)
            case "links":
                self._links(who, columns)
            case "coordinators":
                self.coordinator.take(columns, self.t0_ns - self._shift_ns)
            case "processes":
                self._processes(columns)
            case "custom":
                for row in columns.rows(*CustomRow._fields):
                    one = CustomRow(*row)  # type: ignore[arg-type]  # as the log has it
                    self.custom[one.name, who] = one
            case _:
                pass  # no view needs these

    def _steps(self, who: str, columns: ColumnReader) -> None:
        worker = self.worker(who)
        worker.has_started = True
        fresh = worker.take_steps(columns, self.t0_ns - self._shift_ns)
        self.max_position = max(self.max_position, *columns.ints("position"))
        self.newest_rows = fresh
        self.batches.append(Batch(self.seq, who, fresh))
        self._batched += len(fresh)
        while self._batched > BATCHED_ROWS or len(self.batches) > BATCHES_KEPT:
            self._batched -= len(self.batches.popleft())
        step, rank = self.step, int(who.rpartition("-")[2])
        for position, loss in zip(columns.ints("position"), columns.floats("loss"), strict=True):
            self.loss.take_last(rank, position, loss)
        for row in fresh:
            end_s = row[1] + sum(row[2:10])
            if row[8] > 0:
                self.collectives.add(row[8])
            self.generations.step_ended(row[1], end_s)
            self.last_step_s = max(end_s, self.last_step_s or end_s)
            self.first_step_s = min(row[1], row[1] if self.first_step_s is None else self.first_step_s)
            self.loss.take(step, end_s, row[10], len(self.workers))
            self.last_ns = max(self.last_ns, self.t0_ns + round(end_s * 1e9))

    @property
    def step(self) -> int:
        """Steps of the run that are done."""
        if self.plan.elastic is not None and hides_waiting(self.plan.mode):
            # Torch's workers commit together, and the position is that of a worker's first shard.
            return min(self.plan.steps, self.max_position // self.plan.num_workers + 1)
        if self.plan.elastic is not None:
            return min(self.plan.steps, (self.max_position + 1) // self.plan.num_workers)
        return min(self.plan.steps, sum(w.steps for w in self.workers.values()) // self.plan.num_workers)

    def _server(self, columns: ColumnReader) -> None:
        rows = zip(
            columns.of("op"),
            columns.ints("rank"),
            columns.ints("staleness"),
            columns.ints("gap"),
            columns.ints("version"),
            strict=True,
        )
        for op, rank, staleness, gap, version in rows:
            if op == "apply":
                self.setbacks.applied(version)
                self.worker(f"worker-{rank}").take_staleness(staleness)
                self.max_gap = max(gap, self.max_gap or 0)
            elif op in ("discard", "abandon", "lost"):
                self.dropped[str(op)] = self.dropped.get(str(op), 0) + 1
        self._at(max(columns.ints("at_ns")))

    def _processes(self, columns: ColumnReader) -> None:
        for row in columns.rows(*ProcessRow._fields):
            one = ProcessRow(*row)  # type: ignore[arg-type]  # as the log has it
            if not one.worker.startswith("worker-"):
                continue  # a server trains nothing, and is no worker that lags behind
            worker = self.worker(one.worker)
            worker.memory_bytes, worker.cpu_share = one.memory_bytes, one.cpu_share
            worker.is_stopped = one.is_stopped

    def _links(self, who: str, columns: ColumnReader) -> None:
        worker = self.worker(who)
        for row in columns.rows(*LinkRow._fields):
            worker.link = LinkRow(*row)  # type: ignore[arg-type]  # as the log has it

    def _plain(self, kind: str, who: str, event: dict[str, Json]) -> None:
        fields = {name: value for name, value in event.items() if name not in ("kind", "who", "at_ns")}
        at_ns = int(str(event["at_ns"]))
        if kind == "run_started":
            self._begin_session(at_ns, fields)
        at_s = self._at(at_ns)
        if who.startswith("worker-"):
            self._of_worker(kind, self.worker(who), at_s, fields)
        self._of_run(kind, at_s, fields)
        self.events.append(event_to_dict(self.seq, kind, who, at_s, fields))

    def _begin_session(self, at_ns: int, fields: Mapping[str, object]) -> None:
        """Clocks of another machine, or after a reboot, count from another moment."""
        unix_s = fields.get("unix_s")
        if isinstance(unix_s, int | float):
            differs_s = unix_s - self.started_unix_s - (at_ns - self.t0_ns) / 1e9
            self._shift_ns = round(differs_s * 1e9) if abs(differs_s) > REBOOTED_S else 0
        self.outcome, self.is_stopping, self.over_s = None, False, None
        self.setbacks.begin_session()
        self.loss.begin_session()
        self.launcher_pid = optional_int(fields.get("pid"))
        self.generations.begin_session()
        for worker in self.workers.values():
            worker.has_started = worker.is_finished = worker.is_lost = False

    def _of_worker(self, kind: str, worker: WorkerTrack, at_s: float, fields: Mapping[str, object]) -> None:
        worker.heard(at_s)
        match kind:
            case "worker_started":
                worker.pid, worker.started_s = int(str(fields["pid"])), at_s
                self.setbacks.started(worker)
                worker.node = str(fields["node"]) if fields.get("node") else None
                worker.link = None
                worker.tokens_per_sample = optional_float(fields.get("tokens_per_sample"))
                worker.is_lost = worker.is_finished = worker.is_stopped = worker.is_called_slow = False
                worker.has_started = True
            case "worker_finished":
                worker.is_finished, worker.is_stopped = True, False
            case "generation_entered":
                worker.rank, worker.is_lost = int(str(fields["rank"])), False
                self._entered(at_s, fields)
            case "generation_lost":
                self.generations.lost(at_s, optional_int(fields.get("committed")) or 0)
            case _:
                pass

    def _entered(self, at_s: float, fields: Mapping[str, object]) -> None:
        members = str(fields["workers"]).split(",")
        why, committed = str(fields.get("why", "")), int(str(fields["committed"]))
        self.generations.entered(at_s, int(str(fields["number"])), members, why, committed)

    def _of_run(self, kind: str, at_s: float, fields: dict[str, Json]) -> None:
        match kind:
            case "run_resumed":
                self._resumed(str(fields.get("clocks", "")))
            case "server_restored":
                self.setbacks.restored(optional_int(fields["version"]) or 0)
            case "run_finished":
                self.outcome, self.over_s = str(fields["outcome"]), at_s
            case "stop_requested":
                self.is_stopping = True
            case "evaluated":
                self.loss.evaluated(int(str(fields["step"])), at_s, str(fields["metrics"]))
            case "step_skipped":
                self.skipped += 1
            case "checkpoint" | "checkpoint_failed" | "checkpoint_skipped":
                self._checkpoint(kind, at_s, fields)
            case "slow_worker":
                self.worker(str(fields["worker"])).is_called_slow = bool(fields["is_slow"])
            case "supervision":
                self._supervision(str(fields["decision"]), at_s)
            case "action" if fields.get("phase") == "applied" and fields.get("action") in ("slow", "resume"):
                self.worker(str(fields["target"])).is_called_slow = fields["action"] == "slow"
            case "fault_injected":
                fault = str(fields.get("fault", "?")).partition(" ")[0]  # what comes behind is how much
                self.injected.append((at_s, str(fields.get("target", "")), fault))
            case "alert_silenced":
                self.silences.append({**fields, "until_s": self.seconds(int(str(fields["until_ns"])))})
            case "notified":
                key = (str(fields["notifier"]), str(fields["outcome"]))
                self.notifications[key] = self.notifications.get(key, 0) + 1
            case _:
                pass

    def _supervision(self, decision: str, at_s: float) -> None:
        lost, left = _LOST.match(decision), _LEFT.match(decision)
        if lost is not None:
            self.worker(lost[1]).is_lost, self.worker(lost[1]).lost_because = True, lost[2]
            self.generations.lost_noticed(at_s)
        elif left is not None:
            self.worker(left[1]).is_finished = True

    def _resumed(self, clocks: str) -> None:
        if not clocks:
            return
        kept = [int(clock) for clock in clocks.split(",")]
        before = self.step
        for index, clock in enumerate(kept):
            self.worker(f"worker-{index}").steps = clock
        self.loss.rewound(sum(kept) // max(1, len(kept)))
        self.max_position = min(self.max_position, sum(kept) - 1)
        self.setbacks.went_back(before, self.step)

    def _checkpoint(self, kind: str, at_s: float, fields: dict[str, Json]) -> None:
        if kind == "checkpoint":
            self.checkpoints += 1
            self.checkpoint, self.checkpoint_s = fields, at_s
            write_s, pause_s = (
                as_float(fields.get("write_s", 0.0)),
                as_float(fields.get("snapshot_ns", 0)) / 1e9,
            )
            self.checkpoint_write_s += write_s
            self.checkpoint_pause_s += pause_s
            self.checkpoint_stages["write"].add(write_s)
            self.checkpoint_stages["copy"].add(pause_s)
        elif kind == "checkpoint_failed":
            self.checkpoints_failed += 1
        else:
            self.checkpoints_skipped += 1
