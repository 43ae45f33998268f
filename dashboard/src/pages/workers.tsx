// Workers page: each worker compared with the median worker, and the details of the selected ones.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ActionList, confirmFirst, requestAction } from "../actions";
import { fetchJson } from "../connection";
import { bytes, NOTHING, percent, plain, seconds, si, stateLabel } from "../format";
import { GanttChart, PhaseLegend } from "../gantt_chart";
import { Panel, PhaseBar, State } from "../panel";
import { canAct, canInjectFaults, events, selected, view } from "../state";
import type { Gpu, Json, WorkerRow } from "../types";

type Value = number | string | null;

interface Column {
  name: string;
  title: string;
  isOptional?: boolean; // hidden while no worker has a value
  of: (worker: WorkerRow) => Value;
  show?: (worker: WorkerRow) => ComponentChildren;
}

const FAULT_S = 30;
const sort = signal<{ column: string; direction: 1 | -1 }>({ column: "worker", direction: 1 });
const filter = signal("");

const COLUMNS: Column[] = [
  {
    name: "worker",
    title: "name of the worker",
    of: (w) => Number(w.worker.replace(/\D+/g, "")),
    show: (w) => w.worker,
  },
  {
    name: "node",
    title: "machine of the worker",
    isOptional: true,
    of: (w) => w.node,
    show: (w) => w.node ?? NOTHING,
  },
  { name: "state", title: "state", of: (w) => w.state, show: (w) => <State {...stateLabel(w.state)} /> },
  { name: "step", title: "last step", of: (w) => w.step },
  { name: "lag", title: "steps behind the fastest worker", of: (w) => w.lag },
  {
    name: "step time",
    title: "median step time",
    of: (w) => w.step_p50_s,
    show: (w) => seconds(w.step_p50_s),
  },
  {
    name: "speed",
    title: "speed relative to the median worker",
    of: (w) => w.relative_speed,
    show: (w) => <SpeedMeter value={w.relative_speed} />,
  },
  {
    name: "throughput",
    title: "samples per second",
    of: (w) => w.samples_per_s,
    show: (w) => si(w.samples_per_s, "/s"),
  },
  {
    name: "phases",
    title: "shares of the step time; sorted by wait",
    of: (w) => w.phases.wait ?? 0,
    show: (w) => <PhaseBar phases={w.phases} />,
  },
  {
    name: "comm",
    title: "share of the step time for communication, with compression",
    of: commShare,
    show: (w) => percent(commShare(w)),
  },
  {
    name: "staleness",
    title: "95th percentile",
    of: (w) => w.staleness_p95,
    show: (w) => plain(w.staleness_p95),
  },
  { name: "memory", title: "resident memory", of: (w) => w.memory_bytes, show: (w) => bytes(w.memory_bytes) },
  { name: "CPU", title: "share of one core", of: (w) => w.cpu_share, show: (w) => percent(w.cpu_share) },
  {
    name: "GPU",
    title: "utilization of its GPU",
    isOptional: true,
    of: (w) => gpuOf(w)?.utilization ?? null,
    show: (w) => percent(gpuOf(w)?.utilization),
  },
  {
    name: "GPU memory",
    title: "used memory of its GPU, by all processes",
    isOptional: true,
    of: (w) => gpuOf(w)?.memory_used_bytes ?? null,
    show: (w) => bytes(gpuOf(w)?.memory_used_bytes),
  },
  {
    name: "GPU °C",
    title: "temperature of its GPU",
    isOptional: true,
    of: (w) => gpuOf(w)?.temperature_c ?? null,
    show: (w) => plain(gpuOf(w)?.temperature_c),
  },
  {
    name: "round trip",
    title: "median over its TCP connections, measured by the kernel",
    isOptional: true,
    of: (w) => w.round_trip_s,
    show: (w) => seconds(w.round_trip_s),
  },
  {
    name: "gradient norm",
    title: "maximum of the last second",
    isOptional: true,
    of: (w) => w.gradient_norm,
    show: (w) => plain(w.gradient_norm),
  },
  { name: "restarts", title: "number of earlier processes", of: (w) => w.restarts },
  {
    name: "last seen",
    title: "time since the last event",
    of: (w) => w.last_seen_s,
    show: (w) => seconds(w.last_seen_s),
  },
];

