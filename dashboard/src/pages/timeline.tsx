// Timeline page: the phases of every step by worker, and a heat map of one metric.

import { computed, signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { fetchJson } from "../connection";
import { describeChange, phaseChanges } from "../diff";
import { downloadCsv, downloadPng } from "../export";
import { percent, plain, seconds } from "../format";
import { GanttChart, PhaseLegend, timelineLanes } from "../gantt_chart";
import {
  cividis,
  drawHeatmap,
  heatmapFromSeries,
  heatmapFromSteps,
  HEATMAP_METRICS,
  SERVER_SERIES,
  type HeatmapMetric,
  type SeriesData,
} from "../heatmap";
import { cssColour, describePhases, Panel } from "../panel";
import { cursor_s, frames, isReplay, range, server, steps, theme, view } from "../state";
import { PHASES, type RunInfo } from "../types";

const WINDOWS_S = [5, 10, 30, 60, 120];
const HEATMAP_S = 60;
const HEATMAP_COLUMNS = 120;
const MAX_NAMED_LANES = 40;
const MAX_SERIES = 64; // lanes whose series are requested
const MIN_HALF_WIDTH_S = 0.005;

const byLag = signal(false);
const width_s = signal(30);
const metric = signal<HeatmapMetric>("step time");
const redrawTick = computed(() => Math.floor(frames.value / 10)); // about twice a second

interface WindowProps {
  lanes: string[];
  from: number;
  to: number;
}

export function Timeline() {
  const now = view.value!;
  const lanes = timelineLanes(byLag.value);
  const [from, to] = range.value ?? [Math.max(0, steps.newest_s - width_s.value), steps.newest_s];
  const trace = `/api/v1/trace?run=${encodeURIComponent(server.value?.run ?? "")}`;
  return (
    <div class="timeline">
      <Panel
        title="Phases of steps"
        shows="one lane per worker; a box is a phase of a step, the background is idle time"
        good="boxes end together, and there is little wait; delay is the pace or straggler that was configured"
        otherwise="press S to sort by lag; the longest phase of the first lane is the reason"
        empty={lanes.length ? "" : "No steps yet."}
        side={<Controls from={from} to={to} />}
      >
        <p class="muted">
          {seconds(from)} to {seconds(to)} since the start{describeLines(now.run)}
        </p>
        <div class="lanes">
          <ol class="names">
            {lanes.length <= MAX_NAMED_LANES && lanes.map((name) => <li key={name}>{name}</li>)}
          </ol>
          <GanttChart
            lanes={lanes}
            height={Math.max(120, Math.min(640, lanes.length * laneHeight(lanes.length)))}
            width_s={width_s.value}
            canMove
            label={`Phases of ${lanes.length} workers from ${seconds(from)} to ${seconds(to)}`}
          />
        </div>
        <Changes lanes={lanes} from={from} to={to} />
        <Totals lanes={lanes} from={from} to={to} />
      </Panel>
      <HeatmapPanel lanes={lanes} />
      <p class="row">
        <a class="button" href={trace} download="trace.json">
          Chrome trace (for Perfetto)
        </a>
        <button onClick={() => exportCsv(lanes, from, to)}>CSV of this window</button>
        <button onClick={() => exportPng(from, to)}>PNG</button>
      </p>
    </div>
  );
}

function laneHeight(lanes: number): number {
  if (lanes > MAX_NAMED_LANES) return 5;
  return lanes > 12 ? 26 : 44;
}

function describeLines(run: RunInfo): string {
  if (run.staleness_bound !== null) {
    return `; staleness bound ${run.staleness_bound}; dashed: the bound behind the fastest worker`;
  }
  return run.meets ? "; zoomed in, a thin line marks when the last worker reached each barrier" : "";
}

function Controls({ from, to }: { from: number; to: number }) {
  const move = (shift: number, factor: number) => {
    const centre = (from + to) / 2 + shift * (to - from);
    const half = Math.max(MIN_HALF_WIDTH_S, ((to - from) / 2) * factor);
    range.value = [centre - half, centre + half];
  };
  const onWidth = (event: Event) => {
    width_s.value = Number((event.currentTarget as HTMLSelectElement).value);
    range.value = null;
  };
  const toggleSort = () => {
    byLag.value = !byLag.value;
  };
  const toggleFollow = () => {
    range.value = range.value ? null : [from, to];
  };
  return (
    <div class="row">
      <PhaseLegend />
      <label>
        window{" "}
        <select value={String(width_s.value)} onChange={onWidth}>
          {WINDOWS_S.map((width) => (
            <option key={width} value={String(width)}>
              {width} s
            </option>
          ))}
        </select>
      </label>
      <button id="sort" aria-pressed={byLag.value} onClick={toggleSort}>
        Sort by lag
      </button>
      <button aria-label="Earlier" onClick={() => move(-0.5, 1)}>
        ◀
      </button>
      <button id="zoom-in" aria-label="Zoom in" onClick={() => move(0, 0.5)}>
        +
      </button>
      <button id="zoom-out" aria-label="Zoom out" onClick={() => move(0, 2)}>
        −
      </button>
      <button aria-label="Later" onClick={() => move(0.5, 1)}>
        ▶
      </button>
      <button aria-pressed={!!range.value} onClick={toggleFollow}>
        {range.value ? "Follow (L)" : "Freeze"}
      </button>
    </div>
  );
}

/** Seconds by worker and phase in this window. */
function phaseTotals(lanes: string[], from: number, to: number): Map<string, number[]> {
  const totals = new Map<string, number[]>();
  for (const name of lanes) {
    const sums = PHASES.map(() => 0);
    for (const row of steps.between(name, from, to)) {
      PHASES.forEach((_, i) => {
        sums[i] += row[i + 2];
      });
    }
    totals.set(name, sums);
  }
  return totals;
}

/** The shares of phases as text, and a table for screen readers. */
function Totals({ lanes, from, to }: WindowProps) {
  const totals = phaseTotals(lanes, from, to);
  const sums = PHASES.map((_, i) => [...totals.values()].reduce((sum, row) => sum + row[i], 0));
  const total = sums.reduce((sum, value) => sum + value, 0) || 1;
  const shares = Object.fromEntries(PHASES.map((phase, i) => [phase, sums[i] / total]));
  return (
    <>
      <p>In this window: {describePhases(shares) || "no steps"}.</p>
      <div class="sr-only">
        <table>
          <caption>Seconds by worker and phase</caption>
          <thead>
            <tr>
              <th scope="col">worker</th>
              {PHASES.map((phase) => (
                <th scope="col" key={phase}>
                  {phase}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {lanes.slice(0, MAX_SERIES).map((name) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {totals.get(name)!.map((value, i) => (
                  <td key={i}>{value.toFixed(3)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** Only for a fixed window: a moving one changes too fast to read. */
function Changes({ lanes, from, to }: WindowProps) {
  const changes = useMemo(
    () => (range.value ? phaseChanges(steps, lanes, from, to) : []),
    [from, to, lanes.join(), steps.pastVersion, steps.epoch],
  );
  if (!range.value) return null;
  const before = `Compared with the ${seconds(to - from)} before`;
  const text = changes.length
    ? `${before}, most changed: ${changes.map(describeChange).join("; ")}.`
    : `${before}: no significant change, or no steps to compare with.`;
  return <p data-changed>{text}</p>;
}

/** Series of the server by worker, requested every two seconds, one request at a time. */
function useSeries(kind: string | undefined, lanes: string[], from: number, to: number): SeriesData {
  const [data, setData] = useState<SeriesData>({});
  const isLoading = useRef(false);
  const tick = Math.floor((view.value?.now_s ?? 0) / 2);
  useEffect(() => {
    if (!kind || isLoading.current) return;
    isLoading.current = true;
    const names = lanes.slice(0, MAX_SERIES).map((lane) => `worker.${lane}.${kind}`);
    const query = {
      names: names.join(","),
      from_s: Math.max(0, from),
      to_s: to,
      points: HEATMAP_COLUMNS,
      at_s: isReplay.value ? cursor_s.value : null,
    };
    fetchJson<{ data: SeriesData }>("/api/v1/series", query)
      .then(
        (response) => setData(response.data),
        () => undefined, // the header shows that the server does not respond
      )
      .finally(() => {
        isLoading.current = false;
      });
  }, [kind, lanes.join(), range.value?.join(), tick]);
  return data;
}

function formatterOf(name: HeatmapMetric): (value: number) => string {
  if (name === "step time") return seconds;
  return name === "loss" || name === "staleness" || name === "gradient norm" ? plain : percent;
}

function HeatmapPanel({ lanes }: { lanes: string[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const to = range.value ? range.value[1] : steps.newest_s;
  const from = range.value ? range.value[0] : Math.max(0, to - HEATMAP_S);
  const end = Math.max(to, from + 0.1);
  const kind = SERVER_SERIES[metric.value];
  const series = useSeries(kind, lanes, from, to);
  const heatmap = useMemo(() => {
    if (kind) return heatmapFromSeries(series, kind, lanes, from, end, HEATMAP_COLUMNS);
    return heatmapFromSteps(metric.value, lanes, from, end, HEATMAP_COLUMNS);
  }, [
    redrawTick.value,
    metric.value,
    lanes.join(),
    range.value?.join(),
    steps.pastVersion,
    steps.epoch,
    series,
  ]);
  useEffect(() => {
    if (canvas.current) drawHeatmap(canvas.current, heatmap, cssColour("--paper"), cssColour("--line"));
  }, [heatmap, theme.value]);
  const format = formatterOf(metric.value);
  const size = { height: `${Math.max(60, Math.min(300, lanes.length * 14))}px` };
  const stops = Array.from({ length: 10 }, (_, i) => i);
  return (
    <Panel
      title="Heat map"
      shows={`${metric.value} of each worker, last ${HEATMAP_S} s or the selected window; hatched: no value`}
      good="one colour"
      otherwise="a bright row is one worker, a bright column one point in time; see the timeline above"
      empty={lanes.length ? "" : "No steps yet."}
      side={
        <label>
          metric{" "}
          <select
            id="heat"
            value={metric.value}
            onChange={(event) => {
              metric.value = event.currentTarget.value as HeatmapMetric;
            }}
          >
            {HEATMAP_METRICS.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      }
    >
      <canvas
        ref={canvas}
        class="heat"
        style={size}
        role="img"
        aria-label={`${metric.value} by worker and time, from ${format(heatmap.low)} to ${format(heatmap.high)}`}
      />
      <p class="scale">
        <span>{format(heatmap.low)}</span>
        <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
          {stops.map((i) => (
            <rect key={i} x={i * 10} width="10.2" height="8" fill={cividis(i / 10 + 0.01)} />
          ))}
        </svg>
        <span>{format(heatmap.high)}</span>
      </p>
    </Panel>
  );
}

function exportCsv(lanes: string[], from: number, to: number): void {
  const rows: (string | number)[][] = [
    ["worker", "step", "start_s", ...PHASES.map((phase) => `${phase}_s`), "loss"],
  ];
  for (const name of lanes) {
    for (const row of steps.between(name, from, to)) rows.push([name, ...row]);
  }
  downloadCsv("steps.csv", rows);
}

function exportPng(from: number, to: number): void {
  const canvases = [...document.querySelectorAll<HTMLCanvasElement>("#page canvas:not(.overlay)")];
  const window = `${seconds(from)} to ${seconds(to)} since the start`;
  downloadPng(
    "timeline.png",
    `${server.value?.run ?? ""}: ${window}; phases of steps, ${metric.value}`,
    canvases,
  );
}
