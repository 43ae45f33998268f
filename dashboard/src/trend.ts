// Does a number rise or fall? The line through the median of all slopes: a few wild values do not turn it. Pure.

const MOST = 80; // points: the slopes are of all pairs

/** Theil and Sen's line at each x; null where there are too few values. */
export function trendLine(xs: number[], ys: (number | null)[]): (number | null)[] {
  const known = xs.flatMap((x, i) => { const y = ys[i]; return y !== null && Number.isFinite(y) ? [[x, y] as const] : []; });
  const every = Math.max(1, Math.ceil(known.length / MOST));
  const points = known.filter((_, i) => i % every === 0);
  if (points.length < 3) return xs.map(() => null);
  const slopes: number[] = [];
  for (let i = 0; i < points.length; i++) for (let j = i + 1; j < points.length; j++) if (points[j][0] > points[i][0]) slopes.push((points[j][1] - points[i][1]) / (points[j][0] - points[i][0]));
  const slope = median(slopes), start = median(points.map(([x, y]) => y - slope * x));
  return xs.map((x) => start + slope * x);
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length % 2 ? sorted[(sorted.length - 1) / 2] : (sorted[sorted.length / 2 - 1] + sorted[sorted.length / 2]) / 2;
}
