// Where did all meet, and how far may the first one go? From the steps of each lane alone. Pure.

import { endOf } from "./steps";
import type { StepRow } from "./types";

/** When the last worker came to each meeting; only of steps in which somebody waited or communicated. */
export function barriers(lanes: StepRow[][]): number[] {
  const there = lanes.filter((rows) => rows.length);
  const came = new Map<number, { workers: number; at_s: number }>();
  for (const rows of there) {
    for (const row of rows) {
      if (row[6] <= 0 && row[8] <= 0) continue;
      const at_s = row[1] + row[2] + row[3] + row[4] + row[5], known = came.get(row[0]);
      came.set(row[0], { workers: (known?.workers ?? 0) + 1, at_s: Math.max(known?.at_s ?? 0, at_s) });
    }
  }
  const expected = (step: number) => there.filter((rows) => rows[0][0] <= step && step <= rows[rows.length - 1][0]).length;
  return [...came].filter(([step, { workers }]) => workers >= 2 && workers >= expected(step)).map(([, { at_s }]) => at_s).sort((a, b) => a - b);
}

export interface Front { step: number; at: (number | null | undefined)[] } // of each lane: when; null: not yet; undefined: nobody, or long ago

/** The fastest worker's step less the bound: whoever has not made it holds the fastest one back. */
export function front(lanes: StepRow[][], bound: number): Front | null {
  const newest = Math.max(-1, ...lanes.map((rows) => (rows.length ? rows[rows.length - 1][0] : -1)));
  const step = newest - bound;
  if (newest < 0 || step < 0) return null;
  return { step, at: lanes.map((rows) => {
    if (!rows.length) return undefined;
    if (rows[rows.length - 1][0] < step) return null;
    const found = rows.find((row) => row[0] === step);
    return found && endOf(found);
  }) };
}
