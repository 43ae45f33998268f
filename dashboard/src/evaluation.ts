// The evaluation metric to show for a run: accuracy if there is one, else a loss, else the first metric. Pure.

import { percent, plain } from "./format";
import type { Evaluation, Metrics } from "./types";

export interface MetricSummary {
  name: string;
  last: number;
  best: number | null; // null: only one value is known, that of the end
  bestStep: number | null;
}

/** The test metric of the same kind comes first, as in the report. */
function primaryMetric(metrics: Metrics): string | undefined {
  const names = Object.keys(metrics).filter((name) => typeof metrics[name] === "number");
  for (const kind of ["accuracy", "loss", ""]) {
    const named = names.filter((name) => name.includes(kind));
    if (named.length) return named.find((name) => name.startsWith("test")) ?? named[0];
  }
  return undefined;
}

export function isShare(name: string): boolean {
  return name.includes("accuracy");
}

/** The newest and the best value of the evaluations; null: the run was not evaluated yet. */
export function summarizeEvaluations(evaluations: Evaluation[]): MetricSummary | null {
  const newest = evaluations[evaluations.length - 1];
  const name = newest && primaryMetric(newest.metrics);
  if (name === undefined) return null;
  const points = evaluations.filter((evaluation) => typeof evaluation.metrics[name] === "number");
  const value = (evaluation: Evaluation) => evaluation.metrics[name] as number;
  const isBetter = (a: number, b: number) => (isShare(name) ? a > b : a < b);
  const best = points.reduce((so_far, point) => (isBetter(value(point), value(so_far)) ? point : so_far));
  return { name, last: value(newest), best: value(best), bestStep: best.step };
}

/** The metrics of the finished model, which are in the run's result. */
export function summarizeResult(metrics: Metrics | null | undefined): MetricSummary | null {
  const name = metrics ? primaryMetric(metrics) : undefined;
  return name === undefined ? null : { name, last: metrics![name] as number, best: null, bestStep: null };
}

/** `valid_accuracy` is "validation accuracy". */
export function metricLabel(name: string): string {
  return name.replace(/^valid_/, "validation_").replaceAll("_", " ");
}

/** The metric without "accuracy", for columns that are named so: "validation", "test". */
export function shortMetricLabel(name: string): string {
  return metricLabel(name).replace(/ accuracy$/, "");
}

export function metricValue(name: string, value: number | null): string {
  return isShare(name) ? percent(value, 1) : plain(value);
}
