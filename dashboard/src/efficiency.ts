// Parallel efficiency: throughput relative to N times that of one worker. Pure.

import { si } from "./format";
import type { RunSummary, View } from "./types";

export interface Efficiency {
  share: number;
  description: string;
}

// Phases that one worker alone would have as well.
const OWN_PHASES = ["data", "forward", "backward", "delay", "apply"];

/** The newest finished single-worker run of the same task on the same kind of device. */
function singleWorkerRun(view: View, runs: RunSummary[], ownRun: string | undefined): RunSummary | undefined {
  return runs.find((row) => {
    const isComparable = row.run !== ownRun && row.mode === "single" && row.task === view.run.task;
    const device = row.device ?? view.run.device;
    return isComparable && device === view.run.device && (row.samples_per_s ?? 0) > 0;
  });
}

/** Without a single-worker run: the share of the step time that is not waiting or communication. */
export function efficiency(view: View, runs: RunSummary[], ownRun: string | undefined): Efficiency | null {
  const rate = view.throughput.samples_per_s;
  const isTraining = view.state === "training" && view.counts.alive > 0;
  const workers = isTraining ? view.counts.alive : view.run.workers;
  const single = singleWorkerRun(view, runs, ownRun);
  if (single && rate) {
    const ideal = `${workers} × ${si(single.samples_per_s, "/s")}`;
    return {
      share: rate / (workers * single.samples_per_s!),
      description: `of ${ideal}, the throughput of the single-worker run ${single.run}`,
    };
  }
  const measured = view.workers.map((worker) => worker.phases).filter((phases) => Object.keys(phases).length);
  if (!measured.length) return null;
  const ownShare = (phases: Record<string, number>) =>
    OWN_PHASES.reduce((sum, name) => sum + (phases[name] ?? 0), 0);
  return {
    share: measured.reduce((sum, phases) => sum + ownShare(phases), 0) / measured.length,
    description: "step time without waiting and communication; no single-worker run to compare with",
  };
}
