// How does the timeline live on a page? It follows the run, or stands still where somebody looks.

import { useEffect, useRef, useState } from "preact/hooks";
import { barriers, front } from "./fronts";
import { Gantt } from "./gantt";
import { events, phaseColour, range, selected, steps, theme, view } from "./state";
import { endOf } from "./steps";
import { told } from "./ribbon";
import { PHASES, type Batch } from "./types";
import { plain, seconds } from "./words";

interface Props { lanes: string[]; height: number; width_s: number; canMove?: boolean; label: string }
declare global { interface Window { __latencies?: number[] } }

/** For the benchmark: from the end of each step to the frame after the one that it was drawn in, in ms. */
function measure(found: number[], fresh: Batch[]): void {
  const start_ms = view.value!.t0_unix_s * 1000;
  const ends = fresh.flatMap((batch) => batch.rows.map((row) => start_ms + endOf(row) * 1000));
  requestAnimationFrame(() => {
    const now_ms = performance.timeOrigin + performance.now();
    for (const end of ends) found.push(now_ms - end);
  });
}

export function GanttBox({ lanes, height, width_s, canMove = false, label }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null); // lines across the lanes, drawn anew each time
  const gantt = useRef<Gantt | null>(null);
  const drawn = useRef(lanes);
  drawn.current = lanes;
  const [under, setUnder] = useState<string | null>(null);
  const shape = `${lanes.join()}|${theme.value}|${selected.value.join()}|${height}|${range.value?.join()}`;

  useEffect(() => {
    const made = (gantt.current ??= new Gantt(canvas.current!));
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    made.set({
      lanes, selected: new Set(selected.value), paper: colour("--paper"), line: colour("--line"), ink: colour("--ink"),
      marks: told(events.value).filter((e) => e.kind === "generation_entered").map((e) => ({ t_s: e.t_s, glyph: e.glyph })),
    });
  }, [shape, events.value.length]);

  useEffect(() => {
    const box = canvas.current!;
    const watcher = new ResizeObserver(() => gantt.current?.resize());
    watcher.observe(box);
    gantt.current!.resize();
    let running = true, last_s = -1, lastRange = "", epoch = steps.epoch;
    const isOver = () => ["finished", "stopped", "failed"].includes(view.value?.state ?? "");
    const wide = () => (isOver() ? Math.min(width_s, Math.max(0.1, steps.newest_s)) : width_s); // a short run fills it
    const draw = () => {
      if (!running) return;
      requestAnimationFrame(draw);
      if (epoch !== steps.epoch) { epoch = steps.epoch; gantt.current!.isDirty = true; }
      const at = canMove ? range.value : null;
      const text = `${at?.join()}${steps.newest_s}|${steps.fresh.length}|${steps.looked}`;
      if (at) {
        if (text !== lastRange || gantt.current!.isDirty) gantt.current!.drawAll(at[0], at[1]);
      } else {
        const now_s = Math.max(steps.newest_s, 0.001);
        const width_s = wide();
        if (now_s !== last_s || steps.fresh.length || gantt.current!.isDirty) {
          gantt.current!.follow(now_s, width_s);
          last_s = now_s;
        }
      }
      if (over.current && text !== lastRange) drawOver(over.current, drawn.current, ...(at ?? [steps.newest_s - wide(), steps.newest_s] as [number, number]));
      lastRange = text;
      if (steps.fresh.length) {
        if (window.__latencies) measure(window.__latencies, steps.fresh);
        steps.fresh = [];
      }
    };
    requestAnimationFrame(draw);
    return () => { running = false; watcher.disconnect(); };
  }, [canMove, width_s]);

  const move = (event: WheelEvent) => {
    if (!canMove) return;
    event.preventDefault();
    const [from, to] = range.value ?? [steps.newest_s - width_s, steps.newest_s];
    const share = event.offsetX / Math.max(1, canvas.current!.clientWidth);
    const middle = from + (to - from) * share, factor = event.deltaY > 0 ? 1.25 : 0.8;
    range.value = [Math.max(0, middle - (middle - from) * factor), middle + (to - middle) * factor];
  };
  const drag = (event: PointerEvent) => {
    if (!canMove || event.buttons !== 1 || Math.abs(event.movementX) < 1) return;
    const [from, to] = range.value ?? [steps.newest_s - width_s, steps.newest_s];
    const by = (-event.movementX / Math.max(1, canvas.current!.clientWidth)) * (to - from);
    range.value = [from + by, to + by];
  };
  const tellUnder = (event: MouseEvent) => {
    const found = gantt.current?.at(event.offsetX, event.offsetY);
    if (!found) return setUnder(null);
    const parts = PHASES.map((name, i) => (found.row[i + 2] > 0 ? `${name} ${seconds(found.row[i + 2])}` : "")).filter(Boolean);
    setUnder(`${found.worker}, step ${found.row[0]}, in ${found.phase}: ${parts.join(", ")}; in all ${seconds(endOf(found.row) - found.row[1])}; loss ${plain(found.row[10])}`);
  };
  const css = { height: `${height}px` };
  return (
    <div class="gantt">
      <canvas ref={canvas} style={css} role="img" aria-label={label} onWheel={move} onPointerMove={drag} onClick={tellUnder} data-lanes={lanes.length} />
      {canMove && <canvas ref={over} class="over" style={css} aria-hidden="true" />}
      {canMove && <p class="under" role="status">{under ?? "Click a box to see what it is."}</p>}
    </div>
  );
}

