// How does the page hear of the run? A snapshot, then a stream of what is new; a hidden page listens to nothing.

import { batch, effect } from "@preact/signals";
import { cursor_s, duration_s, events, frames, isReplay, link, playing, problem, range, run, runs, selected, server, speed, steps, view } from "./state";
import type { Frame, Happening, Json, KnownRun, Snapshot, StepRow, View } from "./types";

const KEPT_EVENTS = 2000;
const STALE_S = 3;
const AT_HAND = 2000; // steps of one worker, in the server
const BACK_S = 120; // of steps, that are asked for at first
let source: EventSource | null = null;
let seq = 0; // lines of the log that we know
let framed = 0; // and of the last frame
let heard_ms = 0;
let attempt = 0;
let retry = 0;
let generation = 0; // of connections: what an older one says is not heard

export async function ask<T>(path: string, query: Record<string, string | number | null | undefined> = {}): Promise<T> {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries({ run: run.value, ...query })) if (value !== null && value !== undefined && value !== "") said.set(name, String(value));
  const answer = await fetch(`${path}?${said}`, { credentials: "same-origin" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(`${body.error} (${body.hint})`);
  return body as T;
}

export async function post(path: string, body: Record<string, Json>): Promise<{ status: number; body: Record<string, Json> }> {
  try {
    const answer = await fetch(path, {
      method: "POST", credentials: "same-origin", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    });
    return { status: answer.status, body: await answer.json() };
  } catch { // nobody is there, or somebody who speaks no JSON
    return { status: 503, body: { error: "the dashboard does not answer; whether it was done is in the run's log" } };
  }
}

/** Which runs lie beside this one; the newest answer is kept for everybody. */
export async function askRuns(): Promise<KnownRun[]> {
  return (runs.value = (await ask<{ runs: KnownRun[] }>("/api/v1/runs")).runs);
}

export async function connect(): Promise<void> {
  const mine = ++generation;
  waiting = null;
  missed = false;
  disconnect();
  try {
    await look(mine);
  } catch (error) {
    if (mine !== generation) return;
    if (!view.value) problem.value = error instanceof Error ? error.message : String(error);
    return again();
  }
  if (mine !== generation) return;
  attempt = 0;
  listen(mine);
}

/** The whole view, and the steps around it. */
async function look(mine: number): Promise<void> {
  const at = cursor_s.value;
  waiting = []; // what comes meanwhile is newer, and taken afterwards
  const found = await ask<Snapshot>("/api/v1/snapshot", { at_s: at });
  if (mine !== generation) return;
  if (found.server.is_replay && at === null) { // a recording begins at its beginning
    cursor_s.value = 0;
    return look(mine);
  }
  const to = found.view.now_s;
  const from = range.value ? Math.min(range.value[0], to - BACK_S) : to - BACK_S;
  const drawn = await ask<{ lanes: { worker: string; rows: StepRow[] }[] }>("/api/v1/timeline", { from_s: Math.max(0, from), to_s: to + 1, most: 20000, at_s: at });
  if (mine !== generation) return;
  const most = Math.min(AT_HAND, Math.floor(20000 / Math.max(1, drawn.lanes.length))); // a lane with so many rows was cut
  batch(() => {
    problem.value = null;
    server.value = found.server;
    duration_s.value = found.server.duration_s ?? 0;
    seq = framed = found.view.seq;
    take(found.view);
    events.value = found.view.events;
    steps.clear(Math.max(0, from, ...drawn.lanes.filter((lane) => lane.rows.length >= most).map((lane) => lane.rows[0][1])));
    steps.add(drawn.lanes.map((lane) => ({ seq, worker: lane.worker, rows: lane.rows })));
    steps.fresh = []; // all is drawn anew
    const later = waiting ?? [];
    waiting = null;
    for (const frame of later) if (frame.seq > framed) takeFrame(frame);
    frames.value++;
  });
  heard_ms = performance.now();
}

function take(now: View): void {
  view.value = now;
  if (isReplay.value) cursor_s.value = now.now_s;
}

function listen(mine: number): void {
  // A browser has six connections for all tabs together: one that nobody sees takes none.
  if (document.hidden) return;
  if (isReplay.value && !playing.value) return say("paused");
  const said = new URLSearchParams();
  if (run.value) said.set("run", run.value);
  if (isReplay.value) { said.set("at_s", String(cursor_s.value ?? 0)); said.set("speed", String(speed.value)); }
  else said.set("seq", String(seq));
  const opened = (source = new EventSource(`/api/v1/stream?${said}`));
  const hear = <T,>(kind: string, act: (value: T, id: number) => void) =>
    opened.addEventListener(kind, (message) => {
      if (mine !== generation) return;
      heard_ms = performance.now();
      act(JSON.parse((message as MessageEvent).data), Number((message as MessageEvent).lastEventId));
    });
  hear<Frame>("frame", (frame) => { if (waiting) waiting.push(frame); else takeFrame(frame); });
  hear<Happening>("event", (event) => {
    seq = Math.max(seq, event.seq);
    if (!events.value.some((known) => known.seq === event.seq)) events.value = [...events.value, event].slice(-KEPT_EVENTS);
  });
  hear<View>("view", (now) => {
    seq = Math.max(seq, now.seq);
    batch(() => take({ ...now, events: events.value.slice(-200) }));
    if (missed && !waiting) { missed = false; void look(mine).catch(() => again()); }
  });
  hear("reset", () => { if (!isReplay.value) void look(mine).catch(() => again()); });
  hear("end", () => { opened.close(); playing.value = false; say("paused"); void look(mine).catch(() => undefined); });
  opened.onopen = () => { if (mine !== generation) return; attempt = 0; heard_ms = performance.now(); say("live"); };
  opened.onerror = () => {
    if (mine !== generation) return;
    // The browser itself tries again, and says where it stood; unless the server said no.
    if (isReplay.value || opened.readyState === EventSource.CLOSED) return again();
    link.value = { state: "lost", age_s: 0, attempt: ++attempt, retry_s: 1 };
  };
}

function takeFrame(frame: Frame): void {
  if (!isReplay.value && frame.after > framed) missed = true;
  seq = Math.max(seq, frame.seq);
  framed = frame.seq;
  steps.add(frame.steps);
  if (isReplay.value) cursor_s.value = frame.now_s;
  frames.value++;
}
let waiting: Frame[] | null = null; // that came while the whole view was asked for
let missed = false; // a frame was left out, because we were slow: what it held is asked for again

function again(): void {
  disconnect();
  attempt++;
  const wait_s = Math.min(10, 2 ** Math.min(attempt - 1, 4));
  link.value = { state: "lost", age_s: 0, attempt, retry_s: wait_s };
  clearTimeout(retry);
  retry = window.setTimeout(() => void connect(), wait_s * 1000);
}

export function disconnect(): void {
  clearTimeout(retry);
  source?.close();
  source = null;
}

function say(state: "live" | "stale" | "over" | "paused" | "connecting", age_s = 0): void {
  const old = link.value;
  if (old.state !== state || Math.abs(old.age_s - age_s) > 0.05) link.value = { state, age_s, attempt, retry_s: 0 };
}

/** How fresh is what is shown? */
export function watchFreshness(): void {
  setInterval(() => {
    if (!view.value || link.value.state === "lost") return;
    if (isReplay.value) return say(playing.value ? "live" : "paused");
    const age_s = (performance.now() - heard_ms) / 1000;
    if (["finished", "stopped", "failed"].includes(view.value.state)) return say("over");
    say(age_s > STALE_S ? "stale" : "live", age_s);
  }, 500);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { generation++; disconnect(); } else void connect();
  });
}

