// What else is measured? Everything that is collected, to search and to pin.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Chart } from "../chart";
import { ask } from "../connection";
import { Panel } from "../panel";
import { cursor_s, isReplay, phaseColour, pinned, view } from "../state";
import { trendLine } from "../trend";

interface Named { name: string; unit: string; group: string }
type Found = { names: Named[]; data: Record<string, [number, number | null, number | null, number | null][]> };
const MOST = 5;
const search = signal("");
const group = signal("");
const trend = signal(false);
const back = signal(120);
const newest = signal<Found>({ names: [], data: {} }); // outlasts the page, so that who comes back sees it at once

export function Metrics() {
  const now = view.value!;
  const found = newest.value;
  const tick = Math.floor(now.now_s);
  useEffect(() => {
    let isWanted = true;
    const at = isReplay.value ? cursor_s.value : null;
    void ask<Found>("/api/v1/series", { names: pinned.value.join(",") || "loss", points: 600, from_s: back.value ? Math.max(0, now.now_s - back.value) : null, at_s: at }).then((all) => { if (isWanted) newest.value = all; }, () => undefined); // told by the header, if nobody answers
    return () => { isWanted = false; };
  }, [tick, pinned.value.join(), back.value]);
  const groups = [...new Set(found.names.map((n) => n.group))];
  const shown = found.names.filter((n) => n.name.includes(search.value) && (!group.value || n.group === group.value)).slice(0, 200);
  const pin = (name: string) => { pinned.value = pinned.value.includes(name) ? pinned.value.filter((n) => n !== name) : [...pinned.value, name].slice(-MOST); };
  return (
    <div class="metrics">
      <Panel title="Series" what="everything that is collected" good="what you look for" todo="`paceline.metric(name, value)` in a task adds your own">
        <div class="row">
          <label>Search <input type="search" value={search.value} onInput={(e) => { search.value = e.currentTarget.value; }} /></label>
          <label>Group <select value={group.value} onChange={(e) => { group.value = e.currentTarget.value; }}><option value="">all</option>{groups.map((g) => <option key={g}>{g}</option>)}</select></label>
          <label>Window <select value={String(back.value)} onChange={(e) => { back.value = Number(e.currentTarget.value); }}><option value="60">1 min</option><option value="120">2 min</option><option value="600">10 min</option><option value="0">all</option></select></label>
          <label><input type="checkbox" checked={trend.value} onChange={(e) => { trend.value = e.currentTarget.checked; }} /> trend</label>
        </div>
        <ul class="names" tabIndex={0} aria-label="Series">{shown.map((n) => <li key={n.name}><button aria-pressed={pinned.value.includes(n.name)} onClick={() => pin(n.name)}>{n.name}{n.unit ? <span class="muted"> {n.unit}</span> : null}</button></li>)}</ul>
        {trend.value && <ul class="plain">{now.trends.map((t) => <li key={t.series}>{t.words}</li>)}</ul>}
      </Panel>
      <div class="charts">
        {pinned.value.map((name) => <One key={name} name={name} found={found} />)}
      </div>
    </div>
  );
}

function One({ name, found }: { name: string; found: Found }) {
  const points = found.data[name] ?? [];
  const unit = found.names.find((n) => n.name === name)?.unit ?? "";
  const last = points.map((p) => p[3]);
  const colour = phaseColour("backward"), pale = phaseColour("wait");
  const lines = [
    { label: "least", values: points.map((p) => p[1]), colour: pale }, { label: "most", values: points.map((p) => p[2]), colour: pale },
    { label: name, values: last, colour, strong: true },
    ...(trend.value ? [{ label: "trend", values: trendLine(points.map((p) => p[0]), last), colour: phaseColour("comm"), dash: [6, 4] }] : []),
  ];
  const turned = trend.value ? view.value!.trends.find((t) => t.series === name)?.change_s ?? null : null;
  const marks = turned === null ? [] : [{ x: turned, glyph: "⤴", text: "it changed here" }];
  return (
    <Panel title={`${name}${unit && unit !== name ? `, ${unit}` : ""}`} what="the last value of each moment, with the least and the most beside it; trend: the median of all slopes, and where it changed" good="depends on what it is" todo="unpin it in the list">
      {points.length ? <Chart label={`${name} over time`} x={points.map((p) => p[0])} lines={lines} marks={marks} height={170} /> : <p class="muted">Nothing was measured yet.</p>}
    </Panel>
  );
}
