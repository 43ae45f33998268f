// What did each worker do, when?

import { computed, signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { changes, inWords } from "../changed";
import { ask } from "../connection";
import { GanttBox, lanesOf, Legend } from "../ganttbox";
import { cividis, drawHeat, heatOf, heatOfTold, HEATS, TOLD, type HeatName, type Told } from "../heat";
import { Panel } from "../panel";
import { saveCsv, savePng } from "../saving";
import { cursor_s, frames, isReplay, range, server, steps, theme, view } from "../state";
import { PHASES } from "../types";
import { plain, seconds, share } from "../words";

const byLag = signal(false);
const width_s = signal(30);
const heat = signal<HeatName>("step time");
const COLUMNS = 120; // of the heat map

export function Timeline() {
  const now = view.value!;
  const lanes = lanesOf(byLag.value);
  const [from, to] = range.value ?? [Math.max(0, steps.newest_s - width_s.value), steps.newest_s];
  const stay = () => { range.value = range.value ? null : [from, to]; };
  const move = (by: number, factor: number) => {
    const middle = (from + to) / 2 + by * (to - from), half = Math.max(0.005, ((to - from) / 2) * factor);
    range.value = [middle - half, middle + half];
  };
  return (
    <div class="timeline">
      <Panel title="Phases of steps" what="one lane for each worker; a box is a phase of a step, white is idle" good="boxes end together and little is grey" todo="press S to bring whoever lags to the top; its longest colour is the reason"
        side={<div class="row">
          <Legend />
          <label>window <select value={String(width_s.value)} onChange={(e) => { width_s.value = Number(e.currentTarget.value); range.value = null; }}>{[5, 10, 30, 60, 120].map((s) => <option key={s} value={String(s)}>{s} s</option>)}</select></label>
          <button id="sort" aria-pressed={byLag.value} onClick={() => { byLag.value = !byLag.value; }}>Sort by lag</button>
          <button aria-label="Earlier" onClick={() => move(-0.5, 1)}>◀</button>
          <button id="closer" aria-label="Closer" onClick={() => move(0, 0.5)}>+</button>
          <button id="wider" aria-label="Wider" onClick={() => move(0, 2)}>−</button>
          <button aria-label="Later" onClick={() => move(0.5, 1)}>▶</button>
          <button aria-pressed={!!range.value} onClick={stay}>{range.value ? "Follow (L)" : "Stand still"}</button>
        </div>}>
        <p class="muted">{seconds(from)} to {seconds(to)} since the start{now.run.staleness_bound !== null ? `; nobody may be more than ${now.run.staleness_bound} steps ahead; dashed: so far behind the first one` : now.run.meets ? "; thin lines, once you are close enough: the last one came to the meeting" : ""}</p>
        <div class="lanes">
          <ol class="names">{lanes.length <= 40 && lanes.map((name) => <li key={name}>{name}</li>)}</ol>
          <GanttBox lanes={lanes} height={Math.max(120, Math.min(640, lanes.length * (lanes.length > 40 ? 5 : lanes.length > 12 ? 26 : 44)))} width_s={width_s.value} canMove label={`Phases of ${lanes.length} workers from ${seconds(from)} to ${seconds(to)}`} />
        </div>
        <Changed lanes={lanes} from={from} to={to} />
        <Shares lanes={lanes} from={from} to={to} />
      </Panel>
      <HeatPanel lanes={lanes} />
      <p class="row"><a class="button" href={`/api/v1/trace?run=${encodeURIComponent(server.value?.run ?? "")}`} download="trace.json">Chrome trace (for Perfetto)</a><button onClick={() => csv(lanes, from, to)}>CSV of this window</button><button onClick={() => png(from, to)}>PNG</button></p>
    </div>
  );
}

/** The same for those who do not see the picture, and where the time went for those who do. */
function Shares({ lanes, from, to }: { lanes: string[]; from: number; to: number }) {
  const sums = new Map(lanes.map((name) => {
    const all = new Array<number>(8).fill(0);
    for (const row of steps.between(name, from, to)) for (let i = 0; i < 8; i++) all[i] += row[i + 2];
    return [name, all] as const;
  }));
  const total = PHASES.map((_, i) => [...sums.values()].reduce((sum, all) => sum + all[i], 0));
  const whole = total.reduce((a, b) => a + b, 0) || 1;
  return (
    <>
      <p>In this window: {PHASES.map((name, i) => [name, total[i] / whole] as const).filter(([, part]) => part >= 0.005).sort((a, b) => b[1] - a[1]).map(([name, part]) => `${name} ${share(part)}`).join(", ") || "no step"}.</p>
      <div class="sr-only"><table><caption>Seconds by worker and phase</caption><thead><tr><th scope="col">worker</th>{PHASES.map((name) => <th scope="col" key={name}>{name}</th>)}</tr></thead>
        <tbody>{lanes.slice(0, 64).map((name) => <tr key={name}><th scope="row">{name}</th>{(sums.get(name) ?? []).map((value, i) => <td key={i}>{value.toFixed(3)}</td>)}</tr>)}</tbody></table></div>
    </>
  );
}

const tick = computed(() => Math.floor(frames.value / 10)); // some two a second: enough for a heat map

/** What the server tells of each worker each second; fetched anew while one looks, and never twice at once. */
function useTold(kind: string | undefined, lanes: string[], from: number, to: number): Told {
  const [told, setTold] = useState<Told>({});
  const isAsking = useRef(false);
  const second = Math.floor((view.value?.now_s ?? 0) / 2);
  useEffect(() => {
    if (!kind || isAsking.current) return;
    isAsking.current = true;
    const names = lanes.slice(0, 64).map((lane) => `worker.${lane}.${kind}`).join(",");
    void ask<{ data: Told }>("/api/v1/series", { names, from_s: Math.max(0, from), to_s: to, points: COLUMNS, at_s: isReplay.value ? cursor_s.value : null })
      .then((found) => setTold(found.data), () => undefined).finally(() => { isAsking.current = false; });
  }, [kind, lanes.join(), range.value?.join(), second]);
  return told;
}

function HeatPanel({ lanes }: { lanes: string[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const back_s = 60;
  const to = range.value ? range.value[1] : steps.newest_s;
  const from = range.value ? range.value[0] : Math.max(0, to - back_s);
  const kind = TOLD[heat.value];
  const told = useTold(kind, lanes, from, to);
  const end = Math.max(to, from + 0.1);
  const found = useMemo(() => (kind ? heatOfTold(told, kind, lanes, from, end, COLUMNS) : heatOf(heat.value, lanes, from, end, COLUMNS)),
    [tick.value, heat.value, lanes.join(), range.value?.join(), steps.looked, steps.epoch, told]);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    drawHeat(canvas.current!, found, style.getPropertyValue("--paper").trim(), style.getPropertyValue("--line").trim());
  }, [found, theme.value]);
  const unit = heat.value === "step time" ? seconds : ["loss", "staleness", "gradient norm"].includes(heat.value) ? plain : share;
  const css = { height: `${Math.max(60, Math.min(300, lanes.length * 14))}px` };
  return (
    <Panel title="Heat map" what={`${heat.value} of each worker over the last ${back_s} s, or the chosen window; hatched: nothing known`} good="one colour" todo="a bright row is a worker, a bright column a moment; look at that one above"
      side={<label>colour <select id="heat" value={heat.value} onChange={(e) => { heat.value = e.currentTarget.value as HeatName; }}>{HEATS.map((name) => <option key={name}>{name}</option>)}</select></label>}>
      <canvas ref={canvas} class="heat" style={css} role="img" aria-label={`${heat.value} by worker and time, from ${unit(found.low)} to ${unit(found.high)}`} />
      <p class="scale"><span>{unit(found.low)}</span><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{Array.from({ length: 10 }, (_, i) => <rect key={i} x={i * 10} width="10.2" height="8" fill={cividis(i / 10 + 0.01)} />)}</svg><span>{unit(found.high)}</span></p>
    </Panel>
  );
}

/** Only of a window that somebody chose: of one that moves there is nothing to read. */
function Changed({ lanes, from, to }: { lanes: string[]; from: number; to: number }) {
  const found = useMemo(() => (range.value ? changes(steps, lanes, from, to) : []), [from, to, lanes.join(), steps.looked, steps.epoch]);
  if (!range.value) return null;
  return <p data-changed>{found.length ? `Against the ${seconds(to - from)} before, most changed: ${found.map(inWords).join("; ")}.` : `Against the ${seconds(to - from)} before nothing changed much, or there was no step then.`}</p>;
}

function csv(lanes: string[], from: number, to: number): void {
  const rows: (string | number)[][] = [["worker", "step", "start_s", ...PHASES.map((p) => `${p}_s`), "loss"]];
  for (const name of lanes) for (const row of steps.between(name, from, to)) rows.push([name, ...row]);
  saveCsv("steps.csv", rows);
}

function png(from: number, to: number): void {
  const drawn = [...document.querySelectorAll<HTMLCanvasElement>("#page canvas:not(.over)")];
  savePng("timeline.png", `${server.value?.run ?? ""}: ${seconds(from)} to ${seconds(to)} since the start; phases of steps, ${heat.value}`, drawn);
}
