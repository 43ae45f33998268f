// Who is slow, and why?

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { act, Actions, confirmed } from "../acting";
import { ask } from "../connection";
import { GanttBox } from "../ganttbox";
import { Panel, State } from "../panel";
import { events, mayAct, mayStrike, phaseColour, selected, view } from "../state";
import { PHASES, type Gpu, type WorkerRow } from "../types";
import { NOTHING, bytes, plain, seconds, share, si, stateOf } from "../words";

const sort = signal<[string, 1 | -1]>(["worker", 1]);
const filter = signal("");
type Column = { name: string; ifKnown?: boolean; of: (w: WorkerRow) => number | string | null; show?: (w: WorkerRow) => preact.ComponentChildren; title: string };
const COLUMNS: Column[] = [
  { name: "worker", title: "its name", of: (w) => Number(w.worker.replace(/\D+/g, "")), show: (w) => w.worker },
  { name: "node", title: "the machine that it is on", ifKnown: true, of: (w) => w.node, show: (w) => w.node ?? NOTHING },
  { name: "state", title: "what it does", of: (w) => w.state, show: (w) => <State {...stateOf(w.state)} /> },
  { name: "step", title: "of the run", of: (w) => w.step },
  { name: "lag", title: "steps behind the first", of: (w) => w.lag },
  { name: "step time", title: "median", of: (w) => w.step_p50_s, show: (w) => seconds(w.step_p50_s) },
  { name: "speed", title: "of the median worker's", of: (w) => w.relative_speed, show: (w) => <Bar share={w.relative_speed} /> },
  { name: "samples", title: "a second", of: (w) => w.samples_per_s, show: (w) => si(w.samples_per_s, "/s") },
  { name: "phases", title: "what its time goes into", of: (w) => w.phases.wait ?? 0, show: (w) => <Phases phases={w.phases} /> },
  { name: "comm", title: "share of its time that it communicates", of: (w) => comm(w), show: (w) => share(comm(w)) },
  { name: "staleness", title: "p95", of: (w) => w.staleness_p95, show: (w) => plain(w.staleness_p95) },
  { name: "memory", title: "resident", of: (w) => w.memory_bytes, show: (w) => bytes(w.memory_bytes) },
  { name: "CPU", title: "of one core", of: (w) => w.cpu_share, show: (w) => share(w.cpu_share) },
  { name: "GPU", title: "utilization of its GPU", ifKnown: true, of: (w) => gpuOf(w)?.utilization ?? null, show: (w) => share(gpuOf(w)?.utilization) },
  { name: "GPU memory", title: "used on its GPU, by whomever", ifKnown: true, of: (w) => gpuOf(w)?.memory_used_bytes ?? null, show: (w) => bytes(gpuOf(w)?.memory_used_bytes) },
  { name: "GPU °C", title: "temperature of its GPU", ifKnown: true, of: (w) => gpuOf(w)?.temperature_c ?? null, show: (w) => plain(gpuOf(w)?.temperature_c) },
  { name: "round trip", title: "median of its TCP connections, measured by the kernel", ifKnown: true, of: (w) => w.round_trip_s, show: (w) => seconds(w.round_trip_s) },
  { name: "gradient", title: "norm, the largest of the newest second", ifKnown: true, of: (w) => w.gradient_norm, show: (w) => plain(w.gradient_norm) },
  { name: "restarts", title: "processes before this one", of: (w) => w.restarts },
  { name: "seen", title: "seconds ago", of: (w) => w.last_seen_s, show: (w) => seconds(w.last_seen_s) },
];

/** Local ranks take the GPUs of their machine in turn. */
function gpuOf(w: WorkerRow): Gpu | undefined {
  const now = view.value!;
  if (now.run.device !== "cuda" || w.rank === null) return undefined;
  const mine = now.gpus.filter((gpu) => gpu.node === w.node).sort((a, b) => a.gpu - b.gpu);
  return mine[w.rank % mine.length];
}

const comm = (w: WorkerRow) => (w.phases.comm === undefined ? null : w.phases.comm + (w.phases.codec ?? 0));

