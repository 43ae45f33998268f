// Difference between a window and the window of the same length before it, by worker and phase. Pure.

import { seconds } from "./format";
import type { Steps } from "./steps";
import { PHASES } from "./types";

export interface PhaseChange {
  worker: string;
  phase: string;
  before_s: number;
  now_s: number;
}

const MIN_CHANGE_S = 5e-5;

/** Mean seconds of each phase per step; null: no step in the window. */
function phaseMeans(steps: Steps, worker: string, from_s: number, to_s: number): number[] | null {
  const rows = steps.between(worker, from_s, to_s).filter((row) => row[1] >= from_s && row[1] < to_s);
  if (!rows.length) return null;
  return PHASES.map((_, phase) => rows.reduce((sum, row) => sum + row[phase + 2], 0) / rows.length);
}

/** The largest changes first. */
export function phaseChanges(
  steps: Steps,
  lanes: string[],
  from_s: number,
  to_s: number,
  limit = 3,
): PhaseChange[] {
  const changes: PhaseChange[] = [];
  for (const worker of lanes) {
    const before = phaseMeans(steps, worker, from_s - (to_s - from_s), from_s);
    const now = phaseMeans(steps, worker, from_s, to_s);
    if (!before || !now) continue;
    PHASES.forEach((phase, i) => {
      changes.push({ worker, phase, before_s: before[i], now_s: now[i] });
    });
  }
  const size = (change: PhaseChange) => Math.abs(change.now_s - change.before_s);
  return changes
    .filter((change) => size(change) >= MIN_CHANGE_S)
    .sort((a, b) => size(b) - size(a))
    .slice(0, limit);
}

export function describeChange(change: PhaseChange): string {
  return `${change.worker}: ${change.phase} ${seconds(change.before_s)} → ${seconds(change.now_s)} per step`;
}
