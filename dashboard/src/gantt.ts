// Canvas renderer of the timeline. While it follows a run, the picture is shifted and only new steps are drawn.

import { phaseColour, steps } from "./state";
import { endOf } from "./steps";
import { PHASES, type StepRow } from "./types";

const MIN_PHASE_PX = 0.05;
const MIN_LANE_LINE_PX = 6; // lanes below this height have no separators

export interface GanttStyle {
  lanes: string[];
  selected: Set<string>;
  background: string;
  line: string;
  foreground: string;
  marks: number[]; // times, in s
}

export interface GanttHit {
  worker: string;
  row: StepRow;
  phase: string;
}

export class Gantt {
  isDirty = true; // everything must be drawn again
  private context: CanvasRenderingContext2D;
  private from_s = 0; // at the left edge
  private per_s = 1; // pixels
  private style: GanttStyle = {
    lanes: [],
    selected: new Set(),
    background: "#fff",
    line: "#ddd",
    foreground: "#000",
    marks: [],
  };
  private laneIndex = new Map<string, number>();
  private colours: string[] = [];

  constructor(readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext("2d", { alpha: false })!;
  }

  setStyle(style: GanttStyle): void {
    this.style = style;
    this.laneIndex = new Map(style.lanes.map((name, i) => [name, i]));
    this.colours = PHASES.map(phaseColour);
    this.isDirty = true;
  }

  resize(): void {
    const scale = devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * scale);
    const height = Math.round(this.canvas.clientHeight * scale);
    if (width === this.canvas.width && height === this.canvas.height) return;
    this.canvas.width = Math.max(1, width);
    this.canvas.height = Math.max(1, height);
    this.isDirty = true;
  }

  private laneHeight(): number {
    return this.canvas.height / Math.max(1, this.style.lanes.length);
  }

  /** Draw everything in this window. */
  drawAll(from_s: number, to_s: number): void {
    const { canvas } = this;
    this.from_s = from_s;
    this.per_s = canvas.width / Math.max(1e-6, to_s - from_s);
    this.clear(0);
    for (const name of this.style.lanes) {
      for (const row of steps.between(name, from_s - 5, to_s)) this.drawStep(name, row);
    }
    this.drawMarks(from_s, to_s);
    this.isDirty = false;
  }

  /** The window ends at `now_s`: shift the picture and draw the new steps. */
  follow(now_s: number, width_s: number): void {
    const { canvas } = this;
    const per_s = canvas.width / width_s;
    const shift = Math.floor((now_s - width_s - this.from_s) * per_s);
    const isRescaled = Math.abs(per_s - this.per_s) > 1e-9;
    if (this.isDirty || isRescaled || shift < 0 || shift >= canvas.width) {
      this.drawAll(now_s - width_s, now_s);
      return;
    }
    if (shift > 0) {
      this.context.drawImage(canvas, -shift, 0);
      this.from_s += shift / per_s;
      this.clear(canvas.width - shift);
    }
    for (const batch of steps.newBatches) {
      for (const row of batch.rows) this.drawStep(batch.worker, row);
    }
  }

  /** Background and lane separators from `x` to the right edge. */
  private clear(x: number): void {
    const { context, canvas, style } = this;
    context.fillStyle = style.background;
    context.fillRect(x, 0, canvas.width - x, canvas.height);
    const height = this.laneHeight();
    if (height < MIN_LANE_LINE_PX) return;
    context.fillStyle = style.line;
    for (let i = 1; i < style.lanes.length; i++) {
      context.fillRect(x, Math.round(i * height), canvas.width - x, 1);
    }
  }

  private drawStep(worker: string, row: StepRow): void {
    const lane = this.laneIndex.get(worker);
    if (lane === undefined) return;
    const { context } = this;
    const laneHeight = this.laneHeight();
    const gap = gapOf(laneHeight);
    const top = Math.round(lane * laneHeight) + gap;
    const height = Math.max(1, Math.round((lane + 1) * laneHeight) - gap - top);
    const start = (row[1] - this.from_s) * this.per_s;
    let x = start;
    for (let phase = 0; phase < PHASES.length; phase++) {
      const width = row[phase + 2] * this.per_s;
      if (width > MIN_PHASE_PX) {
        context.fillStyle = this.colours[phase];
        context.fillRect(x, top, Math.max(width, 0.5), height);
      }
      x += width;
    }
    if (this.style.selected.has(worker) && laneHeight > MIN_LANE_LINE_PX) {
      context.fillStyle = this.style.foreground;
      context.fillRect(start, top + height - 1, x - start, 1);
    }
  }

  private drawMarks(from_s: number, to_s: number): void {
    this.context.fillStyle = this.style.foreground;
    for (const t_s of this.style.marks) {
      if (t_s < from_s || t_s > to_s) continue;
      this.context.fillRect((t_s - from_s) * this.per_s, 0, 1, this.canvas.height);
    }
  }

  /** The step and phase at a point of the canvas, in CSS pixels. */
  hitTest(x: number, y: number): GanttHit | null {
    const scale = this.canvas.width / Math.max(1, this.canvas.clientWidth);
    const worker = this.style.lanes[Math.floor((y * scale) / this.laneHeight())];
    const t_s = this.from_s + (x * scale) / this.per_s;
    if (worker === undefined) return null;
    for (const row of steps.between(worker, t_s - 60, t_s)) {
      if (row[1] > t_s || endOf(row) < t_s) continue;
      let end = row[1];
      for (let i = 0; i < PHASES.length; i++) {
        end += row[i + 2];
        if (end >= t_s) return { worker, row, phase: PHASES[i] };
      }
    }
    return null;
  }
}

function gapOf(laneHeight: number): number {
  if (laneHeight > 8) return 2;
  return laneHeight > 3 ? 1 : 0;
}
