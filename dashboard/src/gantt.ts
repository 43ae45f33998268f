// How are thousands of phases drawn ten times a second? The picture is pushed to the left, and only what is new drawn.

import { phaseColour, steps } from "./state";
import { endOf } from "./steps";
import { PHASES, type StepRow } from "./types";

export interface GanttLook {
  lanes: string[];
  selected: Set<string>;
  paper: string; // colours of the theme
  line: string;
  ink: string;
  marks: { t_s: number; glyph: string }[];
}

export class Gantt {
  private context: CanvasRenderingContext2D;
  private from_s = 0; // at the left edge
  private per_s = 1; // pixels
  isDirty = true; // all must be drawn anew
  private look: GanttLook = { lanes: [], selected: new Set(), paper: "#fff", line: "#ddd", ink: "#000", marks: [] };
  private lane = new Map<string, number>();
  private colours: string[] = [];

  constructor(readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext("2d", { alpha: false })!;
  }

  set(look: GanttLook): void {
    this.look = look;
    this.lane = new Map(look.lanes.map((name, i) => [name, i]));
    this.colours = PHASES.map(phaseColour);
    this.isDirty = true;
  }

  resize(): void {
    const scale = devicePixelRatio || 1;
    const [w, h] = [Math.round(this.canvas.clientWidth * scale), Math.round(this.canvas.clientHeight * scale)];
    if (w === this.canvas.width && h === this.canvas.height) return;
    this.canvas.width = Math.max(1, w);
    this.canvas.height = Math.max(1, h);
    this.isDirty = true;
  }

  laneHeight(): number {
    return this.canvas.height / Math.max(1, this.look.lanes.length);
  }

  /** Everything in this window. */
  drawAll(from_s: number, to_s: number): void {
    const { context: c, canvas } = this;
    this.from_s = from_s;
    this.per_s = canvas.width / Math.max(1e-6, to_s - from_s);
    c.fillStyle = this.look.paper;
    c.fillRect(0, 0, canvas.width, canvas.height);
    this.stripe();
    for (const name of this.look.lanes) for (const row of steps.between(name, from_s - 5, to_s)) this.row(name, row);
    this.marks(from_s, to_s);
    this.isDirty = false;
  }

  /** The window ends at `now_s`; what was seen moves, and only new steps are drawn. */
  follow(now_s: number, width_s: number): void {
    const { context: c, canvas } = this;
    const per_s = canvas.width / width_s;
    if (this.isDirty || Math.abs(per_s - this.per_s) > 1e-9) return this.drawAll(now_s - width_s, now_s);
    const shift = Math.floor((now_s - width_s - this.from_s) * per_s);
    if (shift < 0 || shift >= canvas.width) return this.drawAll(now_s - width_s, now_s);
    if (shift > 0) {
      c.drawImage(canvas, -shift, 0);
      c.fillStyle = this.look.paper;
      c.fillRect(canvas.width - shift, 0, shift, canvas.height);
      this.from_s += shift / per_s;
      this.stripe(canvas.width - shift);
    }
    for (const batch of steps.fresh) for (const row of batch.rows) this.row(batch.worker, row);
  }

  private stripe(x = 0): void {
    const h = this.laneHeight();
    if (h < 6) return;
    this.context.fillStyle = this.look.line;
    for (let i = 1; i < this.look.lanes.length; i++) this.context.fillRect(x, Math.round(i * h), this.canvas.width - x, 1);
  }

  private row(worker: string, row: StepRow): void {
    const number = this.lane.get(worker);
    if (number === undefined) return;
    const h = this.laneHeight();
    const gap = h > 8 ? 2 : h > 3 ? 1 : 0;
    const top = Math.round(number * h) + gap;
    const high = Math.max(1, Math.round((number + 1) * h) - gap - top);
    const c = this.context;
    let x = (row[1] - this.from_s) * this.per_s;
    for (let phase = 0; phase < 8; phase++) {
      const w = row[phase + 2] * this.per_s;
      if (w > 0.05) {
        c.fillStyle = this.colours[phase];
        c.fillRect(x, top, Math.max(w, 0.5), high);
      }
      x += w;
    }
    if (this.look.selected.has(worker) && h > 6) {
      c.fillStyle = this.look.ink;
      c.fillRect((row[1] - this.from_s) * this.per_s, top + high - 1, x - (row[1] - this.from_s) * this.per_s, 1);
    }
  }

  private marks(from_s: number, to_s: number): void {
    const c = this.context;
    for (const mark of this.look.marks) {
      if (mark.t_s < from_s || mark.t_s > to_s) continue;
      c.fillStyle = this.look.ink;
      c.fillRect((mark.t_s - from_s) * this.per_s, 0, 1, this.canvas.height);
    }
  }

  /** What is under this point of the canvas (in CSS pixels)? */
  at(x: number, y: number): { worker: string; row: StepRow; phase: string; t_s: number } | null {
    const scale = this.canvas.width / Math.max(1, this.canvas.clientWidth);
    const name = this.look.lanes[Math.floor((y * scale) / this.laneHeight())];
    const t_s = this.from_s + (x * scale) / this.per_s;
    if (name === undefined) return null;
    for (const row of steps.between(name, t_s - 60, t_s)) {
      if (row[1] > t_s || endOf(row) < t_s) continue;
      let end = row[1];
      for (let i = 0; i < 8; i++) if ((end += row[i + 2]) >= t_s) return { worker: name, row, phase: PHASES[i], t_s };
    }
    return null;
  }
}
