// Timeline component: the Gantt canvas on a page. It follows the run, or shows the selected window.

import { useEffect, useRef, useState } from "preact/hooks";
import { barriers, stalenessFront } from "./barriers";
import { keyEvents } from "./event_bar";
import { plain, seconds } from "./format";
import { Gantt } from "./gantt";
import { cssColour } from "./panel";
import { events, phaseColour, range, selected, steps, theme, view } from "./state";
import { endOf } from "./steps";
import { isOver, PHASES, type Batch } from "./types";

const MIN_BARRIER_PX = 7; // a step must be this wide for its barrier to be drawn
const MAX_OVERLAY_LANES = 64;
const ZOOM = 1.25;

interface Props {
  lanes: string[];
  height: number;
  width_s: number;
  canMove?: boolean;
  label: string;
}

declare global {
  interface Window {
    __latencies?: number[];
  }
}

/** For the benchmark: from the end of each step to the frame after the one that it was drawn in, in ms. */
function recordLatencies(latencies: number[], batches: Batch[]): void {
  const start_ms = view.value!.t0_unix_s * 1000;
  const ends = batches.flatMap((batch) => batch.rows.map((row) => start_ms + endOf(row) * 1000));
  requestAnimationFrame(() => {
    const now_ms = performance.timeOrigin + performance.now();
    for (const end of ends) latencies.push(now_ms - end);
  });
}

/** The window to draw; a finished run that is shorter than the window fills it. */
function followedWindow(width_s: number): [number, number] {
  const isShort = isOver(view.value?.state);
  const width = isShort ? Math.min(width_s, Math.max(0.1, steps.newest_s)) : width_s;
  const now_s = Math.max(steps.newest_s, 0.001);
  return [now_s - width, now_s];
}

export function GanttChart({ lanes, height, width_s, canMove = false, label }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const overlay = useRef<HTMLCanvasElement>(null); // lines across the lanes
  const gantt = useRef<Gantt | null>(null);
  const currentLanes = useRef(lanes);
  currentLanes.current = lanes;
  const [details, setDetails] = useState<string | null>(null);
  const shape = [lanes.join(), theme.value, selected.value.join(), height, range.value?.join()].join("|");

  useEffect(() => {
    gantt.current ??= new Gantt(canvas.current!);
    gantt.current.setStyle({
      lanes,
      selected: new Set(selected.value),
      background: cssColour("--paper"),
      line: cssColour("--line"),
      foreground: cssColour("--ink"),
      marks: keyEvents(events.value)
        .filter((event) => event.kind === "generation_entered")
        .map((event) => event.t_s),
    });
  }, [shape, events.value.length]);

  useEffect(() => {
    const chart = gantt.current!;
    const observer = new ResizeObserver(() => chart.resize());
    observer.observe(canvas.current!);
    chart.resize();
    let isRunning = true;
    let lastNewest_s = -1;
    let lastContent = "";
    let epoch = steps.epoch;
    const draw = () => {
      if (!isRunning) return;
      requestAnimationFrame(draw);
      if (epoch !== steps.epoch) {
        epoch = steps.epoch;
        chart.isDirty = true;
      }
      const fixed = canMove ? range.value : null;
      const [from_s, to_s] = fixed ?? followedWindow(width_s);
      const content = `${fixed?.join()}${steps.newest_s}|${steps.newBatches.length}|${steps.pastVersion}`;
      if (fixed) {
        if (content !== lastContent || chart.isDirty) chart.drawAll(from_s, to_s);
      } else if (to_s !== lastNewest_s || steps.newBatches.length || chart.isDirty) {
        chart.follow(to_s, to_s - from_s);
        lastNewest_s = to_s;
      }
      if (overlay.current && content !== lastContent) {
        drawOverlay(overlay.current, currentLanes.current, from_s, to_s);
      }
      lastContent = content;
      if (steps.newBatches.length) {
        if (window.__latencies) recordLatencies(window.__latencies, steps.newBatches);
        steps.newBatches = [];
      }
    };
    requestAnimationFrame(draw);
    return () => {
      isRunning = false;
      observer.disconnect();
    };
  }, [canMove, width_s]);

  const currentWindow = () => range.value ?? [steps.newest_s - width_s, steps.newest_s];
  const onWheel = (event: WheelEvent) => {
    if (!canMove) return;
    event.preventDefault();
    const [from, to] = currentWindow();
    const centre = from + ((to - from) * event.offsetX) / Math.max(1, canvas.current!.clientWidth);
    const factor = event.deltaY > 0 ? ZOOM : 1 / ZOOM;
    range.value = [Math.max(0, centre - (centre - from) * factor), centre + (to - centre) * factor];
  };
  const onDrag = (event: PointerEvent) => {
    if (!canMove || event.buttons !== 1 || Math.abs(event.movementX) < 1) return;
    const [from, to] = currentWindow();
    const shift_s = (-event.movementX / Math.max(1, canvas.current!.clientWidth)) * (to - from);
    range.value = [from + shift_s, to + shift_s];
  };
  const onClick = (event: MouseEvent) => {
    setDetails(describeHit(gantt.current, event.offsetX, event.offsetY));
  };
  const size = { height: `${height}px` };
  return (
    <div class="gantt">
      <canvas
        ref={canvas}
        style={size}
        role="img"
        aria-label={label}
        onWheel={onWheel}
        onPointerMove={onDrag}
        onClick={onClick}
        data-lanes={lanes.length}
      />
      {canMove && <canvas ref={overlay} class="overlay" style={size} aria-hidden="true" />}
      {canMove && (
        <p class="details" role="status">
          {details ?? "Click a step to see its phases. Scroll to zoom, drag to move."}
        </p>
      )}
    </div>
  );
}

