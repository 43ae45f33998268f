// Charts of the Compare page: speedup against the ideal, bars with intervals, shares of phases.

import { summarizeEvaluations, summarizeResult, type MetricSummary } from "./evaluation";
import { NOTHING, plain } from "./format";
import { describePhases, PhaseBar } from "./panel";
import { phaseColour } from "./state";
import type { Evaluation, Json, LossPoint, Metrics, Phase } from "./types";

export interface Estimate {
  value: number;
  low: number | null;
  high: number | null;
}

export interface ComparedRun {
  run: string;
  state: string;
  mode: string;
  workers: number;
  batch: number | null;
  step: number;
  training_s: number | null;
  cost_worker_s: number | null;
  samples_per_s: number | null;
  loss: number | null;
  best_loss: number | null;
  metrics: Metrics | null; // of the finished model
  evaluations: Evaluation[];
  staleness_mean: number | null;
  recoveries: number;
  recovery_s: number;
  phases: Record<string, number>;
  curve: LossPoint[];
  target_s: number | null;
  repeats: number;
  throughput: Estimate | null;
  speedup: Estimate | null;
  efficiency: Estimate | null;
  in_words: string;
}

export interface Comparison {
  runs: ComparedRun[];
  differs: [string, Json[]][];
  base: string | null;
  target_loss: number | null;
  words: string[];
  scaling: { mode: string; serial: number; limit: number | null; curve: [number, number][] }[];
}

const COLOURS: Phase[] = ["backward", "comm", "apply", "codec", "data", "forward"]; // of the runs, in order
const GLYPHS = ["●", "■", "▲", "◆", "★", "✚"]; // for readers who do not see colours

const PLOT = { left: 44, bottom: 206, width: 420, height: 190 };

export function runColour(index: number): string {
  return phaseColour(COLOURS[index % COLOURS.length]);
}

function runGlyph(index: number): string {
  return GLYPHS[index % GLYPHS.length];
}

/** The metric of the finished model, else of the newest evaluation; null: there is none. */
export function lastMetric(row: ComparedRun): MetricSummary | null {
  return summarizeResult(row.metrics) ?? summarizeEvaluations(row.evaluations);
}

/** The best evaluation during training. */
export function bestMetric(row: ComparedRun): MetricSummary | null {
  return summarizeEvaluations(row.evaluations);
}

export function formatEstimate(estimate: Estimate | null, unit = ""): string {
  if (estimate === null) return NOTHING;
  const { value, low, high } = estimate;
  const interval = low === null || high === null ? "" : ` (${plain(low)}–${plain(high)})`;
  return `${plain(value)}${unit}${interval}`;
}

export function canShowSpeedup(comparison: Comparison): boolean {
  const rows = comparison.runs.filter((row) => row.speedup && row.workers > 0);
  return rows.length > 1 && rows.some((row) => row.run === comparison.base);
}

