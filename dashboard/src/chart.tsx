// How is a line drawn? By uPlot, in the colours of the theme; all charts over time share one cursor.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { hover_s, theme } from "./state";
import { si } from "./words";

export interface Line { label: string; values: (number | null)[]; strong?: boolean; colour: string; dash?: number[] }
export interface Mark { x: number; glyph: string; text: string }
interface Props {
  label: string; // for those who do not see it
  x: number[]; lines: Line[]; height?: number; overTime?: boolean; isShared?: boolean; unit?: string; marks?: Mark[]; log?: boolean; along?: string; // what is on the x axis
  onSelect?: (from: number, to: number) => void;
}

export function Chart({ label, x, lines, height = 200, overTime = true, isShared = overTime, unit = "", marks = [], log = false, along = overTime ? "time" : "step", onSelect }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const marked = useRef<Mark[]>(marks);
  marked.current = marks;
  const shape = [theme.value, lines.map((line) => `${line.label}${line.colour}`).join(), overTime, unit, log, along].join("|");

  useEffect(() => {
    const place = box.current!;
    const style = getComputedStyle(document.documentElement);
    const [ink, grid] = [style.getPropertyValue("--muted").trim(), style.getPropertyValue("--line").trim()];
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui, sans-serif" };
    const made = new uPlot({
      width: Math.max(100, place.clientWidth), height,
      scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
      cursor: { sync: isShared ? { key: "paceline" } : undefined, drag: { x: !!onSelect, y: false } },
      legend: { show: lines.length > 1, live: true },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => (along === "time" ? `${t} s` : t >= 10_000 ? si(t) : String(t))) },
        { ...axis, size: 58, values: (_, ticks) => ticks.map((t) => (t === null ? "" : `${Number(t.toPrecision(4))}${unit}`)) }],
      series: [{ label: along, value: (_, v) => (v === null ? "–" : `${Number(v.toFixed(2))}`) },
        ...lines.map((line) => ({
          label: line.label, stroke: line.colour, width: line.strong ? 2 : 1, dash: line.dash, spanGaps: true, points: { show: false },
          value: (_: uPlot, v: number | null) => (v === null || v === undefined ? "–" : `${Number(v.toPrecision(4))}${unit}`),
        }))],
      hooks: {
        setCursor: [(u) => {
          if (along !== "time" || !isShared) return;
          const left = u.cursor.left ?? -1;
          hover_s.value = left < 0 ? null : u.posToVal(left, "x");
        }],
        draw: [(u) => drawMarks(u, marked.current, ink)],
        setSelect: [(u) => {
          if (!onSelect || u.select.width < 4) return;
          onSelect(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    }, [x, ...lines.map((line) => line.values)] as uPlot.AlignedData, place);
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: Math.max(100, place.clientWidth), height }));
    watcher.observe(place);
    return () => { watcher.disconnect(); made.destroy(); plot.current = null; };
  }, [shape, height]);

  useEffect(() => {
    plot.current?.setData([x, ...lines.map((line) => line.values)] as uPlot.AlignedData);
  }, [x, lines]);

  return <div class="chart" ref={box} role="img" aria-label={label} />;
}

function drawMarks(u: uPlot, marks: Mark[], ink: string): void {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.fillStyle = ctx.strokeStyle = ink;
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.setLineDash([3, 3]);
  for (const mark of marks) {
    const x = u.valToPos(mark.x, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(mark.glyph, x + 2, bbox.top + 11 * devicePixelRatio);
  }
  ctx.restore();
}

/** Values against a limit, which is dashed. */
export function Against({ values, limit, label }: { values: number[]; limit: number; label: string }) {
  if (values.length < 2) return null;
  const [low, high] = [Math.min(limit, ...values), Math.max(limit, ...values)];
  const y = (value: number) => (20 - ((value - low) / (high - low || 1)) * 18).toFixed(1);
  const points = values.map((value, i) => `${((i / (values.length - 1)) * 100).toFixed(1)},${y(value)}`).join(" ");
  return <svg class="spark" viewBox="0 0 100 22" preserveAspectRatio="none" role="img" aria-label={label}><line x1="0" x2="100" y1={y(limit)} y2={y(limit)} class="limit" vector-effect="non-scaling-stroke" /><polyline points={points} fill="none" vector-effect="non-scaling-stroke" /></svg>;
}

export function Spark({ values, label }: { values: (number | null)[]; label: string }) {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  if (known.length < 2) return null;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const points = known.map((value, i) => `${((i / (known.length - 1)) * 100).toFixed(1)},${(20 - ((value - low) / (high - low || 1)) * 18).toFixed(1)}`).join(" ");
  return <svg class="spark" viewBox="0 0 100 22" preserveAspectRatio="none" role="img" aria-label={label}><polyline points={points} fill="none" vector-effect="non-scaling-stroke" /></svg>;
}
