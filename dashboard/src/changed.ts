// What is different in this window? Each phase of each worker against the stretch of the same length before it. Pure.

import type { Steps } from "./steps";
import { PHASES } from "./types";
import { seconds } from "./words";

export interface Change { worker: string; phase: string; before_s: number; now_s: number }

/** Seconds that each phase took in a step, on average; null: no step. */
function means(steps: Steps, worker: string, from_s: number, to_s: number): number[] | null {
  const rows = steps.between(worker, from_s, to_s).filter((row) => row[1] >= from_s && row[1] < to_s);
  return rows.length ? PHASES.map((_, i) => rows.reduce((sum, row) => sum + row[i + 2], 0) / rows.length) : null;
}

export function changes(steps: Steps, lanes: string[], from_s: number, to_s: number, most = 3): Change[] {
  const found: Change[] = [];
  for (const worker of lanes) {
    const before = means(steps, worker, from_s - (to_s - from_s), from_s), now = means(steps, worker, from_s, to_s);
    if (before && now) PHASES.forEach((phase, i) => found.push({ worker, phase, before_s: before[i], now_s: now[i] }));
  }
  const size = (one: Change) => Math.abs(one.now_s - one.before_s);
  return found.filter((one) => size(one) >= 5e-5).sort((a, b) => size(b) - size(a)).slice(0, most);
}

export const inWords = (one: Change) => `${one.worker}: ${one.phase} ${seconds(one.before_s)} → ${seconds(one.now_s)} a step`;
