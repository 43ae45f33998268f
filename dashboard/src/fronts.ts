// Where did all meet, and how far may the first one go? From the steps of each lane alone. Pure.

import { endOf } from "./steps";
import type { StepRow } from "./types";

const came = (row: StepRow) => row[1] + row[2] + row[3] + row[4] + row[5]; // to the meeting

/** When the last worker came to each meeting. By time: where workers come and go, each counts its own steps. */
export function barriers(lanes: StepRow[][]): number[] {
  const [first, ...others] = lanes.filter((rows) => rows.length).sort((a, b) => a.length - b.length);
  const places = (others ?? []).map(() => 0);
  const found: number[] = [];
  for (const row of first ?? []) {
    const end = endOf(row), reach = (end - row[1]) / 2;
    if (row[6] <= 0 && row[8] <= 0) continue; // it waited for nobody, and told nobody anything
    let at_s = came(row), met = 1, isWhole = true;
    others.forEach((rows, i) => {
      if (end < rows[0][1] || row[1] > endOf(rows[rows.length - 1])) return; // it was not there
      while (places[i] + 1 < rows.length && Math.abs(endOf(rows[places[i] + 1]) - end) <= Math.abs(endOf(rows[places[i]]) - end)) places[i]++;
      const theirs = rows[places[i]];
      if (Math.abs(endOf(theirs) - end) > reach) isWhole = false;
      else { met++; at_s = Math.max(at_s, came(theirs)); }
    });
    if (isWhole && met > 1) found.push(at_s);
  }
  return found;
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
