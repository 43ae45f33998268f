// Compare page: two to six runs side by side, with intervals where repeats support them.

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { Chart, type Line } from "../chart";
import {
  Bars,
  bestMetric,
  canShowSpeedup,
  formatEstimate,
  lastMetric,
  PhaseBars,
  runColour,
  SpeedupChart,
  type ComparedRun,
  type Comparison,
  type Estimate,
} from "../comparison";
import { fetchJson, fetchRuns } from "../connection";
import { metricValue, shortMetricLabel, type MetricSummary } from "../evaluation";
import { downloadCsv, downloadHtml, downloadJson, downloadPng, type Cell } from "../export";
import { NOTHING, percent, plain, seconds, si } from "../format";
import { PhaseLegend } from "../gantt_chart";
import { Panel } from "../panel";
import { comparing, runs, server, theme, view } from "../state";
import type { Json, LossPoint } from "../types";

const MAX_RUNS = 6;
const MAX_SETTINGS = 40;
const RETRY_MS = 3000;
const REFRESH_S = 10; // while a compared run is training

const comparison = signal<Comparison | null>(null); // kept when another page is opened

/** Loads the runs and their comparison; a failed request is retried. */
function useComparison(): string {
  const [problem, setProblem] = useState("");
  const [attempt, setAttempt] = useState(0);
  const pending = useRef(""); // names of the runs in the current request
  const onError = (error: Error) => {
    setProblem(error.message);
    setTimeout(() => setAttempt(attempt + 1), RETRY_MS);
  };
  useEffect(() => {
    fetchRuns().then((rows) => {
      if (comparing.value.length) return;
      const own = server.value?.run;
      const others = rows.map((row) => row.run).filter((name) => name !== own);
      comparing.value = [...(own ? [own] : []), ...others].slice(0, 2);
    }, onError);
  }, [attempt]);
  const names = comparing.value.join();
  const isTraining = comparison.value?.runs.some((row) => row.state === "training");
  const refresh = isTraining ? Math.floor((view.value?.now_s ?? 0) / REFRESH_S) : 0;
  useEffect(() => {
    if (!names || pending.current === names) return; // one request at a time, however slow
    pending.current = names;
    // The response is ignored if other runs were selected in the meantime.
    const settle = (apply: () => void) => {
      if (pending.current !== names) return;
      pending.current = "";
      apply();
    };
    fetchJson<Comparison>("/api/v1/compare", { runs: names }).then(
      (response) =>
        settle(() => {
          comparison.value = response;
          setProblem("");
        }),
      (error: Error) => settle(() => onError(error)),
    );
  }, [names, refresh, attempt]);
  return problem;
}

export function Compare() {
  const problem = useComparison();
  const content = useRef<HTMLDivElement>(null);
  const current = comparison.value;
  return (
    <div class="compare">
      <Panel
        title="Runs"
        shows="the runs of this folder, newest first; runs whose plans differ only in the seed are repeats"
        good="two to six runs that differ in one setting"
        otherwise="start more runs: paceline compare"
        side={current && <ExportButtons comparison={current} content={content} />}
      >
        <RunList />
        {problem && (
          <p class="bad" role="status">
            {problem}
          </p>
        )}
        {!current && !problem && (
          <p class="muted" role="status">
            {comparing.value.length ? "Loading the comparison …" : "Select runs to compare."}
          </p>
        )}
      </Panel>
      {current && (
        <div class="compare" ref={content}>
          <ComparisonPanels comparison={current} />
        </div>
      )}
    </div>
  );
}

function toggleRun(name: string): void {
  const current = comparing.value;
  const isChosen = current.includes(name);
  comparing.value = isChosen
    ? current.filter((other) => other !== name)
    : [...current, name].slice(-MAX_RUNS);
}

