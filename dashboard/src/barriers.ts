// Barriers and the staleness front of a timeline, computed from the steps of each lane alone. Pure.

import { endOf } from "./steps";
import type { StepRow } from "./types";

/** When a worker reached the barrier of this step: after data, forward, backward and delay. */
function arrivalOf(row: StepRow): number {
  return row[1] + row[2] + row[3] + row[4] + row[5];
}

/**
 * When the last worker reached each barrier. Steps are matched by time: in an elastic run each worker counts
 * its own steps.
 */
export function barriers(lanes: StepRow[][]): number[] {
  const known = lanes.filter((rows) => rows.length).sort((a, b) => a.length - b.length);
  const [reference, ...others] = known;
  const cursors = others.map(() => 0);
  const times: number[] = [];
  for (const row of reference ?? []) {
    const end = endOf(row);
    const tolerance = (end - row[1]) / 2;
    const isSynchronized = row[6] > 0 || row[8] > 0; // it waited or communicated
    if (!isSynchronized) continue;
    let last_s = arrivalOf(row);
    let participants = 1;
    let isComplete = true;
    others.forEach((rows, i) => {
      const isPresent = end >= rows[0][1] && row[1] <= endOf(rows[rows.length - 1]);
      if (!isPresent) return;
      cursors[i] = nearestEnd(rows, cursors[i], end);
      const match = rows[cursors[i]];
      if (Math.abs(endOf(match) - end) > tolerance) {
        isComplete = false;
        return;
      }
      participants++;
      last_s = Math.max(last_s, arrivalOf(match));
    });
    if (isComplete && participants > 1) times.push(last_s);
  }
  return times;
}

/** The step that ends closest to `end`, searched forwards from `start`. */
function nearestEnd(rows: StepRow[], start: number, end: number): number {
  const distance = (i: number) => Math.abs(endOf(rows[i]) - end);
  let i = start;
  while (i + 1 < rows.length && distance(i + 1) <= distance(i)) i++;
  return i;
}

export interface StalenessFront {
  step: number;
  times: (number | null | undefined)[]; // by lane; null: not reached yet; undefined: no such step is known
}

/** The fastest worker's step minus the staleness bound: a worker that has not reached it blocks the fastest. */
export function stalenessFront(lanes: StepRow[][], bound: number): StalenessFront | null {
  const newest = Math.max(-1, ...lanes.map((rows) => (rows.length ? rows[rows.length - 1][0] : -1)));
  const step = newest - bound;
  if (newest < 0 || step < 0) return null;
  const times = lanes.map((rows) => {
    if (!rows.length) return undefined;
    if (rows[rows.length - 1][0] < step) return null;
    const match = rows.find((row) => row[0] === step);
    return match && endOf(match);
  });
  return { step, times };
}
