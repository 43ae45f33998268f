// What happened, and when? One axis under every page; of a recording it is the player.

import { useEffect, useRef } from "preact/hooks";
import { seek, setPlaying, setSpeed } from "./connection";
import { cursor_s, duration_s, events, hover_s, isReplay, page, playing, range, speed, view } from "./state";
import type { Happening } from "./types";
import { clockTime, seconds } from "./words";

const TOLD = new Set(["run_started", "run_resumed", "run_finished", "worker_started", "worker_lost", "worker_finished", "generation_entered", "generation_lost", "checkpoint", "checkpoint_failed", "evaluated", "early_stop", "action", "slow_worker", "server_promoted", "server_restored", "step_skipped", "stop_requested", "supervision", "alert", "adapted"]);

/** One mark for each thing that happened, not one for each worker that said it. */
export function told(all: Happening[]): Happening[] {
  const seen = new Set<string>();
  return together(all.filter((event) => {
    if (!TOLD.has(event.kind)) return false;
    if (event.kind === "action" && event.fields.phase !== "applied") return false;
    if (event.kind === "generation_lost" || event.kind === "worker_finished") return false;
    if (event.kind !== "generation_entered") return true;
    const name = `generation ${event.fields.number}`;
    return seen.has(name) ? false : !!seen.add(name);
  }));
}

/** A crew that comes all at once is one thing that happened, however many they are. */
function together(all: Happening[]): Happening[] {
  const found: Happening[] = [];
  let came: Happening[] = [];
  const end = () => {
    if (came.length > 8) found.push({ ...came[came.length - 1], text: `${came.length} workers are ready` });
    else found.push(...came);
    came = [];
  };
  for (const event of all) {
    if (event.kind === "worker_started") { came.push(event); continue; }
    end();
    found.push(event);
  }
  end();
  return found;
}

export function jump(event: Happening): void {
  if (isReplay.value) return void (playing.value = false, seek(event.t_s));
  range.value = [event.t_s - 5, event.t_s + 5]; // may begin before the run: the event is in the middle
  page.value = "timeline";
}

export function step(by: 1 | -1): void {
  const all = told(events.value);
  const looked = isReplay.value ? null : range.value; // of a run at work: where one looks
  const now = looked ? (looked[0] + looked[1]) / 2 : cursor_s.value ?? view.value?.now_s ?? 0;
  const found = by > 0 ? all.find((e) => e.t_s > now + 0.01) : [...all].reverse().find((e) => e.t_s < now - 0.01);
  if (isReplay.value && by > 0 && !found) return void seek(now + 1); // a later one is not known yet
  if (found) jump(found);
}

export function Ribbon() {
  const now = view.value;
  const list = useRef<HTMLOListElement>(null);
  const found = told(events.value).slice(-60);
  const newest = found[found.length - 1]?.seq;
  const isAtEnd = useRef(true);
  // Who reads what was before is not taken away from it.
  useEffect(() => { if (list.current && isAtEnd.current) list.current.scrollLeft = list.current.scrollWidth; }, [newest]);
  if (!now) return null;
  return (
    <footer class="ribbon" aria-label="What happened">
      <Axis all={told(events.value)} />
      <ol ref={list} tabIndex={0} onScroll={(e) => { const at = e.currentTarget; isAtEnd.current = at.scrollLeft + at.clientWidth >= at.scrollWidth - 40; }} aria-label="Events, oldest first">
        {found.map((event) => (
          <li key={event.seq}><button onClick={() => jump(event)} title={`${new Date((now.t0_unix_s + event.t_s) * 1000).toISOString()} · ${event.who}: ${event.text}`}>
            <span aria-hidden="true">{event.glyph}</span> {event.text} <span class="muted">{clockTime(now.t0_unix_s + event.t_s)}</span>
          </button></li>
        ))}
      </ol>
      {isReplay.value && <Player />}
    </footer>
  );
}

/** The whole run from left to right: what happened, the window one looks at, and where one points. The list says the same. */
function Axis({ all }: { all: Happening[] }) {
  const end = Math.max(isReplay.value ? duration_s.value : view.value!.now_s, 0.1);
  const x = (t: number) => Math.max(0, Math.min(1000, (t / end) * 1000));
  const look = (event: MouseEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const t = ((event.clientX - box.left) / Math.max(1, box.width)) * end;
    if (isReplay.value) return void (playing.value = false, seek(t));
    range.value = [t - 5, t + 5];
    page.value = "timeline";
  };
  return (
    <svg class="axis" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" onClick={look}>
      <rect class="ground" width="1000" height="10" />
      {range.value && <rect class="window" x={x(range.value[0])} width={Math.max(2, x(range.value[1]) - x(range.value[0]))} height="10" />}
      {all.map((event) => <rect key={event.seq} class={event.kind === "action" ? "struck" : "mark"} x={x(event.t_s)} width="1.5" height="10" />)}
      {isReplay.value && cursor_s.value !== null && <rect class="cursor" x={x(cursor_s.value)} width="3" height="10" />}
      <Pointed x={x} />
    </svg>
  );
}

/** By itself, so that pointing draws nothing else anew. */
function Pointed({ x }: { x: (t: number) => number }) {
  return hover_s.value === null ? null : <rect class="cursor" x={x(hover_s.value)} width="2" height="10" />;
}

function Player() {
  const at = cursor_s.value ?? 0;
  return (
    <div class="player">
      <button aria-label="To the beginning" onClick={() => seek(0)}>⏮</button>
      <button aria-label="The event before" onClick={() => step(-1)}>◀</button>
      <button aria-label={playing.value ? "Pause" : "Play"} onClick={() => setPlaying(!playing.value)}>{playing.value ? "❚❚" : "▶"}</button>
      <button aria-label="The next event" onClick={() => step(1)}>▶▏</button>
      <button aria-label="To the end" onClick={() => { playing.value = false; seek(duration_s.value); }}>⏭</button>
      <label>speed <select value={String(speed.value)} onChange={(e) => setSpeed(Number(e.currentTarget.value))}>{[0.5, 1, 2, 4, 8, 16, 32].map((s) => <option value={String(s)} key={s}>{s}×</option>)}</select></label>
      <input type="range" aria-label="Moment of the recording" min={0} max={duration_s.value || 1} step={0.01} value={at} onChange={(e) => { playing.value = false; seek(Number(e.currentTarget.value)); }} />
      <output>{seconds(at)} of {seconds(duration_s.value)}</output>
    </div>
  );
}
