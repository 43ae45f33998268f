// Connection to the server: one snapshot, then a stream of server-sent events from its sequence number on.
//
// Every connection has an id. Responses and messages of an earlier connection are ignored, so a slow response
// cannot overwrite a newer view. A hidden page closes its stream.

import { batch, effect } from "@preact/signals";
import {
  cursor_s,
  duration_s,
  events,
  frames,
  isReplay,
  link,
  playing,
  problem,
  range,
  run,
  runs,
  selected,
  server,
  speed,
  steps,
  view,
  type Link,
} from "./state";
import {
  isOver,
  type Frame,
  type Json,
  type Lane,
  type RunEvent,
  type RunSummary,
  type Snapshot,
  type View,
} from "./types";

const MAX_EVENTS = 2000;
const STALE_AFTER_S = 3;
const FRESHNESS_POLL_MS = 500;
const SERVER_ROWS = 2000; // steps of one worker that the server has in memory
const MAX_ROWS = 20_000; // of one timeline response
const INITIAL_WINDOW_S = 120; // of steps, fetched with the snapshot
const MAX_RETRY_S = 10;

type Query = Record<string, string | number | null | undefined>;
interface TimelineResponse {
  lanes: Lane[];
}

let source: EventSource | null = null;
let connectionId = 0;
let seq = 0; // lines of the log that are shown
let lastFrameSeq = 0;
let lastMessage_ms = 0;
let attempt = 0;
let retryTimer = 0;
let pendingFrames: Frame[] | null = null; // received while a snapshot is loading; null: none is loading
let hasDroppedFrames = false; // the server dropped frames, because this page was slow: load a snapshot

export async function fetchJson<T>(path: string, query: Query = {}): Promise<T> {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries({ run: run.value, ...query })) {
    if (value !== null && value !== undefined && value !== "") params.set(name, String(value));
  }
  const response = await fetch(`${path}?${params}`, { credentials: "same-origin" });
  const body = await response.json();
  if (!response.ok) throw new Error(`${body.error} (${body.hint})`);
  return body as T;
}

export interface PostResult {
  status: number;
  body: Record<string, Json>;
}

