// How much of N workers' speed does the run have? Against one worker alone, where that is known. Pure.

import type { KnownRun, View } from "./types";
import { si } from "./words";

export interface Efficiency { share: number; words: string }
const OWN = ["data", "forward", "backward", "delay", "apply"]; // what a worker alone would do as well

/** The newest finished run of one worker alone on the same task and kind of device. */
export function baseline(view: View, runs: KnownRun[], mine: string | undefined): KnownRun | undefined {
  return runs.find((row) => row.run !== mine && row.mode === "single" && row.task === view.run.task && (row.device ?? view.run.device) === view.run.device && (row.samples_per_s ?? 0) > 0);
}

export function efficiency(view: View, runs: KnownRun[], mine: string | undefined): Efficiency | null {
  const rate = view.throughput.samples_per_s, isOn = view.state === "training" && view.counts.alive > 0;
  const workers = isOn ? view.counts.alive : view.run.workers;
  const alone = baseline(view, runs, mine);
  if (alone && rate) return { share: rate / (workers * alone.samples_per_s!), words: `of ${workers} × ${si(alone.samples_per_s, "/s")}, the speed of the single run ${alone.run}` };
  const shares = view.workers.map((w) => w.phases).filter((phases) => Object.keys(phases).length);
  if (!shares.length) return null;
  const own = shares.reduce((sum, phases) => sum + OWN.reduce((all, name) => all + (phases[name] ?? 0), 0), 0) / shares.length;
  return { share: own, words: "own work in the step time; no finished single run of this task here" };
}
