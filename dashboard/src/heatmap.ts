// Heat map of a metric over workers and time, in cividis; cells without a value are hatched.

import { steps } from "./state";
import { endOf } from "./steps";
import type { StepRow } from "./types";

export const HEATMAP_METRICS = [
  "step time",
  "relative speed",
  "wait share",
  "comm share",
  "staleness",
  "gradient norm",
  "loss",
] as const;
export type HeatmapMetric = (typeof HEATMAP_METRICS)[number];

/** Metrics that steps do not hold: the server records them each second, by worker. */
export const SERVER_SERIES: Partial<Record<HeatmapMetric, string>> = {
  "relative speed": "speed",
  staleness: "staleness",
  "gradient norm": "gradient_norm",
};
export type SeriesPoint = [t_s: number, min: number | null, max: number | null, last: number | null];
export type SeriesData = Record<string, SeriesPoint[]>;

export interface Heatmap {
  columns: number;
  rows: string[];
  cells: (number | null)[][];
  low: number;
  high: number;
}

// Ten stops of cividis (Nuñez, Anderton, Renslow 2018): lightness grows evenly in every kind of colour vision.
const CIVIDIS = [
  "#00224e",
  "#123570",
  "#3b496c",
  "#575d6d",
  "#707173",
  "#8a8678",
  "#a59c74",
  "#c3b369",
  "#e1cc55",
  "#fee838",
];
const MAX_AGE_S = 3; // a recorded value is valid until the next one, but not longer
const MIN_SPREAD = 0.02; // values that differ by less are drawn in one colour

function metricOf(name: HeatmapMetric, row: StepRow): number {
  const total = endOf(row) - row[1];
  switch (name) {
    case "step time":
      return total;
    case "wait share":
      return total > 0 ? row[6] / total : 0;
    case "comm share":
      return total > 0 ? (row[7] + row[8]) / total : 0;
    default:
      return row[10];
  }
}

export function heatmapFromSteps(
  name: HeatmapMetric,
  lanes: string[],
  from_s: number,
  to_s: number,
  columns: number,
): Heatmap {
  const columnAt = (t_s: number) => Math.floor(((t_s - from_s) / (to_s - from_s)) * columns);
  const cells = lanes.map((lane) => {
    const sums = new Float64Array(columns);
    const counts = new Uint32Array(columns);
    for (const row of steps.between(lane, from_s, to_s)) {
      const value = metricOf(name, row);
      if (!Number.isFinite(value)) continue;
      // A step that is longer than a column counts in all columns that it overlaps.
      const last = Math.min(columns - 1, columnAt(endOf(row)));
      for (let column = Math.max(0, columnAt(row[1])); column <= last; column++) {
        sums[column] += value;
        counts[column]++;
      }
    }
    return Array.from(sums, (sum, i) => (counts[i] ? sum / counts[i] : null));
  });
  return withScale(cells, lanes, columns);
}

export function heatmapFromSeries(
  data: SeriesData,
  kind: string,
  lanes: string[],
  from_s: number,
  to_s: number,
  columns: number,
): Heatmap {
  const maxAge = Math.ceil((MAX_AGE_S / (to_s - from_s)) * columns);
  const cells = lanes.map((lane) => {
    const recorded = new Array<number | null>(columns).fill(null);
    for (const [t_s, , , last] of data[`worker.${lane}.${kind}`] ?? []) {
      const column = Math.min(columns - 1, Math.floor(((t_s - from_s) / (to_s - from_s)) * columns));
      if (column >= 0 && last !== null) recorded[column] = last;
    }
    return forwardFill(recorded, maxAge);
  });
  return withScale(cells, lanes, columns);
}

function forwardFill(values: (number | null)[], maxAge: number): (number | null)[] {
  let age = maxAge;
  let last: number | null = null;
  return values.map((value) => {
    if (value !== null) {
      last = value;
      age = 0;
    }
    age++;
    return age <= maxAge ? last : value;
  });
}

/** The scale leaves out 2 % of the values at each end. */
function withScale(cells: (number | null)[][], rows: string[], columns: number): Heatmap {
  const known = cells
    .flat()
    .filter((value): value is number => value !== null)
    .sort((a, b) => a - b);
  const low = known.length ? known[Math.floor(known.length * 0.02)] : 0;
  const high = known.length ? known[Math.floor((known.length - 1) * 0.98)] : 1;
  const isFlat = high - low < MIN_SPREAD * Math.abs(high);
  return { columns, rows, cells, low: isFlat ? high : low, high };
}

export function drawHeatmap(
  canvas: HTMLCanvasElement,
  heatmap: Heatmap,
  background: string,
  line: string,
): void {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
  const context = canvas.getContext("2d", { alpha: false })!;
  context.fillStyle = hatching(context, background, line);
  context.fillRect(0, 0, canvas.width, canvas.height);
  const width = canvas.width / heatmap.columns;
  const height = canvas.height / Math.max(1, heatmap.rows.length);
  const gap = height > 5 ? 1 : 0;
  const { low, high } = heatmap;
  heatmap.cells.forEach((row, i) => {
    row.forEach((value, j) => {
      if (value === null) return;
      context.fillStyle = cividis(high > low ? (value - low) / (high - low) : 0.5);
      context.fillRect(
        Math.floor(j * width),
        Math.floor(i * height),
        Math.ceil(width),
        Math.ceil(height) - gap,
      );
    });
  });
}

export function cividis(share: number): string {
  return CIVIDIS[Math.max(0, Math.min(9, Math.floor(share * 10)))];
}

function hatching(
  context: CanvasRenderingContext2D,
  background: string,
  line: string,
): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = 6;
  tile.height = 6;
  const drawing = tile.getContext("2d")!;
  drawing.fillStyle = background;
  drawing.fillRect(0, 0, 6, 6);
  drawing.strokeStyle = line;
  drawing.beginPath();
  drawing.moveTo(0, 6);
  drawing.lineTo(6, 0);
  drawing.stroke();
  return context.createPattern(tile, "repeat") ?? background;
}
