// Which steps are known? The newest of each worker, in order, for the pictures that draw them.

import type { Batch, StepRow } from "./types";

const KEPT = 6000; // of one worker
const ROOM = KEPT + 2000;

export class Steps {
  lanes = new Map<string, StepRow[]>();
  fresh: Batch[] = []; // since somebody last drew
  newest_s = 0;
  epoch = 0; // another one: everything is different

  clear(): void {
    this.epoch++;
    this.lanes.clear();
    this.fresh = [];
    this.newest_s = 0;
  }

  add(batches: Batch[]): void {
    for (const batch of batches) {
      const lane = this.lane(batch.worker);
      const last = lane.length ? lane[lane.length - 1][1] : -1;
      // After a reconnection some rows may come twice.
      const rows = batch.rows.filter((row) => row[1] > last || !lane.length);
      if (!rows.length) continue;
      lane.push(...rows);
      if (lane.length > ROOM) lane.splice(0, lane.length - KEPT);
      this.newest_s = Math.max(this.newest_s, endOf(rows[rows.length - 1]));
      this.fresh.push({ ...batch, rows });
    }
    if (this.fresh.length > 5000) this.fresh = [];
  }

  lane(worker: string): StepRow[] {
    let lane = this.lanes.get(worker);
    if (!lane) this.lanes.set(worker, (lane = []));
    return lane;
  }

  names(): string[] {
    return [...this.lanes.keys()].sort(byNumber);
  }

  /** Rows of a lane that touch this time. */
  between(worker: string, from_s: number, to_s: number): StepRow[] {
    const lane = this.lanes.get(worker) ?? [];
    let low = 0, high = lane.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane[middle][1] < from_s) low = middle + 1; else high = middle;
    }
    const found: StepRow[] = [];
    for (let i = Math.max(0, low - 1); i < lane.length && lane[i][1] <= to_s; i++) found.push(lane[i]);
    return found;
  }
}

export function endOf(row: StepRow): number {
  let at = row[1];
  for (let i = 2; i < 10; i++) at += row[i];
  return at;
}

export function byNumber(a: string, b: string): number {
  const [x, y] = [a, b].map((name) => Number(name.slice(name.lastIndexOf("-") + 1)));
  return x - y || a.localeCompare(b);
}
