// Metrics page: every collected series, to search and to pin.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Chart, type Line } from "../chart";
import { fetchJson } from "../connection";
import type { SeriesData } from "../heatmap";
import { Panel } from "../panel";
import { cursor_s, isReplay, phaseColour, pinned, view } from "../state";
import { trendLine } from "../trend";

interface SeriesInfo {
  name: string;
  unit: string;
  group: string;
}

interface SeriesResponse {
  names: SeriesInfo[];
  data: SeriesData;
}

const MAX_PINNED = 5;
const MAX_LISTED = 200;
const POINTS = 600;
const WINDOWS: [string, string][] = [
  ["60", "1 min"],
  ["120", "2 min"],
  ["600", "10 min"],
  ["0", "all"],
];
const search = signal("");
const group = signal("");
const showTrend = signal(false);
const window_s = signal(120); // 0: the whole run
const response = signal<SeriesResponse>({ names: [], data: {} }); // kept when another page is opened

function togglePin(name: string): void {
  const current = pinned.value;
  const isPinned = current.includes(name);
  pinned.value = isPinned ? current.filter((other) => other !== name) : [...current, name].slice(-MAX_PINNED);
}

export function Metrics() {
  const now = view.value!;
  const { names } = response.value;
  const tick = Math.floor(now.now_s);
  useEffect(() => {
    let isCurrent = true;
    const query = {
      names: pinned.value.join(",") || "loss",
      points: POINTS,
      from_s: window_s.value ? Math.max(0, now.now_s - window_s.value) : null,
      at_s: isReplay.value ? cursor_s.value : null,
    };
    fetchJson<SeriesResponse>("/api/v1/series", query).then(
      (series) => {
        if (isCurrent) response.value = series;
      },
      () => undefined, // the header shows that the server does not respond
    );
    return () => {
      isCurrent = false;
    };
  }, [tick, pinned.value.join(), window_s.value]);
  const shown = names.filter((series) => {
    return series.name.includes(search.value) && (!group.value || series.group === group.value);
  });
  return (
    <div class="metrics">
      <Panel
        title="Series"
        shows={`every collected series; pin up to ${MAX_PINNED}`}
        good="depends on the series"
        otherwise="`paceline.metric(name, value)` in a task adds your own series"
      >
        <Filters groups={[...new Set(names.map((series) => series.group))]} />
        <ul class="names" tabIndex={0} aria-label="Series">
          {shown.slice(0, MAX_LISTED).map((series) => (
            <li key={series.name}>
              <button
                aria-pressed={pinned.value.includes(series.name)}
                onClick={() => togglePin(series.name)}
              >
                {series.name}
                {series.unit && <span class="muted"> {series.unit}</span>}
              </button>
            </li>
          ))}
        </ul>
        {showTrend.value && (
          <ul class="plain">
            {now.trends.map((trend) => (
              <li key={trend.series}>{trend.words}</li>
            ))}
          </ul>
        )}
      </Panel>
      <div class="charts">
        {pinned.value.map((name) => (
          <SeriesPanel key={name} name={name} />
        ))}
      </div>
    </div>
  );
}

function Filters({ groups }: { groups: string[] }) {
  return (
    <div class="row">
      <label>
        Search{" "}
        <input
          type="search"
          value={search.value}
          onInput={(event) => {
            search.value = event.currentTarget.value;
          }}
        />
      </label>
      <label>
        Group{" "}
        <select
          value={group.value}
          onChange={(event) => {
            group.value = event.currentTarget.value;
          }}
        >
          <option value="">all</option>
          {groups.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      <label>
        Window{" "}
        <select
          value={String(window_s.value)}
          onChange={(event) => {
            window_s.value = Number(event.currentTarget.value);
          }}
        >
          {WINDOWS.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </select>
      </label>
      <label>
        <input
          type="checkbox"
          checked={showTrend.value}
          onChange={(event) => {
            showTrend.value = event.currentTarget.checked;
          }}
        />{" "}
        trend
      </label>
    </div>
  );
}

function SeriesPanel({ name }: { name: string }) {
  const { names, data } = response.value;
  const points = data[name] ?? [];
  const unit = names.find((series) => series.name === name)?.unit ?? "";
  const xs = points.map((point) => point[0]);
  const last = points.map((point) => point[3]);
  const lines: Line[] = [
    { label: "min", values: points.map((point) => point[1]), colour: phaseColour("wait") },
    { label: "max", values: points.map((point) => point[2]), colour: phaseColour("wait") },
    { label: name, values: last, colour: phaseColour("backward"), strong: true },
  ];
  if (showTrend.value) {
    lines.push({ label: "trend", values: trendLine(xs, last), colour: phaseColour("comm"), dash: [6, 4] });
  }
  const trend = showTrend.value ? view.value!.trends.find((other) => other.series === name) : undefined;
  const change_s = trend?.change_s ?? null;
  return (
    <Panel
      title={unit && unit !== name ? `${name}, ${unit}` : name}
      shows={
        "the last value of each interval, with minimum and maximum; " +
        "trend: median of all slopes, and the change point"
      }
      good="depends on the series"
      otherwise="unpin it in the list"
      empty={points.length ? "" : "No values yet."}
    >
      <Chart
        label={`${name} over time`}
        x={xs}
        lines={lines}
        marks={change_s === null ? [] : [{ x: change_s, glyph: "⤴" }]}
        height={170}
      />
    </Panel>
  );
}