/** Local ranks are assigned to the GPUs of their machine in turn. */
function gpuOf(worker: WorkerRow): Gpu | undefined {
  const now = view.value!;
  if (now.run.device !== "cuda" || worker.rank === null) return undefined;
  const gpus = now.gpus.filter((gpu) => gpu.node === worker.node).sort((a, b) => a.gpu - b.gpu);
  return gpus[worker.rank % gpus.length];
}

function commShare(worker: WorkerRow): number | null {
  const { comm, codec } = worker.phases;
  return comm === undefined ? null : comm + (codec ?? 0);
}

function compareValues(a: Value, b: Value): number {
  if (a === b) return 0;
  if (a === null) return 1;
  if (b === null) return -1;
  return a < b ? -1 : 1;
}

function matchesFilter(worker: WorkerRow): boolean {
  return `${worker.worker} ${stateLabel(worker.state).word} ${worker.node ?? ""}`.includes(filter.value);
}

export function Workers() {
  const now = view.value!;
  const { column: sortedBy, direction } = sort.value;
  const columns = COLUMNS.filter((column) => {
    return !column.isOptional || now.workers.some((worker) => (column.of(worker) ?? null) !== null);
  });
  const sortColumn = columns.find((column) => column.name === sortedBy) ?? columns[0];
  const rows = now.workers
    .filter(matchesFilter)
    .sort((a, b) => compareValues(sortColumn.of(a), sortColumn.of(b)) * direction);
  const first = now.workers.find((worker) => worker.worker === selected.value[0]);
  return (
    <div class="workers">
      <Panel
        title="Workers"
        shows="one row per worker; values of the last minute"
        good="speeds near 100 %, no lag"
        otherwise="sort by speed, and select the slowest worker for the reason"
        side={
          <label>
            Filter{" "}
            <input
              id="filter"
              type="search"
              value={filter.value}
              onInput={(event) => {
                filter.value = event.currentTarget.value;
              }}
            />
          </label>
        }
      >
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of workers">
          <table>
            <thead>
              <tr>
                {columns.map((column) => (
                  <ColumnHeader key={column.name} column={column} />
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((worker) => (
                <TableRow key={worker.worker} worker={worker} columns={columns} />
              ))}
            </tbody>
          </table>
        </div>
      </Panel>
      {first && <WorkerDetails worker={first} />}
    </div>
  );
}

function ColumnHeader({ column }: { column: Column }) {
  const { column: sortedBy, direction } = sort.value;
  const isSorted = column.name === sortedBy;
  const order = direction > 0 ? "ascending" : "descending";
  const arrow = direction > 0 ? " ▴" : " ▾";
  const onClick = () => {
    sort.value = { column: column.name, direction: isSorted ? (-direction as 1 | -1) : 1 };
  };
  return (
    <th scope="col" aria-sort={isSorted ? order : undefined}>
      <button title={column.title} onClick={onClick}>
        {column.name}
        {isSorted ? arrow : ""}
      </button>
    </th>
  );
}

function TableRow({ worker, columns }: { worker: WorkerRow; columns: Column[] }) {
  const isSelected = selected.value.includes(worker.worker);
  const [, ...others] = columns;
  return (
    <tr class={isSelected ? "chosen" : ""} data-worker={worker.worker} data-state={worker.state}>
      <th scope="row">
        <button
          class="link"
          aria-pressed={isSelected}
          onClick={(event) => selectWorker(worker.worker, event.shiftKey)}
        >
          {worker.worker}
        </button>
      </th>
      {others.map((column) => (
        <td key={column.name}>{column.show ? column.show(worker) : plain(column.of(worker))}</td>
      ))}
    </tr>
  );
}

/** With Shift, a worker is added to the selection or removed from it. */
function selectWorker(worker: string, isAdditional: boolean): void {
  const current = selected.value;
  if (!isAdditional) selected.value = [worker];
  else if (current.includes(worker)) selected.value = current.filter((name) => name !== worker);
  else selected.value = [...current, worker];
}

function SpeedMeter({ value }: { value: number | null }) {
  if (value === null || value === undefined) return <>{NOTHING}</>;
  return (
    <span class="bar">
      <meter min={0} max={1.2} low={0.7} optimum={1} value={value} aria-label="relative speed" />{" "}
      {percent(value)}
    </span>
  );
}

function WorkerDetails({ worker }: { worker: WorkerRow }) {
  const names = selected.value;
  const title = names.length > 1 ? `${names.length} workers` : worker.worker;
  const history = events.value
    .filter((event) => event.who === worker.worker || event.fields.target === worker.worker)
    .slice(-12)
    .reverse();
  const place = worker.node ? ` on ${worker.node}` : "";
  return (
    <Panel
      title={title}
      shows="the selected worker, or workers"
      good="its phases are like those of the other workers"
      otherwise="act on it, or read its log"
      class="detail"
      side={<PhaseLegend />}
    >
      <p>
        {worker.why_slow ?? "No phase of its steps differs much from the median worker."}{" "}
        <span class="muted">
          process {worker.pid ?? NOTHING}
          {place}
        </span>
      </p>
      {canAct.value && view.value!.state === "training" && <WorkerActions names={names} title={title} />}
      <GanttChart
        lanes={names}
        height={Math.max(36, names.length * 28)}
        width_s={20}
        label={`Phases of ${title} in the last 20 seconds`}
      />
      <div class="two">
        <div>
          <h3>Events</h3>
          {!history.length && <p class="muted">No events of this worker yet.</p>}
          <ul class="plain">
            {history.map((event) => (
              <li key={event.seq}>
                <span aria-hidden="true">{event.glyph}</span> {event.text}{" "}
                <span class="muted">{seconds(event.t_s)}</span>
              </li>
            ))}
          </ul>
        </div>
        <div>
          <h3>Actions</h3>
          <ActionList limit={2} />
        </div>
      </div>
      <WorkerLog worker={worker.worker} />
    </Panel>
  );
}

function WorkerActions({ names, title }: { names: string[]; title: string }) {
  const forEach = (action: string, options: Record<string, Json> = {}) => {
    for (const worker of names) void requestAction(action, { worker, ...options });
  };
  return (
    <div class="row">
      {canInjectFaults.value && (
        <>
          <button onClick={() => forEach("pause", { for_s: FAULT_S })}>❚❚ Pause {FAULT_S} s</button>
          <button onClick={() => forEach("slow", { factor: 2, for_s: FAULT_S })}>▲ Slow ×2</button>
          <button onClick={() => forEach("slow", { factor: 4, for_s: FAULT_S })}>▲ Slow ×4</button>
          <button
            class="danger"
            onClick={() => confirmFirst(`Kill ${title}?`, "Kill", () => forEach("kill"))}
          >
            ✕ Kill
          </button>
        </>
      )}
      <button onClick={() => forEach("resume")}>● Resume</button>
    </div>
  );
}

function WorkerLog({ worker }: { worker: string }) {
  const [lines, setLines] = useState<string[] | null>(null);
  useEffect(() => setLines(null), [worker]);
  const load = () => {
    fetchJson<{ lines: string[] }>("/api/v1/logs", { worker }).then(
      (response) => setLines(response.lines),
      (error: Error) => setLines([error.message]),
    );
  };
  const onToggle = (event: Event) => {
    if ((event.currentTarget as HTMLDetailsElement).open) load();
  };
  const text = lines === null ? "Loading …" : lines.join("\n") || "The log is empty.";
  return (
    <details onToggle={onToggle}>
      <summary>Log</summary>
      <pre tabIndex={0} aria-label={`Log of ${worker}`}>
        {text}
      </pre>
    </details>
  );
}