function describeHit(gantt: Gantt | null, x: number, y: number): string | null {
  const hit = gantt?.hitTest(x, y);
  if (!hit) return null;
  const phases = PHASES.map((name, i) => [name, hit.row[i + 2]] as const)
    .filter(([, duration]) => duration > 0)
    .map(([name, duration]) => `${name} ${seconds(duration)}`);
  const total = seconds(endOf(hit.row) - hit.row[1]);
  const step = `${hit.worker}, step ${hit.row[0]}, phase ${hit.phase}`;
  return `${step}: ${phases.join(", ")}; total ${total}; loss ${plain(hit.row[10])}`;
}

/** Barriers of synchronous strategies, or the staleness front of strategies with a bound. */
function drawOverlay(canvas: HTMLCanvasElement, lanes: string[], from_s: number, to_s: number): void {
  const scale = devicePixelRatio || 1;
  const { meets: hasBarriers, staleness_bound: bound } = view.value!.run;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
  if (!lanes.length || lanes.length > MAX_OVERLAY_LANES) return;
  if (bound !== null) {
    drawStalenessFront(canvas, lanes, from_s, to_s, bound);
    return;
  }
  const stepsShown = Math.max(1, steps.between(lanes[0], from_s, to_s).length);
  if (!hasBarriers || canvas.width / stepsShown < MIN_BARRIER_PX * scale) return;
  const context = canvas.getContext("2d")!;
  const per_s = canvas.width / Math.max(1e-6, to_s - from_s);
  context.fillStyle = getComputedStyle(canvas).color;
  for (const at_s of barriers(lanes.map((name) => steps.between(name, from_s, to_s)))) {
    context.fillRect((at_s - from_s) * per_s, 0, scale, canvas.height);
  }
}

function drawStalenessFront(
  canvas: HTMLCanvasElement,
  lanes: string[],
  from_s: number,
  to_s: number,
  bound: number,
): void {
  const front = stalenessFront(
    lanes.map((name) => steps.between(name, from_s, to_s)),
    bound,
  );
  if (!front) return;
  const scale = devicePixelRatio || 1;
  const context = canvas.getContext("2d")!;
  const per_s = canvas.width / Math.max(1e-6, to_s - from_s);
  const laneHeight = canvas.height / lanes.length;
  context.strokeStyle = getComputedStyle(canvas).color;
  context.setLineDash([6 * scale, 4 * scale]);
  context.lineWidth = 2 * scale;
  context.beginPath();
  front.times.forEach((at_s, i) => {
    if (at_s === undefined) return;
    const x = at_s === null ? canvas.width - context.lineWidth : (at_s - from_s) * per_s;
    context.lineTo(x, i * laneHeight);
    context.lineTo(x, (i + 1) * laneHeight);
  });
  context.stroke();
}

export function PhaseLegend() {
  return (
    <ul class="legend" aria-label="Colours of phases">
      {PHASES.map((phase) => (
        <li key={phase}>
          <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true" data-phase-colour={phase}>
            <rect width="10" height="10" fill={phaseColour(phase)} />
          </svg>{" "}
          {phase}
        </li>
      ))}
    </ul>
  );
}

/** Present workers, then those with steps in memory that are gone; by number or by lag. */
export function timelineLanes(byLag = false): string[] {
  const rows = view.value?.workers ?? [];
  const present = rows.map((row) => row.worker);
  const gone = steps.names().filter((name) => !present.includes(name));
  const lanes = [...present, ...gone];
  if (!byLag) return lanes;
  const lag = new Map(rows.map((row) => [row.worker, row.lag]));
  return lanes.sort((a, b) => (lag.get(b) ?? 0) - (lag.get(a) ?? 0));
}