export function choose(name: string): void {
  batch(() => {
    run.value = name;
    view.value = null;
    events.value = [];
    steps.clear();
    range.value = null;
    selected.value = [];
    cursor_s.value = null;
    playing.value = true;
  });
  void connect();
}

export function seek(at_s: number): void {
  cursor_s.value = Math.max(0, Math.min(duration_s.value, at_s));
  void connect();
}

export function setPlaying(on: boolean): void {
  if (on && cursor_s.value !== null && cursor_s.value >= duration_s.value) cursor_s.value = 0;
  playing.value = on;
  void connect();
}

export function setSpeed(factor: number): void {
  speed.value = Math.max(0.25, Math.min(64, factor));
  if (playing.value) void connect();
}

/** Steps of a window that is older than what is kept are fetched when somebody looks there. */
export function fetchPast(): void {
  let asked = "";
  effect(() => {
    const at = range.value;
    if (!at || !view.value || at[0] >= steps.since_s || steps.hasPast(at[0], Math.min(at[1], steps.since_s))) return;
    const wide = at[1] - at[0], from = Math.max(0, at[0] - wide), to = Math.min(steps.since_s, at[1] + wide);
    const what = `${run.value} ${steps.epoch} ${from} ${to}`;
    if (what === asked) return;
    asked = what;
    const epoch = steps.epoch;
    type Found = { lanes: { worker: string; rows: StepRow[] }[] };
    const at_s = isReplay.value ? cursor_s.value : null;
    const get = (when: number | null) => ask<Found>("/api/v1/timeline", { from_s: from, to_s: to, most: 20000, at_s: when });
    const reaches = (found: Found) => found.lanes.some((lane) => lane.rows.length > 0 && lane.rows[0][1] <= Math.max(0, at[0]));
    // Of a run at work the newest steps are at hand; what was before is read from its log, as a recording.
    void get(at_s).then((found) => (at_s !== null || reaches(found) ? found : get(to)))
      .then((found) => { if (epoch === steps.epoch) { steps.remember(from, to, found.lanes); frames.value++; } }, () => { asked = ""; });
  });
}
