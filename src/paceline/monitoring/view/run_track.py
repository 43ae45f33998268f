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
    "run_started": ("▶", "run started"),
    "run_resumed": ("▶", "run resumed from version {version}"),
    "worker_started": ("◐", "{who} is ready (process {pid})"),
    "worker_finished": ("✔", "{who} finished after {steps} steps: {reason}"),
    "worker_lost": ("✕", "process lost: {cause}"),
    "stop_requested": ("■", "stop requested by {by}"),
    "checkpoint": ("✚", "checkpoint written at step {step} by {who}"),
    "checkpoint_failed": ("✕", "checkpoint at step {step} failed: {reason}"),
    "checkpoint_skipped": ("▲", "checkpoint at step {step} skipped: earlier ones are still being written"),
    "evaluated": ("◇", "evaluated after step {step}: {metrics}"),
    "early_stop": ("■", "stopped early after step {step}: {reason}"),
    "adapted": ("⇄", "policy changed after step {step} from {from} to {to}: {reason}"),
    "generation_entered": ("■", "{who} enters generation {number}: {why}"),
    "generation_lost": ("▲", "{who} leaves generation {number}: {why}"),
    "server_started": ("◐", "{who} serves part {part} from version {version}"),
    "server_promoted": ("▲", "{who} took over part {part} from {instead_of}"),
    "server_restored": ("▲", "part {part} rolled back to version {version}"),
    "backup_placed": ("✚", "{backup} is the backup of part {part}"),
    "push_refused": ("▲", "{who}: work unit {position} had been reassigned, so its push was rejected"),
    "error_memory_reset": ("▲", "{who}: error memory reset: {why}"),
    "supervision": ("●", "{decision}"),
    "slow_worker": ("▲", "{worker}: {reason}"),
    "shards_dealt": ("⇄", "shards are redistributed from step {step}: {reason}"),
    "step_skipped": ("▲", "step {step} skipped: the gradient of {shards} was not finite"),
    "alert_silenced": ("●", "{by} silenced {rule}: {comment}"),
    "notified": ("●", "{alerts} alerts by {notifier}: {outcome}"),
    "action": ("⚡", "{action} {target}: {phase}, {note}"),
    "fault_injected": ("⚡", "{by} injects {fault} into {target}"),
    "run_finished": ("■", "run ended: {outcome}"),
}


def describe_event(kind: str, participant: str, fields: Mapping[str, object]) -> tuple[str, str]:
    """(sign, sentence). A kind of a newer version is described by its name."""
    sign, template = _TEMPLATES.get(kind, ("●", f"{kind} by {{who}}"))
    values = {"who": participant, **fields}
    if kind == "evaluated":
        values["metrics"] = _describe_metrics(str(fields.get("metrics", "")))
    return sign, template.format_map(_KeepUnknown(values))


def _describe_metrics(text: str) -> str:
    """`{"valid_loss": 0.25}` becomes `valid_loss 0.25`; a text that is not such an object is kept."""
    try:
        metrics = json.loads(text)
    except ValueError:
        return text
    if not isinstance(metrics, dict):
        return text
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
    )


