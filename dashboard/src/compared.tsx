// How are runs drawn beside each other? Speed-ups against the ideal, with bars where repeats make them known; shares.

import { phaseColour } from "./state";
import { PHASES, type Json } from "./types";
import { plain, share } from "./words";

export interface Estimate { value: number; low: number | null; high: number | null }
export interface Row {
  run: string; state: string; mode: string; workers: number; batch: number | null; step: number; training_s: number | null; cost_worker_s: number | null;
  samples_per_s: number | null; loss: number | null; best_loss: number | null; staleness_mean: number | null; recoveries: number; recovery_s: number;
  phases: Record<string, number>; curve: [number, number, number | string][]; target_s: number | null;
  repeats: number; throughput: Estimate | null; speedup: Estimate | null; efficiency: Estimate | null; in_words: string;
}
export interface Compared {
  runs: Row[]; differs: [string, Json[]][]; base: string | null; target_loss: number | null; words: string[];
  scaling: { mode: string; serial: number; limit: number | null; curve: [number, number][] }[];
}
export const LINES = ["backward", "comm", "checkpoint", "error", "data", "forward"]; // colours of the runs, in order
const GLYPHS = ["●", "■", "▲", "◆", "★", "✚"]; // the same for who sees no colours

export const around = (found: Estimate | null, unit = "") =>
  found === null ? "–" : `${plain(found.value)}${unit}${found.low === null || found.high === null ? "" : ` (${plain(found.low)}–${plain(found.high)})`}`;

/** Speed-up over workers: dashed the ideal, dotted Amdahl's law where it could be fitted. */
export function Speedups({ found }: { found: Compared }) {
  const rows = found.runs.filter((row) => row.speedup && row.workers > 0);
  const base = rows.find((row) => row.run === found.base);
  if (!base || rows.length < 2) return <p class="muted">Choose two runs that were measured.</p>;
  const most = Math.max(...rows.map((row) => row.workers), base.workers + 1), ideal = most / base.workers;
  const top = Math.max(ideal, ...rows.map((row) => row.speedup!.high ?? row.speedup!.value)) * 1.08;
  const [left, bottom, width, height] = [44, 206, 420, 190];
  const x = (workers: number) => left + ((workers - base.workers) / (most - base.workers)) * (width - 30) + 12;
  const y = (value: number) => bottom - (value / top) * height;
  const ticks = [...new Set(rows.map((row) => row.workers))].sort((a, b) => a - b);
  const step = top > 8 ? Math.ceil(top / 6) : top > 3 ? 1 : 0.5;
  const text = rows.map((row) => `${row.run}, ${row.workers} workers: ${around(row.speedup)} times`).join("; ");
  return (
    <svg class="speedups" viewBox="0 0 480 240" role="img" aria-label={`Speed-up over ${base.run}: ${text}`}>
      {Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => <g key={i}><line class="grid-line" x1={left} x2={left + width} y1={y(i * step)} y2={y(i * step)} /><text x={left - 6} y={y(i * step) + 4} text-anchor="end">{plain(i * step)}×</text></g>)}
      {ticks.map((workers) => <text key={workers} x={x(workers)} y={bottom + 16} text-anchor="middle">{workers}</text>)}
      <text x={left + width / 2} y={bottom + 31} text-anchor="middle">workers</text>
      <line class="ideal" x1={x(base.workers)} y1={y(1)} x2={x(most)} y2={y(ideal)} /><text x={x(most) - 4} y={y(ideal) - 5} text-anchor="end">ideal</text>
      {found.scaling.map((fit) => <polyline key={fit.mode} class="amdahl" points={fit.curve.map(([n, s]) => `${x(n)},${y(s)}`).join(" ")} />)}
      {rows.map((row) => {
        const i = found.runs.indexOf(row), at = x(row.workers), { value, low, high } = row.speedup!, colour = phaseColour(LINES[i % LINES.length]);
        return <g key={row.run} stroke={colour} fill={colour}><title>{`${row.run}: ${around(row.speedup)} times, ${row.in_words}`}</title>
          {low !== null && high !== null && <path d={`M${at},${y(low)}V${y(high)}M${at - 5},${y(low)}h10M${at - 5},${y(high)}h10`} stroke-width="1.5" fill="none" />}
          <text class="point" x={at} y={y(value) + 5} text-anchor="middle" stroke="none" fill={colour}>{GLYPHS[i % GLYPHS.length]}</text></g>;
      })}
    </svg>
  );
}

/** One bar for each run, with its interval; the name in words, never by colour alone. */
export function Bars({ rows, of, unit, label, most }: { rows: Row[]; of: (row: Row) => Estimate | null; unit: string; label: string; most?: number }) {
  const known = rows.map(of).filter((e): e is Estimate => e !== null);
  const top = Math.max(most ?? 0, 1e-9, ...known.map((e) => e.high ?? e.value));
  const at = (value: number) => (Math.max(0, value) / top) * 100;
  return (
    <ul class="bars" aria-label={label}>{rows.map((row, i) => {
      const found = of(row);
      return (
        <li key={row.run}><span class="name"><span aria-hidden="true">{GLYPHS[i % GLYPHS.length]}</span> {row.run}</span>
          <svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">
            {found && <rect width={at(found.value)} height="12" fill={phaseColour(LINES[i % LINES.length])} />}
            {found && found.low !== null && found.high !== null && <path class="whisker" vector-effect="non-scaling-stroke" d={`M${at(found.low)},6H${at(found.high)}M${at(found.low)},2v8M${at(found.high)},2v8`} />}
          </svg><span>{around(found, unit)}</span></li>);
    })}</ul>
  );
}

export function PhaseBars({ rows }: { rows: Row[] }) {
  return <ul class="bars wide-bars" aria-label="Where the time of each run went">{rows.map((row) => <li key={row.run}><span class="name">{row.run}</span><Shares phases={row.phases} /><span>{words(row.phases, 3)}</span></li>)}</ul>;
}

function words(phases: Record<string, number>, most = 8): string {
  return PHASES.filter((p) => (phases[p] ?? 0) >= 0.005).sort((a, b) => phases[b] - phases[a]).slice(0, most).map((p) => `${p} ${share(phases[p])}`).join(", ") || "not known yet";
}

function Shares({ phases }: { phases: Record<string, number> }) {
  let x = 0;
  const text = words(phases);
  return <svg class="phases" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={text}><title>{text}</title>{PHASES.map((p) => { const w = (phases[p] ?? 0) * 100; const rect = <rect key={p} x={x} width={w} height="10" fill={phaseColour(p)} />; x += w; return rect; })}</svg>;
}