const CLOSE_PX = 7; // a step must be so wide for its meeting to be a line of its own
const MOST_LANES = 64;

/** Where all met, of modes in which they do; of modes with a bound, how far behind the first one anybody may be. */
function drawOver(canvas: HTMLCanvasElement, lanes: string[], from_s: number, to_s: number): void {
  const scale = devicePixelRatio || 1, { meets, staleness_bound: bound } = view.value!.run;
  [canvas.width, canvas.height] = [Math.max(1, Math.round(canvas.clientWidth * scale)), Math.max(1, Math.round(canvas.clientHeight * scale))];
  if (!lanes.length || lanes.length > MOST_LANES || (!meets && bound === null)) return;
  // Most of the time a window is too wide for lines: then nothing is looked up.
  if (bound === null && canvas.width / Math.max(1, steps.between(lanes[0], from_s, to_s).length) < CLOSE_PX * scale) return;
  const c = canvas.getContext("2d")!, per_s = canvas.width / Math.max(1e-6, to_s - from_s), high = canvas.height / lanes.length;
  const rows = lanes.map((name) => steps.between(name, from_s, to_s));
  c.strokeStyle = c.fillStyle = getComputedStyle(canvas).color;
  if (bound !== null) {
    const found = front(rows, bound);
    c.setLineDash([6 * scale, 4 * scale]);
    c.lineWidth = 2 * scale;
    c.beginPath();
    found?.at.forEach((at_s, i) => {
      if (at_s === undefined) return;
      const x = at_s === null ? canvas.width - c.lineWidth : (at_s - from_s) * per_s;
      c.lineTo(x, i * high);
      c.lineTo(x, (i + 1) * high);
    });
    c.stroke();
  } else {
    for (const at_s of barriers(rows)) c.fillRect((at_s - from_s) * per_s, 0, scale, canvas.height);
  }
}

export function Legend() {
  return <ul class="legend" aria-label="Colours of phases">{[...legend()].map(([colour, names]) => <li key={colour}><Swatch colour={colour} /> {names.join(", ")}</li>)}</ul>;
}

/** What is drawn alike is named together. */
function legend(): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const name of PHASES) found.set(phaseColour(name), [...(found.get(phaseColour(name)) ?? []), name]);
  return found;
}

function Swatch({ colour }: { colour: string }) {
  return <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" fill={colour} /></svg>;
}

/** Workers that are there, then those that were; by number or by lag. */
export function lanesOf(byLag = false): string[] {
  const rows = view.value?.workers ?? [];
  const known = rows.map((row) => row.worker), there = new Set(known);
  const more = steps.names().filter((name) => !there.has(name));
  const all = [...known, ...more];
  if (!byLag) return all;
  const lag = new Map(rows.map((row) => [row.worker, row.lag]));
  return [...all].sort((a, b) => (lag.get(b) ?? 0) - (lag.get(a) ?? 0));
}