class _KeepUnknown(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


def event_to_dict(
    seq: int, kind: str, participant: str, at_s: float, fields: Mapping[str, Json]
) -> dict[str, Json]:
    sign, text = describe_event(kind, participant, fields)
    return {
        "seq": seq,
        "t_s": at_s,
        "kind": kind,
        "who": participant,
        "glyph": sign,
        "text": text,
        "fields": dict(fields),
    }


EVENTS_KEPT = 2_000
BATCHES_KEPT = 4_000
BATCHED_ROWS = 100_000  # total of all batches: a row takes 88 bytes
REBOOTED_S = 10.0  # a resumed run whose clock differs by more is on another machine, or the same one rebooted
LAUNCHER_COLLECTOR = "watch"  # `who` of the launcher's own machine, each second
_LOST = re.compile(r"(worker-\d+) (?:was lost|ended) \((.*)")
_LEFT = re.compile(r"(worker-\d+) left the run")


class RunTrack:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seq = 0
        self.run = plan.run
        self.plan_hash = ""
        self.t0_ns = 0
        self.started_unix_s = 0.0
        self.last_ns = 0
        self._shift_ns = 0
        self.workers: dict[str, WorkerTrack] = {}
        self.loss = LossRecord()
        self.generations = Generations()
        self.machines = Machines()
        self.coordinator = CoordinatorTrack()
        self.outcome: str | None = None
        self.over_s: float | None = None  # when it ended; later lines do not change it
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
        self.collectives = Histogram(BOUNDS_S)  # of the steps with traffic
        self.setbacks = Restarts()
        self.custom: dict[tuple[str, str], CustomRow] = {}
        self.injected: list[tuple[float, str, str]] = []  # (time, target, fault)
        self.silences: list[Mapping[str, object]] = []
        self.notifications: dict[tuple[str, str], int] = {}
        self.events: deque[dict[str, Json]] = deque(maxlen=EVENTS_KEPT)
        self.batches: deque[Batch] = deque()
        self.newest_rows: list[LaneRow] = []  # of the newest line of kind `steps`
        self._batched = 0  # rows in them

    def keep_all_events(self) -> deque[dict[str, Json]]:
        """Keep all events from now on, for a caller that consumes them; the default keeps the newest."""
        self.events = deque(self.events)
        return self.events

    def seconds(self, at_ns: int) -> float:
        return (at_ns + self._shift_ns - self.t0_ns) / 1e9

    def seconds_of_last(self) -> float:
        """The newest time in the log."""
        return (self.last_ns - self.t0_ns) / 1e9

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    def worker(self, name: str) -> WorkerTrack:
        return self.workers.setdefault(name, WorkerTrack(name))

    def take(self, line: str) -> str:
        """Take one whole line; return its kind, or `tick` for the line that completes a second."""
        self.seq += 1
        event = json.loads(line)
        if self.seq == 1:
            self._header(event)
            return "header"
        kind = str(event["kind"])
        participant = str(event["who"])
        if "columns" in event:
            self._take_columns(kind, participant, ColumnReader(event))
            return "tick" if kind == "hosts" and participant == LAUNCHER_COLLECTOR else kind
        self._take_plain(kind, participant, event)
        return kind

    def skip(self) -> None:
        """Count a line without reading it."""
        self.seq += 1

    def _header(self, event: Mapping[str, object]) -> None:
        assert event["schema"] == SCHEMA, f"this version reads {SCHEMA}, not {event['schema']}"
        self.run = str(event["run"])
        self.plan_hash = str(event["plan"])
        self.t0_ns = self.last_ns = int(str(event["t0_ns"]))
        self.started_unix_s = as_float(event["started_unix_s"])

    def _at(self, at_ns: int) -> float:
        """Convert to seconds of the run, and advance `last_ns`."""
        self.last_ns = max(self.last_ns, at_ns + self._shift_ns)
        return self.seconds(at_ns)

    def _take_columns(self, kind: str, participant: str, columns: ColumnReader) -> None:
        match kind:
            case "steps":
                self._steps(participant, columns)
            case "server":
                self._server(columns)
            case "abandoned":
                self.worker(participant).abandoned += columns.count
            case "hosts":
                self.machines.take_hosts(columns, self._shift_ns)
                if participant == LAUNCHER_COLLECTOR:  # samples of other machines arrive late, in batches
                    self.last_tick_s = self._at(max(columns.ints("at_ns")))
                    self.launcher_node = str(columns.of("node")[-1])
            case "gpus":
                self.machines.take_gpus(columns, self._shift_ns)
            case "links":
                self._links(participant, columns)
            case "coordinators":
                self.coordinator.take(columns, self.t0_ns - self._shift_ns)
            case "processes":
                self._processes(columns)
            case "custom":
                for row in columns.rows(*CustomRow._fields):
                    custom_row = CustomRow(*row)  # type: ignore[arg-type]  # as the log has it
                    self.custom[custom_row.name, participant] = custom_row
            case _:
                pass  # no view needs these

    def _steps(self, participant: str, columns: ColumnReader) -> None:
        worker = self.worker(participant)
        worker.has_started = True
        new_rows = worker.take_steps(columns, self.t0_ns - self._shift_ns)
        self.max_position = max(self.max_position, *columns.ints("position"))
        self.newest_rows = new_rows
        self.batches.append(Batch(self.seq, participant, new_rows))
        self._batched += len(new_rows)
        while self._batched > BATCHED_ROWS or len(self.batches) > BATCHES_KEPT:
            self._batched -= len(self.batches.popleft())
        step = self.step
        rank = int(participant.rpartition("-")[2])
        for position, loss in zip(columns.ints("position"), columns.floats("loss"), strict=True):
            self.loss.take_last(rank, position, loss)
        for row in new_rows:
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
            process = ProcessRow(*row)  # type: ignore[arg-type]  # as the log has it
            if not process.worker.startswith("worker-"):
                continue  # a server does not train, so it cannot lag behind
            worker = self.worker(process.worker)
            worker.memory_bytes = process.memory_bytes
            worker.cpu_share = process.cpu_share
            worker.is_stopped = process.is_stopped

    def _links(self, participant: str, columns: ColumnReader) -> None:
        worker = self.worker(participant)
        for row in columns.rows(*LinkRow._fields):
            worker.link = LinkRow(*row)  # type: ignore[arg-type]  # as the log has it

    def _take_plain(self, kind: str, participant: str, event: dict[str, Json]) -> None:
        fields = {name: value for name, value in event.items() if name not in ("kind", "who", "at_ns")}
        at_ns = int(str(event["at_ns"]))
        if kind == "run_started":
            self._begin_session(at_ns, fields)
        at_s = self._at(at_ns)
        if participant.startswith("worker-"):
            self._take_worker_event(kind, self.worker(participant), at_s, fields)
        self._take_run_event(kind, at_s, fields)
        self.events.append(event_to_dict(self.seq, kind, participant, at_s, fields))

    def _begin_session(self, at_ns: int, fields: Mapping[str, object]) -> None:
        """The clock of another machine, or after a reboot, has another origin."""
        unix_s = fields.get("unix_s")
        if isinstance(unix_s, int | float):
            differs_s = unix_s - self.started_unix_s - (at_ns - self.t0_ns) / 1e9
            self._shift_ns = round(differs_s * 1e9) if abs(differs_s) > REBOOTED_S else 0
        self.outcome = None
        self.is_stopping = False
        self.over_s = None
        self.setbacks.begin_session()
        self.loss.begin_session()
        self.launcher_pid = optional_int(fields.get("pid"))
        self.generations.begin_session()
        for worker in self.workers.values():
            worker.has_started = worker.is_finished = worker.is_lost = False

    def _take_worker_event(
        self, kind: str, worker: WorkerTrack, at_s: float, fields: Mapping[str, object]
    ) -> None:
        worker.note_activity(at_s)
        match kind:
            case "worker_started":
                worker.pid = int(str(fields["pid"]))
                worker.started_s = at_s
                self.setbacks.started(worker)
                worker.node = str(fields["node"]) if fields.get("node") else None
                worker.link = None
                worker.tokens_per_sample = optional_float(fields.get("tokens_per_sample"))
                worker.is_lost = worker.is_finished = worker.is_stopped = worker.is_called_slow = False
                worker.has_started = True
            case "worker_finished":
                worker.is_finished = True
                worker.is_stopped = False
            case "generation_entered":
                worker.rank = int(str(fields["rank"]))
                worker.is_lost = False
                self._enter_generation(at_s, fields)
            case "generation_lost":
                self.generations.lost(at_s, optional_int(fields.get("committed")) or 0)
            case _:
                pass

    def _enter_generation(self, at_s: float, fields: Mapping[str, object]) -> None:
        members = str(fields["workers"]).split(",")
        why = str(fields.get("why", ""))
        committed = int(str(fields["committed"]))
        self.generations.entered(at_s, int(str(fields["number"])), members, why, committed)

    def _take_run_event(self, kind: str, at_s: float, fields: dict[str, Json]) -> None:
        match kind:
            case "run_resumed":
                self._take_resume(str(fields.get("clocks", "")))
            case "server_restored":
                self.setbacks.restored(optional_int(fields["version"]) or 0)
            case "run_finished":
                self.outcome = str(fields["outcome"])
                self.over_s = at_s
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
                self._take_supervision(str(fields["decision"]), at_s)
            case "action" if fields.get("phase") == "applied" and fields.get("action") in ("slow", "resume"):
                self.worker(str(fields["target"])).is_called_slow = fields["action"] == "slow"
            case "fault_injected":
                fault = str(fields.get("fault", "?")).partition(" ")[0]  # the rest is its strength
                self.injected.append((at_s, str(fields.get("target", "")), fault))
            case "alert_silenced":
                self.silences.append({**fields, "until_s": self.seconds(int(str(fields["until_ns"])))})
            case "notified":
                key = (str(fields["notifier"]), str(fields["outcome"]))
                self.notifications[key] = self.notifications.get(key, 0) + 1
            case _:
                pass

    def _take_supervision(self, decision: str, at_s: float) -> None:
        lost = _LOST.match(decision)
        left = _LEFT.match(decision)
        if lost is not None:
            self.worker(lost[1]).is_lost = True
            self.worker(lost[1]).lost_because = lost[2]
            self.generations.lost_noticed(at_s)
        elif left is not None:
            self.worker(left[1]).is_finished = True

    def _take_resume(self, clocks: str) -> None:
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
            self.checkpoint = fields
            self.checkpoint_s = at_s
            write_s = as_float(fields.get("write_s", 0.0))
            pause_s = as_float(fields.get("snapshot_ns", 0)) / 1e9
            self.checkpoint_write_s += write_s
            self.checkpoint_pause_s += pause_s
            self.checkpoint_stages["write"].add(write_s)
            self.checkpoint_stages["copy"].add(pause_s)
        elif kind == "checkpoint_failed":
            self.checkpoints_failed += 1
        else:
            self.checkpoints_skipped += 1