function RunList() {
  return (
    <ul class="names" tabIndex={0} aria-label="Runs">
      {runs.value.map((row) => (
        <li key={row.run}>
          <button aria-pressed={comparing.value.includes(row.run)} onClick={() => toggleRun(row.run)}>
            {row.run}{" "}
            <span class="muted">
              {row.mode} {row.task} {row.num_workers ?? ""}
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}

function ComparisonPanels({ comparison: current }: { comparison: Comparison }) {
  const rows = current.runs;
  return (
    <>
      <NumbersPanel comparison={current} />
      <div class="charts">
        <SpeedupPanel comparison={current} />
        <Panel
          title="Efficiency and throughput"
          shows="speedup per worker, and samples per second; whiskers: 95 % interval over three or more rounds"
          good="an efficiency near 100 %"
          otherwise="use fewer workers, larger batches, or a strategy that waits less"
        >
          <h3>Efficiency</h3>
          <Bars
            rows={rows}
            max={100}
            unit=" %"
            label="Efficiency of each run"
            of={(row) => inPercent(row.efficiency)}
          />
          <h3>Samples per second</h3>
          <Bars rows={rows} unit="/s" label="Samples per second of each run" of={(row) => row.throughput} />
        </Panel>
        <Panel
          title="Loss over time"
          shows="the training loss of each run over its training time"
          good="the lowest line first"
          otherwise="compare over samples, too: faster is not the same as better"
          empty={hasCurves(rows) ? "" : "No loss yet."}
        >
          <LossCurves rows={rows} xAxis="time" />
        </Panel>
        <Panel
          title="Loss over samples"
          shows="the training loss of each run over the samples processed"
          good="equal lines: the strategy costs no quality"
          otherwise="a higher line learns less from each sample"
          empty={hasCurves(rows) ? "" : "No loss yet."}
        >
          <LossCurves rows={rows} xAxis="samples" />
        </Panel>
      </div>
      <Panel
        title="Phases"
        shows="shares of the phases over all steps of a run"
        good="little wait and communication"
        otherwise="the phase that is longer than in the other run explains the difference"
        side={<PhaseLegend />}
      >
        <PhaseBars rows={rows} />
      </Panel>
      <Panel
        title="Different settings"
        shows="the settings of the plans that are not equal"
        good="one line"
        otherwise="with several lines, the difference may have several causes"
        empty={current.differs.length ? "" : "The plans are equal."}
      >
        <Differences comparison={current} />
      </Panel>
    </>
  );
}

function hasCurves(rows: ComparedRun[]): boolean {
  return rows.some((row) => row.curve.length > 0);
}

function inPercent(estimate: Estimate | null): Estimate | null {
  if (!estimate) return null;
  const scale = (value: number | null) => (value === null ? null : value * 100);
  return { value: estimate.value * 100, low: scale(estimate.low), high: scale(estimate.high) };
}

function SpeedupPanel({ comparison: current }: { comparison: Comparison }) {
  return (
    <Panel
      title="Speedup"
      shows={
        "throughput relative to the run with the fewest workers; dashed: ideal, dotted: Amdahl's law; " +
        "bars: 95 % interval over three or more rounds"
      }
      good="on the dashed line"
      otherwise="below it: see which phase grows with the number of workers"
      empty={canShowSpeedup(current) ? "" : "Select two runs with a measured throughput."}
    >
      <SpeedupChart comparison={current} />
      {current.scaling.map((fit) => {
        const limit = fit.limit === null ? "" : `; the speedup is limited to ${plain(fit.limit)}×`;
        return (
          <p class="muted" key={fit.mode}>
            {fit.mode}: serial share {percent(fit.serial, 1)}
            {limit}.
          </p>
        );
      })}
    </Panel>
  );
}

interface ExportProps {
  comparison: Comparison;
  content: { current: HTMLDivElement | null };
}

function ExportButtons({ comparison: current, content }: ExportProps) {
  const title = `paceline: ${current.runs.map((row) => row.run).join(", ")}`;
  const exportPng = () => downloadPng("losses.png", title, [...content.current!.querySelectorAll("canvas")]);
  return (
    <div class="row">
      <button onClick={() => downloadCsv("compare.csv", csvRows(current))}>CSV</button>
      <button onClick={() => downloadJson("compare.json", current)}>JSON</button>
      <button onClick={exportPng}>PNG of the loss curves</button>
      <button onClick={() => downloadHtml("compare.html", title, content.current!)}>HTML file</button>
    </div>
  );
}

interface Column {
  name: string;
  of: (row: ComparedRun) => string | number | null;
  show?: (row: ComparedRun) => string;
}

function commShare(row: ComparedRun): number | null {
  if (!Object.keys(row.phases).length) return null;
  return (row.phases.comm ?? 0) + (row.phases.codec ?? 0);
}

function describeMetric(summary: MetricSummary | null, value: number | null | undefined): string {
  if (!summary || value === null || value === undefined) return NOTHING;
  return `${metricValue(summary.name, value)} ${shortMetricLabel(summary.name)}`;
}

const COLUMNS: Column[] = [
  { name: "strategy", of: (row) => row.mode },
  { name: "workers", of: (row) => row.workers },
  { name: "state", of: (row) => row.state },
  { name: "repeats", of: (row) => row.repeats },
  { name: "steps", of: (row) => row.step },
  { name: "training time", of: (row) => row.training_s, show: (row) => seconds(row.training_s) },
  { name: "time to target", of: (row) => row.target_s, show: (row) => seconds(row.target_s) },
  {
    name: "samples/s",
    of: (row) => row.samples_per_s,
    show: (row) => si(row.throughput?.value ?? row.samples_per_s),
  },
  { name: "speedup", of: (row) => row.speedup?.value ?? null, show: (row) => formatEstimate(row.speedup) },
  {
    name: "efficiency",
    of: (row) => row.efficiency?.value ?? null,
    show: (row) => percent(row.efficiency?.value),
  },
  { name: "loss", of: (row) => row.loss, show: (row) => plain(row.loss) },
  {
    name: "accuracy",
    of: (row) => lastMetric(row)?.last ?? null,
    show: (row) => describeMetric(lastMetric(row), lastMetric(row)?.last),
  },
  {
    name: "best accuracy",
    of: (row) => bestMetric(row)?.best ?? null,
    show: (row) => describeMetric(bestMetric(row), bestMetric(row)?.best),
  },
  { name: "comm", of: commShare, show: (row) => percent(commShare(row)) },
  { name: "staleness", of: (row) => row.staleness_mean, show: (row) => plain(row.staleness_mean) },
  {
    name: "recovery",
    of: (row) => row.recovery_s,
    show: (row) => (row.recoveries ? `${seconds(row.recovery_s)} in ${row.recoveries}` : NOTHING),
  },
  {
    name: "worker time",
    of: (row) => row.cost_worker_s,
    show: (row) => seconds(row.cost_worker_s),
  },
];

function csvRows(current: Comparison): Cell[][] {
  const header = ["run", ...COLUMNS.map((column) => column.name), "verdict"];
  const rows = current.runs.map((row) => [row.run, ...COLUMNS.map((column) => column.of(row)), row.in_words]);
  return [header, ...rows];
}

function NumbersPanel({ comparison: current }: { comparison: Comparison }) {
  return (
    <Panel
      title="Results"
      shows={
        "the result of each run; speedup relative to the run with the fewest workers, with a 95 % interval " +
        "over three or more rounds; accuracy of the finished model or of the last evaluation"
      }
      good="depends on the goal: time, quality or bytes sent"
      otherwise="a difference that repeats do not confirm is noise; `paceline compare` runs repeats"
    >
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of runs">
        <table>
          <thead>
            <tr>
              <th scope="col">run</th>
              {COLUMNS.map((column) => (
                <th scope="col" key={column.name}>
                  {column.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {current.runs.map((row) => (
              <tr key={row.run} data-compared={row.run}>
                <th scope="row">{row.run}</th>
                {COLUMNS.map(({ name, of, show }) => (
                  <td key={name} data-column={name}>
                    {show ? show(row) : plain(of(row))}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <ul class="plain">
        {current.words.map((text) => (
          <li key={text}>{text}</li>
        ))}
      </ul>
      {current.target_loss !== null && (
        <p class="muted">
          Target: a loss of {plain(current.target_loss)}, the lowest that every run reached.
        </p>
      )}
    </Panel>
  );
}

/** All runs on one x axis; a run has values only at its own points. */
function LossCurves({ rows, xAxis }: { rows: ComparedRun[]; xAxis: "time" | "samples" }) {
  const xOf = (row: ComparedRun, point: LossPoint) => {
    return xAxis === "time" ? point[1] - row.curve[0][1] : point[0] * (row.batch ?? 1);
  };
  const allXs = rows.flatMap((row) => row.curve.map((point) => xOf(row, point)));
  const xs = [...new Set(allXs)].sort((a, b) => a - b);
  const lines: Line[] = rows.map((row, i) => {
    const values = new Map(
      row.curve.map((point) => [xOf(row, point), typeof point[2] === "number" ? point[2] : null]),
    );
    return {
      label: row.run,
      values: xs.map((x) => values.get(x) ?? null),
      colour: runColour(i),
      strong: true,
      dash: i ? [8, 2 + 2 * i] : undefined,
    };
  });
  return (
    <Chart
      key={theme.value}
      label={`Loss of ${rows.length} runs over ${xAxis}`}
      x={xs}
      lines={lines}
      height={220}
      xAxis={xAxis}
      isShared={false}
    />
  );
}

function settingText(value: Json): string {
  if (value === null || value === undefined) return NOTHING;
  return Array.isArray(value) ? value.join(", ") : String(value);
}

function Differences({ comparison: current }: { comparison: Comparison }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of settings">
      <table>
        <thead>
          <tr>
            <th scope="col">setting</th>
            {current.runs.map((row) => (
              <th scope="col" key={row.run}>
                {row.run}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {current.differs.slice(0, MAX_SETTINGS).map(([name, values]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              {values.map((value, i) => (
                <td key={i}>{settingText(value)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
