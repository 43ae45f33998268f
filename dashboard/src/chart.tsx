// Line charts, drawn by uPlot in the theme's colours. All charts over time share one cursor.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { NOTHING, si } from "./format";
import { cssColour } from "./panel";
import { hover_s, theme } from "./state";

export interface Line {
  label: string;
  values: (number | null)[];
  colour: string;
  strong?: boolean;
  dash?: number[];
}

export interface Mark {
  x: number;
  glyph: string;
}

export type XAxis = "time" | "step" | "samples";

interface Props {
  label: string; // for screen readers
  x: number[];
  lines: Line[];
  height?: number;
  xAxis?: XAxis;
  isShared?: boolean; // shares the cursor with other charts over time
  marks?: Mark[];
  onSelect?: (from: number, to: number) => void;
}

const FONT = "11px system-ui, sans-serif";
const SPARK_HEIGHT = 22;

export function Chart(props: Props) {
  const { label, x, lines, height = 200, xAxis = "time", marks = [] } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const currentMarks = useRef<Mark[]>(marks);
  currentMarks.current = marks;
  const data = [x, ...lines.map((line) => line.values)] as uPlot.AlignedData;
  const shape = [theme.value, xAxis, ...lines.map((line) => `${line.label}${line.colour}`)].join("|");

  useEffect(() => {
    const parent = box.current!;
    const width = () => Math.max(100, parent.clientWidth);
    const options = { ...chartOptions(props, () => currentMarks.current), width: width(), height };
    const chart = new uPlot(options, data, parent);
    plot.current = chart;
    const observer = new ResizeObserver(() => chart.setSize({ width: width(), height }));
    observer.observe(parent);
    return () => {
      observer.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [shape, height]);

  useEffect(() => {
    plot.current?.setData(data);
  }, [x, lines]);

  return <div class="chart" ref={box} role="img" aria-label={label} />;
}

function chartOptions(props: Props, marks: () => Mark[]): Omit<uPlot.Options, "width" | "height"> {
  const { lines, xAxis = "time", isShared = xAxis === "time", onSelect } = props;
  const foreground = cssColour("--muted");
  const stroke = cssColour("--line");
  const axis = {
    stroke: foreground,
    grid: { stroke, width: 1 },
    ticks: { stroke, width: 1 },
    font: FONT,
  };
  const digits = (value: number | null) => (value === null ? NOTHING : String(Number(value.toPrecision(4))));
  return {
    scales: { x: { time: false } },
    cursor: { sync: isShared ? { key: "paceline" } : undefined, drag: { x: !!onSelect, y: false } },
    legend: { show: lines.length > 1, live: true },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((tick) => xTick(tick, xAxis)) },
      { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : digits(tick))) },
    ],
    series: [
      { label: xAxis, value: (_, value) => (value === null ? NOTHING : String(Number(value.toFixed(2)))) },
      ...lines.map((line) => ({
        label: line.label,
        stroke: line.colour,
        width: line.strong ? 2 : 1,
        dash: line.dash,
        spanGaps: true,
        points: { show: false },
        value: (_: uPlot, value: number | null) => digits(value ?? null),
      })),
    ],
    hooks: {
      setCursor: [
        (chart) => {
          if (xAxis !== "time" || !isShared) return;
          const left = chart.cursor.left ?? -1;
          hover_s.value = left < 0 ? null : chart.posToVal(left, "x");
        },
      ],
      draw: [(chart) => drawMarks(chart, marks(), foreground)],
      setSelect: [
        (chart) => {
          const { left, width } = chart.select;
          if (!onSelect || width < 4) return;
          onSelect(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
  };
}

function xTick(value: number, xAxis: XAxis): string {
  if (xAxis === "time") return `${value} s`;
  return value >= 10_000 ? si(value) : String(value);
}

function drawMarks(chart: uPlot, marks: Mark[], colour: string): void {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.fillStyle = colour;
  ctx.strokeStyle = colour;
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.setLineDash([3, 3]);
  for (const mark of marks) {
    const x = chart.valToPos(mark.x, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(mark.glyph, x + 2, bbox.top + 11 * devicePixelRatio);
  }
  ctx.restore();
}

/** A small line without axes; `threshold` is drawn dashed. */
export function Sparkline({
  values,
  label,
  threshold,
}: {
  values: (number | null)[];
  label: string;
  threshold?: number;
}) {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  if (known.length < 2) return null;
  const all = threshold === undefined ? known : [...known, threshold];
  const low = Math.min(...all);
  const high = Math.max(...all);
  const y = (value: number) => (20 - ((value - low) / (high - low || 1)) * 18).toFixed(1);
  const x = (i: number) => ((i / (known.length - 1)) * 100).toFixed(1);
  const points = known.map((value, i) => `${x(i)},${y(value)}`).join(" ");
  return (
    <svg
      class="spark"
      viewBox={`0 0 100 ${SPARK_HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
    >
      {threshold !== undefined && (
        <line
          class="limit"
          x1="0"
          x2="100"
          y1={y(threshold)}
          y2={y(threshold)}
          vector-effect="non-scaling-stroke"
        />
      )}
      <polyline points={points} fill="none" vector-effect="non-scaling-stroke" />
    </svg>
  );
}
