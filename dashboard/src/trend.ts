// Robust trend line: the median of all slopes (Theil and Sen), which outliers do not change. Pure.

const MAX_POINTS = 80; // the number of slopes grows with its square

/** The line at each x; null where there are fewer than three values. */
export function trendLine(xs: number[], ys: (number | null)[]): (number | null)[] {
  const known: [number, number][] = [];
  xs.forEach((x, i) => {
    const y = ys[i];
    if (y !== null && Number.isFinite(y)) known.push([x, y]);
  });
  const every = Math.max(1, Math.ceil(known.length / MAX_POINTS));
  const points = known.filter((_, i) => i % every === 0);
  if (points.length < 3) return xs.map(() => null);
  const slope = median(slopesOf(points));
  const intercept = median(points.map(([x, y]) => y - slope * x));
  return xs.map((x) => intercept + slope * x);
}

function slopesOf(points: [number, number][]): number[] {
  const slopes: number[] = [];
  for (let i = 0; i < points.length; i++) {
    for (let j = i + 1; j < points.length; j++) {
      const run = points[j][0] - points[i][0];
      if (run > 0) slopes.push((points[j][1] - points[i][1]) / run);
    }
  }
  return slopes;
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
