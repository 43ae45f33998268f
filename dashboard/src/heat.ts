// How does a number change over workers and time? One cell for each, in cividis; where nothing is known it is hatched.

import { steps } from "./state";
import { endOf } from "./steps";
import type { StepRow } from "./types";

export const HEATS = ["step time", "relative speed", "wait share", "comm share", "staleness", "gradient norm", "loss"] as const;
export type HeatName = (typeof HEATS)[number];
// Ten stops of cividis (Nuñez, Anderton, Renslow 2018): its lightness grows evenly, for every eye.
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];

/** These are not in the steps themselves: the server remembers them each second, by worker. */
export const TOLD: Partial<Record<HeatName, string>> = { "relative speed": "speed", staleness: "staleness", "gradient norm": "gradient_norm" };
export type Told = Record<string, [number, number | null, number | null, number | null][]>;

export interface Heat { columns: number; rows: string[]; cells: (number | null)[][]; low: number; high: number }

function valueOf(name: HeatName, row: StepRow): number {
  const whole = endOf(row) - row[1];
  if (name === "step time") return whole;
  if (name === "wait share") return whole > 0 ? row[6] / whole : 0;
  if (name === "comm share") return whole > 0 ? (row[7] + row[8]) / whole : 0;
  return row[10];
}

export function heatOf(name: HeatName, lanes: string[], from_s: number, to_s: number, columns: number): Heat {
  const cells = lanes.map((lane) => {
    const sums = new Float64Array(columns), counts = new Uint32Array(columns);
    for (const row of steps.between(lane, from_s, to_s)) {
      const value = valueOf(name, row), at = (t_s: number) => Math.floor(((t_s - from_s) / (to_s - from_s)) * columns);
      if (!Number.isFinite(value)) continue;
      // A step that is longer than a column is in all of them.
      for (let column = Math.max(0, at(row[1])); column <= Math.min(columns - 1, at(endOf(row))); column++) { sums[column] += value; counts[column]++; }
    }
    return Array.from(sums, (sum, i) => (counts[i] ? sum / counts[i] : null));
  });
  return scaled(cells, lanes, columns);
}

export function heatOfTold(told: Told, kind: string, lanes: string[], from_s: number, to_s: number, columns: number): Heat {
  const cells = lanes.map((lane) => {
    const found = new Array<number | null>(columns).fill(null);
    for (const [t, , , last] of told[`worker.${lane}.${kind}`] ?? []) {
      const column = Math.min(columns - 1, Math.floor(((t - from_s) / (to_s - from_s)) * columns));
      if (column >= 0 && last !== null) found[column] = last;
    }
    // Each value stands until the next one, a few seconds at most.
    const reach = Math.ceil((3 / (to_s - from_s)) * columns);
    let age = reach, value: number | null = null;
    return found.map((cell) => { if (cell !== null) { value = cell; age = 0; } return ++age <= reach ? value : cell; });
  });
  return scaled(cells, lanes, columns);
}

function scaled(cells: (number | null)[][], lanes: string[], columns: number): Heat {
  const known = cells.flat().filter((value): value is number => value !== null).sort((a, b) => a - b);
  const low = known.length ? known[Math.floor(known.length * 0.02)] : 0;
  const high = known.length ? known[Math.floor((known.length - 1) * 0.98)] : 1;
  if (high - low < 0.02 * Math.abs(high)) return { columns, rows: lanes, cells, low: high, high }; // noise has no colours
  return { columns, rows: lanes, cells, low, high };
}

export function drawHeat(canvas: HTMLCanvasElement, heat: Heat, paper: string, line: string): void {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
  const c = canvas.getContext("2d", { alpha: false })!;
  c.fillStyle = paper;
  c.fillRect(0, 0, canvas.width, canvas.height);
  c.fillStyle = hatching(c, paper, line);
  c.fillRect(0, 0, canvas.width, canvas.height);
  const [w, h] = [canvas.width / heat.columns, canvas.height / Math.max(1, heat.rows.length)];
  heat.cells.forEach((row, i) => row.forEach((value, j) => {
    if (value === null) return;
    c.fillStyle = cividis(heat.high > heat.low ? (value - heat.low) / (heat.high - heat.low) : 0.5);
    c.fillRect(Math.floor(j * w), Math.floor(i * h), Math.ceil(w), Math.ceil(h) - (h > 5 ? 1 : 0));
  }));
}

export function cividis(share: number): string {
  return CIVIDIS[Math.max(0, Math.min(9, Math.floor(share * 10)))];
}

function hatching(c: CanvasRenderingContext2D, paper: string, line: string): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const t = tile.getContext("2d")!;
  t.fillStyle = paper;
  t.fillRect(0, 0, 6, 6);
  t.strokeStyle = line;
  t.beginPath();
  t.moveTo(0, 6);
  t.lineTo(6, 0);
  t.stroke();
  return c.createPattern(tile, "repeat") ?? paper;
}
