// Which steps are known? The newest of each worker, in order; and those of an older window that somebody looks at.

import type { Batch, StepRow } from "./types";

const MOST = 200_000; // of all workers together: some 30 MB
const KEPT = 6000; // of one worker
const GONE_S = 600; // a worker that made no step for so long has no lane any more

export class Steps {
  lanes = new Map<string, StepRow[]>();
  fresh: Batch[] = []; // since somebody last drew
  newest_s = 0;
  since_s = 0; // from here on every step is known
  epoch = 0; // another one: everything is different
  looked = 0; // grows with each older window that was fetched
  private past = new Map<string, StepRow[]>();
  private pastFrom_s = 0;
  private pastTo_s = 0;

  clear(since_s = 0): void {
    this.epoch++;
    this.lanes.clear();
    this.fresh = [];
    this.newest_s = 0;
    this.since_s = since_s;
    this.forget();
  }

  add(batches: Batch[]): void {
    for (const batch of batches) {
      const lane = this.lane(batch.worker);
      const last = lane.length ? lane[lane.length - 1][1] : -1;
      // After a reconnection some rows may come twice.
      const rows = batch.rows.filter((row) => row[1] > last || !lane.length);
      if (!rows.length) continue;
      for (const row of rows) lane.push(row);
      this.trim(lane);
      this.newest_s = Math.max(this.newest_s, endOf(rows[rows.length - 1]));
      this.fresh.push({ ...batch, rows });
    }
    if (this.fresh.length > 5000) this.fresh = [];
  }

  /** The more workers, the fewer steps of each; a third more is let in before it is cut. */
  private trim(lane: StepRow[]): void {
    const kept = Math.min(KEPT, Math.max(100, Math.floor(MOST / this.lanes.size)));
    if (lane.length <= kept * 1.33) return;
    lane.splice(0, lane.length - kept);
    this.since_s = Math.max(this.since_s, lane[0][1]);
    for (const [name, rows] of this.lanes) if (!rows.length || endOf(rows[rows.length - 1]) < this.newest_s - GONE_S) this.lanes.delete(name);
  }

  lane(worker: string): StepRow[] {
    let lane = this.lanes.get(worker);
    if (!lane) this.lanes.set(worker, (lane = []));
    return lane;
  }

  names(): string[] {
    return [...this.lanes.keys()].sort(byNumber);
  }

  /** An older window; there is room for one. */
  remember(from_s: number, to_s: number, lanes: { worker: string; rows: StepRow[] }[]): void {
    this.past = new Map(lanes.map((lane) => [lane.worker, lane.rows]));
    [this.pastFrom_s, this.pastTo_s] = [from_s, to_s];
    this.looked++;
  }

  private forget(): void {
    this.past.clear();
    this.pastFrom_s = this.pastTo_s = 0;
  }

  hasPast(from_s: number, to_s: number): boolean {
    return from_s >= this.pastFrom_s && to_s <= this.pastTo_s;
  }

  /** Rows of a lane that touch this time. */
  between(worker: string, from_s: number, to_s: number): StepRow[] {
    const lane = this.lanes.get(worker) ?? [];
    const old = from_s < this.since_s ? this.past.get(worker) : undefined;
    if (!old?.length) return within(lane, from_s, to_s);
    const first = lane.length ? lane[0][1] : Infinity;
    return [...within(old, from_s, to_s).filter((row) => row[1] < first), ...within(lane, from_s, to_s)];
  }
}

function within(lane: StepRow[], from_s: number, to_s: number): StepRow[] {
  let low = 0, high = lane.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane[middle][1] < from_s) low = middle + 1; else high = middle;
  }
  const found: StepRow[] = [];
  for (let i = Math.max(0, low - 1); i < lane.length && lane[i][1] <= to_s; i++) found.push(lane[i]);
  return found;
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