/** Speedup over workers; dashed: ideal, dotted: Amdahl's law where it could be fitted. */
export function SpeedupChart({ comparison }: { comparison: Comparison }) {
  if (!canShowSpeedup(comparison)) return null;
  const rows = comparison.runs.filter((row) => row.speedup && row.workers > 0);
  const base = rows.find((row) => row.run === comparison.base)!;
  const maxWorkers = Math.max(...rows.map((row) => row.workers), base.workers + 1);
  const ideal = maxWorkers / base.workers;
  const top = Math.max(ideal, ...rows.map((row) => row.speedup!.high ?? row.speedup!.value)) * 1.08;
  const { left, bottom, width, height } = PLOT;
  const x = (workers: number) => {
    return left + 12 + ((workers - base.workers) / (maxWorkers - base.workers)) * (width - 30);
  };
  const y = (value: number) => bottom - (value / top) * height;
  const workerTicks = [...new Set(rows.map((row) => row.workers))].sort((a, b) => a - b);
  const step = tickStep(top);
  const valueTicks = Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
  const text = rows.map((row) => `${row.run}, ${row.workers} workers: ${formatEstimate(row.speedup, "×")}`);
  return (
    <svg
      class="speedups"
      viewBox="0 0 480 240"
      role="img"
      aria-label={`Speedup over ${base.run}: ${text.join("; ")}`}
    >
      {valueTicks.map((value) => (
        <g key={value}>
          <line class="grid-line" x1={left} x2={left + width} y1={y(value)} y2={y(value)} />
          <text x={left - 6} y={y(value) + 4} text-anchor="end">
            {plain(value)}×
          </text>
        </g>
      ))}
      {workerTicks.map((workers) => (
        <text key={workers} x={x(workers)} y={bottom + 16} text-anchor="middle">
          {workers}
        </text>
      ))}
      <text x={left + width / 2} y={bottom + 31} text-anchor="middle">
        workers
      </text>
      <line class="ideal" x1={x(base.workers)} y1={y(1)} x2={x(maxWorkers)} y2={y(ideal)} />
      <text x={x(maxWorkers) - 4} y={y(ideal) - 5} text-anchor="end">
        ideal
      </text>
      {comparison.scaling.map((fit) => (
        <polyline
          key={fit.mode}
          class="amdahl"
          points={fit.curve.map(([workers, speedup]) => `${x(workers)},${y(speedup)}`).join(" ")}
        />
      ))}
      {rows.map((row) => (
        <SpeedupPoint key={row.run} row={row} index={comparison.runs.indexOf(row)} x={x(row.workers)} y={y} />
      ))}
    </svg>
  );
}

function tickStep(top: number): number {
  if (top > 8) return Math.ceil(top / 6);
  return top > 3 ? 1 : 0.5;
}

interface PointProps {
  row: ComparedRun;
  index: number;
  x: number;
  y: (value: number) => number;
}

function SpeedupPoint({ row, index, x, y }: PointProps) {
  const { value, low, high } = row.speedup!;
  const colour = runColour(index);
  const hasInterval = low !== null && high !== null;
  return (
    <g stroke={colour} fill={colour}>
      <title>{`${row.run}: ${formatEstimate(row.speedup, "×")}, ${row.in_words}`}</title>
      {hasInterval && (
        <path
          d={`M${x},${y(low)}V${y(high)}M${x - 5},${y(low)}h10M${x - 5},${y(high)}h10`}
          stroke-width="1.5"
          fill="none"
        />
      )}
      <text class="point" x={x} y={y(value) + 5} text-anchor="middle" stroke="none" fill={colour}>
        {runGlyph(index)}
      </text>
    </g>
  );
}

interface BarsProps {
  rows: ComparedRun[];
  of: (row: ComparedRun) => Estimate | null;
  unit: string;
  label: string;
  max?: number;
}

/** One bar per run, with its interval and its value as text. */
export function Bars({ rows, of, unit, label, max = 0 }: BarsProps) {
  const known = rows.map(of).filter((estimate): estimate is Estimate => estimate !== null);
  const top = Math.max(max, 1e-9, ...known.map((estimate) => estimate.high ?? estimate.value));
  const x = (value: number) => (Math.max(0, value) / top) * 100;
  return (
    <ul class="bars" aria-label={label}>
      {rows.map((row, i) => {
        const estimate = of(row);
        return (
          <li key={row.run}>
            <span class="name">
              <span aria-hidden="true">{runGlyph(i)}</span> {row.run}
            </span>
            <svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">
              {estimate && <rect width={x(estimate.value)} height="12" fill={runColour(i)} />}
              {estimate && estimate.low !== null && estimate.high !== null && (
                <path
                  class="whisker"
                  vector-effect="non-scaling-stroke"
                  d={`M${x(estimate.low)},6H${x(estimate.high)}M${x(estimate.low)},2v8M${x(estimate.high)},2v8`}
                />
              )}
            </svg>
            <span>{formatEstimate(estimate, unit)}</span>
          </li>
        );
      })}
    </ul>
  );
}

export function PhaseBars({ rows }: { rows: ComparedRun[] }) {
  return (
    <ul class="bars wide-bars" aria-label="Shares of phases of each run">
      {rows.map((row) => (
        <li key={row.run}>
          <span class="name">{row.run}</span>
          <PhaseBar phases={row.phases} />
          <span>{describePhases(row.phases, 3) || "not measured yet"}</span>
        </li>
      ))}
    </ul>
  );
}