export function Workers() {
  const now = view.value!;
  const [name, way] = sort.value;
  const shown = COLUMNS.filter((c) => !c.ifKnown || now.workers.some((w) => c.of(w) !== null && c.of(w) !== undefined));
  const column = shown.find((c) => c.name === name) ?? shown[0];
  const rows = now.workers.filter((w) => `${w.worker} ${stateOf(w.state).word} ${w.node ?? ""}`.includes(filter.value)).sort((a, b) => compare(column.of(a), column.of(b)) * way);
  const chosen = now.workers.find((w) => w.worker === selected.value[0]);
  return (
    <div class="workers">
      <Panel title="Workers" what="one row for each worker; numbers of the last minute" good="speeds near 100 %, no lag" todo="sort by speed; choose the slowest, and read why"
        side={<label>Filter <input id="filter" type="search" value={filter.value} onInput={(e) => { filter.value = e.currentTarget.value; }} /></label>}>
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of workers">
          <table>
            <thead><tr>{shown.map((c) => <th key={c.name} scope="col" aria-sort={c.name === name ? (way > 0 ? "ascending" : "descending") : undefined}><button title={c.title} onClick={() => { sort.value = [c.name, c.name === name ? (-way as 1 | -1) : 1]; }}>{c.name}{c.name === name ? (way > 0 ? " ▴" : " ▾") : ""}</button></th>)}</tr></thead>
            <tbody>{rows.map((w) => (
              <tr key={w.worker} class={selected.value.includes(w.worker) ? "chosen" : ""} data-worker={w.worker} data-state={w.state}>
                {shown.map((c, i) => i === 0
                  ? <th scope="row" key={c.name}><button class="link" aria-pressed={selected.value.includes(w.worker)} onClick={(e) => choose(w.worker, e.shiftKey)}>{w.worker}</button></th>
                  : <td key={c.name}>{c.show ? c.show(w) : plain(c.of(w))}</td>)}
              </tr>))}
            </tbody>
          </table>
        </div>
      </Panel>
      {chosen && <Detail worker={chosen} />}
    </div>
  );
}

function choose(worker: string, more: boolean): void {
  const all = selected.value;
  selected.value = !more ? [worker] : all.includes(worker) ? all.filter((name) => name !== worker) : [...all, worker];
}

function compare(a: number | string | null, b: number | string | null): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  return a < b ? -1 : a > b ? 1 : 0;
}

function Bar({ share: value }: { share: number | null }) {
  if (value === null || value === undefined) return <>{NOTHING}</>;
  return <span class="bar"><meter min={0} max={1.2} low={0.7} optimum={1} value={value} aria-label="relative speed" /> {share(value)}</span>;
}

function Phases({ phases }: { phases: Record<string, number> }) {
  let x = 0;
  const text = PHASES.map((p) => `${p} ${share(phases[p] ?? 0)}`).join(", ");
  return <svg class="phases" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={text}><title>{text}</title>{PHASES.map((p) => { const w = (phases[p] ?? 0) * 100; const rect = <rect key={p} x={x} width={w} height="10" fill={phaseColour(p)} />; x += w; return rect; })}</svg>;
}

function Detail({ worker }: { worker: WorkerRow }) {
  const names = selected.value;
  const history = events.value.filter((e) => e.who === worker.worker || e.fields.target === worker.worker).slice(-12).reverse();
  const many = names.length > 1 ? `${names.length} workers` : worker.worker;
  const each = (action: string, more = {}) => { for (const name of names) void act(action, { worker: name, ...more }); };
  return (
    <Panel title={many} what="one worker alone" good="its phases look like everybody's" todo="act on it, or read its log" class="detail">
      <p>{worker.why_slow ?? "No phase of its steps differs much from the median worker's."} <span class="muted">process {worker.pid ?? NOTHING}{worker.node ? ` on ${worker.node}` : ""}</span></p>
      {mayAct.value && view.value!.state === "training" && (
        <div class="row">
          {mayStrike.value && <>
            <button onClick={() => each("pause", { for_s: 30 })}>❚❚ Pause 30 s</button>
            <button onClick={() => each("slow", { factor: 2, for_s: 30 })}>▲ Slow ×2</button>
            <button onClick={() => each("slow", { factor: 4, for_s: 30 })}>▲ Slow ×4</button>
            <button class="danger" onClick={() => confirmed(`Kill ${many}?`, "Kill", () => each("kill"))}>✕ Kill</button>
          </>}
          <button onClick={() => each("resume")}>● Resume</button>
        </div>
      )}
      <GanttBox lanes={names} height={Math.max(36, names.length * 28)} width_s={20} label={`Phases of ${many} in the last 20 seconds`} />
      <div class="two">
        <div><h3>What happened to it</h3><ul class="plain">{history.map((e) => <li key={e.seq}><span aria-hidden="true">{e.glyph}</span> {e.text} <span class="muted">{seconds(e.t_s)}</span></li>)}</ul></div>
        <div><h3>Asked of the run</h3><Actions most={2} /></div>
      </div>
      <Log worker={worker.worker} />
    </Panel>
  );
}

function Log({ worker }: { worker: string }) {
  const [lines, setLines] = useState<string[] | null>(null);
  useEffect(() => setLines(null), [worker]);
  const load = () => void ask<{ lines: string[] }>("/api/v1/logs", { worker }).then((found) => setLines(found.lines), (error: Error) => setLines([error.message]));
  return <details onToggle={(e) => { if (e.currentTarget.open) load(); }}><summary>What it printed</summary><pre tabIndex={0} aria-label={`Log of ${worker}`}>{lines === null ? "…" : lines.join("\n") || "nothing"}</pre></details>;
}