export async function postJson(path: string, body: Record<string, Json>): Promise<PostResult> {
  try {
    const response = await fetch(path, {
      method: "POST",
      credentials: "same-origin",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    return { status: response.status, body: await response.json() };
  } catch {
    // No response, or one that is not JSON.
    const error = "the dashboard does not respond; the run's log shows whether the request was executed";
    return { status: 503, body: { error } };
  }
}

/** The runs of this folder; the newest response is shared by all pages. */
export async function fetchRuns(): Promise<RunSummary[]> {
  const response = await fetchJson<{ runs: RunSummary[] }>("/api/v1/runs");
  runs.value = response.runs;
  return response.runs;
}

export async function connect(): Promise<void> {
  const id = ++connectionId;
  pendingFrames = null;
  hasDroppedFrames = false;
  disconnect();
  try {
    await loadSnapshot(id);
  } catch (error) {
    if (id !== connectionId) return;
    if (!view.value) problem.value = error instanceof Error ? error.message : String(error);
    scheduleRetry();
    return;
  }
  if (id !== connectionId) return;
  attempt = 0;
  openStream(id);
}

/** Load the whole view and the steps before it. */
async function loadSnapshot(id: number): Promise<void> {
  const at_s = cursor_s.value;
  pendingFrames = []; // frames that arrive meanwhile are newer, and applied afterwards
  const snapshot = await fetchJson<Snapshot>("/api/v1/snapshot", { at_s });
  if (id !== connectionId) return;
  if (snapshot.server.is_replay && at_s === null) {
    cursor_s.value = 0; // a recording starts at its beginning
    return loadSnapshot(id);
  }
  const to_s = snapshot.view.now_s;
  const earliest_s = to_s - INITIAL_WINDOW_S;
  const from_s = Math.max(0, range.value ? Math.min(range.value[0], earliest_s) : earliest_s);
  const window = { from_s, to_s: to_s + 1, most: MAX_ROWS, at_s };
  const { lanes } = await fetchJson<TimelineResponse>("/api/v1/timeline", window);
  if (id !== connectionId) return;
  batch(() => applySnapshot(snapshot, lanes, from_s));
  lastMessage_ms = performance.now();
}

function applySnapshot(snapshot: Snapshot, lanes: Lane[], from_s: number): void {
  problem.value = null;
  server.value = snapshot.server;
  duration_s.value = snapshot.server.duration_s ?? 0;
  seq = snapshot.view.seq;
  lastFrameSeq = seq;
  setView(snapshot.view);
  events.value = snapshot.view.events;
  steps.clear(completeSince(lanes, from_s));
  steps.add(lanes.map((lane) => ({ seq, worker: lane.worker, rows: lane.rows })));
  steps.newBatches = []; // a new epoch is drawn as a whole
  const frameQueue = pendingFrames ?? [];
  pendingFrames = null;
  for (const frame of frameQueue) {
    if (frame.seq > lastFrameSeq) applyFrame(frame);
  }
  frames.value++;
}

/** From when on all lanes are complete: a lane with as many rows as the server returns was truncated. */
function completeSince(lanes: Lane[], from_s: number): number {
  const limit = Math.min(SERVER_ROWS, Math.floor(MAX_ROWS / Math.max(1, lanes.length)));
  const truncated = lanes.filter((lane) => lane.rows.length >= limit);
  return Math.max(0, from_s, ...truncated.map((lane) => lane.rows[0][1]));
}

function setView(now: View): void {
  view.value = now;
  if (isReplay.value) cursor_s.value = now.now_s;
}

function openStream(id: number): void {
  // A browser allows six connections for all tabs together.
  if (document.hidden) return;
  if (isReplay.value && !playing.value) {
    setLink("paused");
    return;
  }
  const stream = new EventSource(`/api/v1/stream?${streamParams()}`);
  source = stream;
  const reload = () => void loadSnapshot(id).catch(scheduleRetry);
  const onMessage = <T>(kind: string, handle: (value: T) => void) => {
    stream.addEventListener(kind, (message) => {
      if (id !== connectionId) return;
      lastMessage_ms = performance.now();
      handle(JSON.parse((message as MessageEvent).data));
    });
  };
  onMessage<Frame>("frame", (frame) => {
    if (pendingFrames) pendingFrames.push(frame);
    else applyFrame(frame);
  });
  onMessage<RunEvent>("event", addEvent);
  onMessage<View>("view", (now) => {
    seq = Math.max(seq, now.seq);
    batch(() => setView({ ...now, events: events.value.slice(-200) }));
    if (hasDroppedFrames && !pendingFrames) {
      hasDroppedFrames = false;
      reload();
    }
  });
  onMessage("reset", () => {
    if (!isReplay.value) reload();
  });
  onMessage("end", () => {
    stream.close();
    playing.value = false;
    setLink("paused");
    void loadSnapshot(id).catch(() => undefined);
  });
  stream.onopen = () => {
    if (id !== connectionId) return;
    attempt = 0;
    lastMessage_ms = performance.now();
    setLink("live");
  };
  stream.onerror = () => {
    if (id !== connectionId) return;
    // The browser itself reconnects and sends Last-Event-ID, unless the server refused.
    if (isReplay.value || stream.readyState === EventSource.CLOSED) {
      scheduleRetry();
      return;
    }
    attempt++;
    link.value = { state: "lost", age_s: 0, attempt, retry_s: 1 };
  };
}

function streamParams(): URLSearchParams {
  const params = new URLSearchParams();
  if (run.value) params.set("run", run.value);
  if (isReplay.value) {
    params.set("at_s", String(cursor_s.value ?? 0));
    params.set("speed", String(speed.value));
  } else {
    params.set("seq", String(seq));
  }
  return params;
}

function addEvent(event: RunEvent): void {
  seq = Math.max(seq, event.seq);
  if (events.value.some((known) => known.seq === event.seq)) return;
  events.value = [...events.value, event].slice(-MAX_EVENTS);
}

function applyFrame(frame: Frame): void {
  if (!isReplay.value && frame.after > lastFrameSeq) hasDroppedFrames = true;
  seq = Math.max(seq, frame.seq);
  lastFrameSeq = frame.seq;
  steps.add(frame.steps);
  if (isReplay.value) cursor_s.value = frame.now_s;
  frames.value++;
}

function scheduleRetry(): void {
  disconnect();
  attempt++;
  const retry_s = Math.min(MAX_RETRY_S, 2 ** Math.min(attempt - 1, 4));
  link.value = { state: "lost", age_s: 0, attempt, retry_s };
  clearTimeout(retryTimer);
  retryTimer = window.setTimeout(() => void connect(), retry_s * 1000);
}

export function disconnect(): void {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
}

function setLink(state: Link["state"], age_s = 0): void {
  const current = link.value;
  const isChanged = current.state !== state || Math.abs(current.age_s - age_s) > 0.05;
  if (isChanged) link.value = { state, age_s, attempt, retry_s: 0 };
}

function updateFreshness(): void {
  if (!view.value || link.value.state === "lost") return;
  if (isReplay.value) {
    setLink(playing.value ? "live" : "paused");
    return;
  }
  if (isOver(view.value.state)) {
    setLink("over");
    return;
  }
  const age_s = (performance.now() - lastMessage_ms) / 1000;
  setLink(age_s > STALE_AFTER_S ? "stale" : "live", age_s);
}

export function trackFreshness(): void {
  setInterval(updateFreshness, FRESHNESS_POLL_MS);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      connectionId++;
      disconnect();
    } else {
      void connect();
    }
  });
}

