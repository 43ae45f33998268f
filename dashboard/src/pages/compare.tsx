// Which run was better, in what?

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { Chart, type Line } from "../chart";
import { ask } from "../connection";
import { Panel } from "../panel";
import { phaseColour, server, theme } from "../state";
import { PHASES, type Json } from "../types";
import { plain, seconds, share, si } from "../words";

interface Row { run: string; state: string; mode: string; workers: number; step: number; training_s: number | null; samples_per_s: number | null; loss: number | null; best_loss: number | null; staleness_mean: number | null; recoveries: number; phases: Record<string, number>; curve: [number, number, number | string][] }
interface Compared { runs: Row[]; differs: [string, Json[]][] }
const MOST = 5;
const LINES = ["backward", "comm", "checkpoint", "error", "data"];
const chosen = signal<string[]>([]);

export function Compare() {
  const [all, setAll] = useState<{ run: string; mode: string | null; task: string | null }[]>([]);
  const [found, setFound] = useState<Compared | null>(null);
  useEffect(() => {
    void ask<{ runs: { run: string; mode: string | null; task: string | null }[] }>("/api/v1/runs").then((answer) => {
      setAll(answer.runs);
      if (!chosen.value.length) {
        const mine = server.value?.run;
        const others = answer.runs.map((row) => row.run).filter((name) => name !== mine);
        chosen.value = [...(mine ? [mine] : []), ...others].slice(0, 2);
      }
    });
  }, []);
  const names = chosen.value.join();
  useEffect(() => {
    if (names) void ask<Compared>("/api/v1/compare", { runs: names }).then(setFound, () => setFound(null));
  }, [names]);
  const flip = (name: string) => { chosen.value = chosen.value.includes(name) ? chosen.value.filter((n) => n !== name) : [...chosen.value, name].slice(-MOST); };
  return (
    <div class="compare">
      <Panel title="Runs" what="the runs in this folder, newest first" good="choose two to five that differ in one thing" todo="start more: paceline compare">
        <ul class="names" tabIndex={0} aria-label="Runs">{all.map((row) => <li key={row.run}><button aria-pressed={chosen.value.includes(row.run)} onClick={() => flip(row.run)}>{row.run} <span class="muted">{row.mode} {row.task}</span></button></li>)}</ul>
      </Panel>
      {found && <>
        <Numbers rows={found.runs} />
        <Panel title="Loss over time" what="how each run's loss fell, by the clock" good="the lowest line soonest" todo="compare by samples, too: fast is not the same as good"><Curves rows={found.runs} by="time" /></Panel>
        <Panel title="Loss by step" what="the same by steps of the run" good="lines on each other: the mode costs no quality" todo="a higher line learns less from each step"><Curves rows={found.runs} by="step" /></Panel>
        <Panel title="Settings that differ" what="of the plans, only what is not the same" good="one line" todo="more than one: you compare several things at once"><Differences found={found} /></Panel>
      </>}
    </div>
  );
}

function Numbers({ rows }: { rows: Row[] }) {
  const base = rows[0]?.samples_per_s ?? null;
  return (
    <Panel title="Side by side" what="what each run came to" good="depends on what you want: time, quality, bytes" todo="differences below a few percent are noise unless repeated; `paceline compare` repeats and says so">
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of runs"><table>
        <thead><tr>{["run", "mode", "workers", "state", "steps", "training", "samples/s", "of the first", "loss", "staleness", "recoveries", "phases"].map((h) => <th scope="col" key={h}>{h}</th>)}</tr></thead>
        <tbody>{rows.map((row) => <tr key={row.run}><th scope="row">{row.run}</th><td>{row.mode}</td><td>{row.workers}</td><td>{row.state}</td><td>{plain(row.step)}</td><td>{seconds(row.training_s)}</td><td>{si(row.samples_per_s)}</td><td>{base && row.samples_per_s ? share(row.samples_per_s / base) : "–"}</td><td>{plain(row.loss)}</td><td>{plain(row.staleness_mean)}</td><td>{row.recoveries}</td><td><Shares phases={row.phases} /></td></tr>)}</tbody>
      </table></div>
    </Panel>
  );
}

function Shares({ phases }: { phases: Record<string, number> }) {
  let x = 0;
  const text = PHASES.filter((p) => (phases[p] ?? 0) >= 0.005).map((p) => `${p} ${share(phases[p])}`).join(", ") || "not known yet";
  return <svg class="phases" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={text}><title>{text}</title>{PHASES.map((p) => { const w = (phases[p] ?? 0) * 100; const rect = <rect key={p} x={x} width={w} height="10" fill={phaseColour(p)} />; x += w; return rect; })}</svg>;
}

/** All runs on one axis: between its own points a run has no value. */
function Curves({ rows, by }: { rows: Row[]; by: "time" | "step" }) {
  const at = by === "time" ? 1 : 0;
  const first = new Map(rows.map((row) => [row.run, by === "time" ? row.curve[0]?.[1] ?? 0 : 0]));
  const xs = [...new Set(rows.flatMap((row) => row.curve.map((p) => p[at] - first.get(row.run)!)))].sort((a, b) => a - b);
  const lines: Line[] = rows.map((row, i) => {
    const values = new Map(row.curve.map((p) => [p[at] - first.get(row.run)!, typeof p[2] === "number" ? p[2] : null]));
    return { label: row.run, values: xs.map((x) => values.get(x) ?? null), colour: phaseColour(LINES[i % LINES.length]), strong: true, dash: i ? [8, 2 + 2 * i] : undefined };
  });
  return <Chart key={theme.value} label={`Loss of ${rows.length} runs by ${by}`} x={xs} lines={lines} height={220} overTime={by === "time"} />;
}

function Differences({ found }: { found: Compared }) {
  if (!found.differs.length) return <p class="muted">They have the same plan.</p>;
  const text = (value: Json) => (value === null || value === undefined ? "–" : Array.isArray(value) ? value.join(", ") : String(value));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of settings"><table>
      <thead><tr><th scope="col">setting</th>{found.runs.map((row) => <th scope="col" key={row.run}>{row.run}</th>)}</tr></thead>
      <tbody>{found.differs.slice(0, 40).map(([name, values]) => <tr key={name}><th scope="row">{name}</th>{values.map((value, i) => <td key={i}>{text(value)}</td>)}</tr>)}</tbody>
    </table></div>
  );
}
