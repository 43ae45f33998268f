// Store of steps: the newest of each worker, in order, and those of one older window that was fetched.

import type { Batch, Lane, StepRow } from "./types";

const MAX_ROWS = 200_000; // of all workers together: about 30 MB
const MAX_ROWS_PER_WORKER = 6000;
const MIN_ROWS_PER_WORKER = 100;
const SLACK = 1.33; // a lane grows by a third before it is trimmed
const LANE_EXPIRY_S = 600; // a worker without steps for this long has no lane
const MAX_NEW_BATCHES = 5000;

export class Steps {
  lanes = new Map<string, StepRow[]>();
  newBatches: Batch[] = []; // not drawn yet
  newest_s = 0;
  since_s = 0; // every later step is in memory
  epoch = 0; // changes when all content is replaced
  pastVersion = 0; // changes when an older window was fetched
  private past = new Map<string, StepRow[]>();
  private pastFrom_s = 0;
  private pastTo_s = 0;

  clear(since_s = 0): void {
    this.epoch++;
    this.lanes.clear();
    this.newBatches = [];
    this.newest_s = 0;
    this.since_s = since_s;
    this.past.clear();
    this.pastFrom_s = 0;
    this.pastTo_s = 0;
  }

  add(batches: Batch[]): void {
    for (const batch of batches) {
      const lane = this.lane(batch.worker);
      const last = lane.length ? lane[lane.length - 1][1] : -1;
      // After a reconnection some rows may arrive twice.
      const rows = batch.rows.filter((row) => row[1] > last || !lane.length);
      if (!rows.length) continue;
      for (const row of rows) lane.push(row);
      this.trim(lane);
      this.newest_s = Math.max(this.newest_s, endOf(rows[rows.length - 1]));
      this.newBatches.push({ ...batch, rows });
    }
    if (this.newBatches.length > MAX_NEW_BATCHES) this.newBatches = [];
  }

  /** The more workers, the fewer steps of each. */
  private trim(lane: StepRow[]): void {
    const share = Math.floor(MAX_ROWS / this.lanes.size);
    const limit = Math.min(MAX_ROWS_PER_WORKER, Math.max(MIN_ROWS_PER_WORKER, share));
    if (lane.length <= limit * SLACK) return;
    lane.splice(0, lane.length - limit);
    this.since_s = Math.max(this.since_s, lane[0][1]);
    for (const [name, rows] of this.lanes) {
      const isExpired = !rows.length || endOf(rows[rows.length - 1]) < this.newest_s - LANE_EXPIRY_S;
      if (isExpired) this.lanes.delete(name);
    }
  }

  lane(worker: string): StepRow[] {
    const known = this.lanes.get(worker);
    if (known) return known;
    const lane: StepRow[] = [];
    this.lanes.set(worker, lane);
    return lane;
  }

  names(): string[] {
    return [...this.lanes.keys()].sort(byNumber);
  }

  /** Store an older window; it replaces the previous one. */
  setPast(from_s: number, to_s: number, lanes: Lane[]): void {
    this.past = new Map(lanes.map((lane) => [lane.worker, lane.rows]));
    this.pastFrom_s = from_s;
    this.pastTo_s = to_s;
    this.pastVersion++;
  }

  hasPast(from_s: number, to_s: number): boolean {
    return from_s >= this.pastFrom_s && to_s <= this.pastTo_s;
  }

  /** Rows of a lane that overlap this window. */
  between(worker: string, from_s: number, to_s: number): StepRow[] {
    const lane = this.lanes.get(worker) ?? [];
    const past = from_s < this.since_s ? this.past.get(worker) : undefined;
    const recent = overlapping(lane, from_s, to_s);
    if (!past?.length) return recent;
    const first = lane.length ? lane[0][1] : Infinity;
    return [...overlapping(past, from_s, to_s).filter((row) => row[1] < first), ...recent];
  }
}

function overlapping(lane: StepRow[], from_s: number, to_s: number): StepRow[] {
  let low = 0;
  let high = lane.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane[middle][1] < from_s) low = middle + 1;
    else high = middle;
  }
  const rows: StepRow[] = [];
  for (let i = Math.max(0, low - 1); i < lane.length && lane[i][1] <= to_s; i++) rows.push(lane[i]);
  return rows;
}

export function endOf(row: StepRow): number {
  let end = row[1];
  for (let i = 2; i < 10; i++) end += row[i];
  return end;
}

export function byNumber(a: string, b: string): number {
  const numberOf = (name: string) => Number(name.slice(name.lastIndexOf("-") + 1));
  return numberOf(a) - numberOf(b) || a.localeCompare(b);
}
