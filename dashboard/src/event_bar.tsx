// Event bar at the bottom of every page: the events of the run on one time axis; in a recording, the player.

import { useEffect, useRef } from "preact/hooks";
import { pauseAt, seek, setPlaying, setSpeed } from "./connection";
import { clockTime, seconds } from "./format";
import { cursor_s, duration_s, events, hover_s, isReplay, page, playing, range, speed, view } from "./state";
import type { RunEvent } from "./types";

const KEY_KINDS = new Set([
  "run_started",
  "run_resumed",
  "run_finished",
  "worker_started",
  "worker_lost",
  "generation_entered",
  "checkpoint",
  "checkpoint_failed",
  "evaluated",
  "early_stop",
  "action",
  "slow_worker",
  "server_promoted",
  "server_restored",
  "step_skipped",
  "stop_requested",
  "supervision",
  "alert",
  "adapted",
]);
const MAX_SHOWN = 60;
const MAX_SEPARATE_STARTS = 8; // more workers that start one after another are one event
const WINDOW_S = 5; // shown before and after an event
const SPEEDS = [0.5, 1, 2, 4, 8, 16, 32];

/** One entry per event of the run, though several workers may report the same. */
export function keyEvents(log: RunEvent[]): RunEvent[] {
  const generations = new Set<unknown>();
  const shown = log.filter((event) => {
    if (!KEY_KINDS.has(event.kind)) return false;
    if (event.kind === "action") return event.fields.phase === "applied";
    if (event.kind !== "generation_entered") return true;
    if (generations.has(event.fields.number)) return false;
    generations.add(event.fields.number);
    return true;
  });
  return groupStarts(shown);
}

function groupStarts(log: RunEvent[]): RunEvent[] {
  const grouped: RunEvent[] = [];
  let starts: RunEvent[] = [];
  const flush = () => {
    if (starts.length > MAX_SEPARATE_STARTS) {
      grouped.push({ ...starts[starts.length - 1], text: `${starts.length} workers are ready` });
    } else {
      grouped.push(...starts);
    }
    starts = [];
  };
  for (const event of log) {
    if (event.kind === "worker_started") {
      starts.push(event);
      continue;
    }
    flush();
    grouped.push(event);
  }
  flush();
  return grouped;
}

function showAround(t_s: number): void {
  if (isReplay.value) {
    pauseAt(t_s);
    return;
  }
  range.value = [t_s - WINDOW_S, t_s + WINDOW_S]; // may start before the run, to centre the event
  page.value = "timeline";
}

/** Open the next or the previous event. */
export function stepEvent(direction: 1 | -1): void {
  const log = keyEvents(events.value);
  const window = isReplay.value ? null : range.value;
  const now_s = window ? (window[0] + window[1]) / 2 : (cursor_s.value ?? view.value?.now_s ?? 0);
  const target =
    direction > 0
      ? log.find((event) => event.t_s > now_s + 0.01)
      : log.findLast((event) => event.t_s < now_s - 0.01);
  if (target) showAround(target.t_s);
  else if (isReplay.value && direction > 0) seek(now_s + 1); // later events are not loaded yet
}

export function EventBar() {
  const now = view.value;
  const list = useRef<HTMLOListElement>(null);
  const isAtEnd = useRef(true);
  const log = keyEvents(events.value);
  const shown = log.slice(-MAX_SHOWN);
  const newest = shown[shown.length - 1]?.seq;
  useEffect(() => {
    // Follow new events, unless the user has scrolled back.
    if (list.current && isAtEnd.current) list.current.scrollLeft = list.current.scrollWidth;
  }, [newest]);
  if (!now) return null;
  const onScroll = (event: Event) => {
    const { scrollLeft, clientWidth, scrollWidth } = event.currentTarget as HTMLElement;
    isAtEnd.current = scrollLeft + clientWidth >= scrollWidth - 40;
  };
  return (
    <footer class="event-bar" aria-label="Events">
      <TimeAxis log={log} />
      <ol ref={list} tabIndex={0} onScroll={onScroll} aria-label="Events, oldest first">
        {shown.map((event) => (
          <li key={event.seq}>
            <EventButton event={event} unix_s={now.t0_unix_s + event.t_s} />
          </li>
        ))}
      </ol>
      {isReplay.value && <Player />}
    </footer>
  );
}

function EventButton({ event, unix_s }: { event: RunEvent; unix_s: number }) {
  const title = `${new Date(unix_s * 1000).toISOString()} · ${event.who}: ${event.text}`;
  return (
    <button onClick={() => showAround(event.t_s)} title={title}>
      <span aria-hidden="true">{event.glyph}</span> {event.text}{" "}
      <span class="muted">{clockTime(unix_s)}</span>
    </button>
  );
}

/** The whole run from left to right: events, the selected window, the position. The list holds the same events. */
function TimeAxis({ log }: { log: RunEvent[] }) {
  const end_s = Math.max(isReplay.value ? duration_s.value : view.value!.now_s, 0.1);
  const x = (t_s: number) => Math.max(0, Math.min(1000, (t_s / end_s) * 1000));
  const onClick = (event: MouseEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    showAround(((event.clientX - box.left) / Math.max(1, box.width)) * end_s);
  };
  const window = range.value;
  return (
    <svg class="axis" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" onClick={onClick}>
      <rect class="ground" width="1000" height="10" />
      {window && (
        <rect class="window" x={x(window[0])} width={Math.max(2, x(window[1]) - x(window[0]))} height="10" />
      )}
      {log.map((event) => (
        <rect
          key={event.seq}
          class={event.kind === "action" ? "fault" : "mark"}
          x={x(event.t_s)}
          width="1.5"
          height="10"
        />
      ))}
      {isReplay.value && cursor_s.value !== null && (
        <rect class="cursor" x={x(cursor_s.value)} width="3" height="10" />
      )}
      <HoverMark x={x} />
    </svg>
  );
}

/** A component of its own, so that moving the pointer renders nothing else. */
function HoverMark({ x }: { x: (t_s: number) => number }) {
  if (hover_s.value === null) return null;
  return <rect class="cursor" x={x(hover_s.value)} width="2" height="10" />;
}

function Player() {
  const position_s = cursor_s.value ?? 0;
  return (
    <div class="player">
      <button aria-label="To the beginning" onClick={() => seek(0)}>
        ▏◀◀
      </button>
      <button aria-label="Previous event" onClick={() => stepEvent(-1)}>
        ◀
      </button>
      <button aria-label={playing.value ? "Pause" : "Play"} onClick={() => setPlaying(!playing.value)}>
        {playing.value ? "❚❚" : "▶"}
      </button>
      <button aria-label="Next event" onClick={() => stepEvent(1)}>
        ▶▏
      </button>
      <button aria-label="To the end" onClick={() => pauseAt(duration_s.value)}>
        ▶▶▏
      </button>
      <label>
        speed{" "}
        <select value={String(speed.value)} onChange={(event) => setSpeed(Number(event.currentTarget.value))}>
          {SPEEDS.map((factor) => (
            <option value={String(factor)} key={factor}>
              {factor}×
            </option>
          ))}
        </select>
      </label>
      <input
        type="range"
        aria-label="Position in the recording"
        min={0}
        max={duration_s.value || 1}
        step={0.01}
        value={position_s}
        onChange={(event) => pauseAt(Number(event.currentTarget.value))}
      />
      <output>
        {seconds(position_s)} of {seconds(duration_s.value)}
      </output>
    </div>
  );
}