export function selectRun(name: string): void {
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

/** Pause a recording and show this time. */
export function pauseAt(at_s: number): void {
  playing.value = false;
  seek(at_s);
}

export function setPlaying(isPlaying: boolean): void {
  const isAtEnd = cursor_s.value !== null && cursor_s.value >= duration_s.value;
  if (isPlaying && isAtEnd) cursor_s.value = 0;
  playing.value = isPlaying;
  void connect();
}

export function setSpeed(factor: number): void {
  speed.value = Math.max(0.25, Math.min(64, factor));
  if (playing.value) void connect();
}

/** Fetch the steps of a window that is older than those in memory, when it is opened. */
export function fetchOlderSteps(): void {
  let requested = "";
  effect(() => {
    const shown = range.value;
    if (!shown || !view.value || shown[0] >= steps.since_s) return;
    if (steps.hasPast(shown[0], Math.min(shown[1], steps.since_s))) return;
    const width = shown[1] - shown[0];
    const from_s = Math.max(0, shown[0] - width);
    const to_s = Math.min(steps.since_s, shown[1] + width);
    const request = `${run.value} ${steps.epoch} ${from_s} ${to_s}`;
    if (request === requested) return;
    requested = request;
    const epoch = steps.epoch;
    fetchWindow(from_s, to_s, shown[0]).then(
      (lanes) => {
        if (epoch !== steps.epoch) return;
        steps.setPast(from_s, to_s, lanes);
        frames.value++;
      },
      () => {
        requested = "";
      },
    );
  });
}

async function fetchWindow(from_s: number, to_s: number, needed_s: number): Promise<Lane[]> {
  const get = async (at_s: number | null) => {
    const window = { from_s, to_s, most: MAX_ROWS, at_s };
    return (await fetchJson<TimelineResponse>("/api/v1/timeline", window)).lanes;
  };
  if (isReplay.value) return get(cursor_s.value);
  const lanes = await get(null);
  const isCovered = lanes.some((lane) => lane.rows.length > 0 && lane.rows[0][1] <= Math.max(0, needed_s));
  // The server has the newest steps of a live run in memory; earlier ones are read from the log.
  return isCovered ? lanes : get(to_s);
}
