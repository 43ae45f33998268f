// Overview page: state of the run at a glance.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { requestAction, StopRun } from "../actions";
import { Chart, Sparkline, type Line, type Mark, type XAxis } from "../chart";
import { fetchRuns } from "../connection";
import { efficiency } from "../efficiency";
import { metricLabel, metricValue, summarizeEvaluations, summarizeResult } from "../evaluation";
import { keyEvents } from "../event_bar";
import { bytes, NOTHING, percent, plain, plural, seconds, si, stateLabel } from "../format";
import { GanttChart, PhaseLegend, timelineLanes } from "../gantt_chart";
import { Panel } from "../panel";
import { canAct, events, openPage, phaseColour, range, runs, selected, server, steps, view } from "../state";
import { endOf } from "../steps";
import type { View, WorkerRow } from "../types";

const RESULT_DELAY_MS = 2000; // the result is written after the run's last event
const FEW_WORKERS = 16; // cells have names
const MANY_WORKERS = 96; // cells have no numbers
const MAX_NAMED_LANES = 12;

export function Overview() {
  const now = view.value!;
  const lanes = timelineLanes();
  return (
    <div class="overview">
      <Tiles now={now} />
      <HealthPanel now={now} />
      <WorkerGrid now={now} />
      <LossPanel now={now} />
      <Panel
        class="last"
        title="Last 10 seconds"
        shows="the phases of each worker's steps"
        good="little wait, and lanes that look alike; delay is the pace or straggler that was configured"
        otherwise="open the timeline; the lane with the longest boxes makes the others wait"
        side={<PhaseLegend />}
        empty={lanes.length ? "" : "No steps yet."}
      >
        <div class="lanes">
          <ol class="names">
            {lanes.length <= MAX_NAMED_LANES && lanes.map((name) => <li key={name}>{name}</li>)}
          </ol>
          <GanttChart
            lanes={lanes}
            height={Math.max(90, Math.min(300, lanes.length * 75))}
            width_s={10}
            label={`Phases of ${lanes.length} workers in the last ten seconds`}
          />
        </div>
      </Panel>
    </div>
  );
}

interface TileProps {
  name: string;
  value: string;
  note?: string;
  children?: ComponentChildren;
  kind?: string;
}

function Tile({ name, value, note, children, kind = name }: TileProps) {
  return (
    <div class="tile" data-tile={kind}>
      <h2>{name}</h2>
      <p class="value">{value}</p>
      {note && <p class="muted">{note}</p>}
      {children}
    </div>
  );
}

function Tiles({ now }: { now: View }) {
  const isOver = now.state === "finished" || now.state === "stopped";
  useEffect(() => {
    const load = () => void fetchRuns().catch(() => undefined); // the tiles show less without them
    load();
    if (!isOver) return;
    const timer = setTimeout(load, RESULT_DELAY_MS);
    return () => clearTimeout(timer);
  }, [server.value?.run, isOver]);
  return (
    <div class="tiles">
      <ProgressTile now={now} />
      <ThroughputTile now={now} />
      <LossTile now={now} />
      <AccuracyTile now={now} />
      <EfficiencyTile now={now} />
      <StalenessTile now={now} />
      <RecoveryTile now={now} />
    </div>
  );
}

function ProgressTile({ now }: { now: View }) {
  const { step, steps: total, eta_s, elapsed_s, share } = now.progress;
  const time = eta_s === null ? seconds(elapsed_s) : `${seconds(eta_s)} remaining`;
  return (
    <Tile
      name="Progress"
      value={`${stepCount(step)} / ${stepCount(total)}`}
      note={`${stateLabel(now.state).word}, ${time}`}
    >
      <progress max={1} value={share} aria-label="Share of the steps that is done" />
      {canAct.value && now.state === "training" && <StopRun name={server.value!.run} />}
    </Tile>
  );
}

/** Large numbers are abbreviated, so that both fit into the tile. */
function stepCount(value: number): string {
  return value >= 100_000 ? si(value) : String(value);
}

function ThroughputTile({ now }: { now: View }) {
  const { samples_per_s, change_share: change, bytes_per_s } = now.throughput;
  const sent = `${bytes(bytes_per_s)}/s sent`;
  const trend = `${(change ?? 0) >= 0 ? "+" : "−"}${percent(Math.abs(change ?? 0))} in 5 min`;
  const isKnown = change !== null && change !== undefined;
  return (
    <Tile
      name="Throughput"
      value={si(samples_per_s, "/s")}
      note={isKnown ? `samples, ${trend}` : `samples; ${sent}`}
    />
  );
}

function LossTile({ now }: { now: View }) {
  const { loss } = now;
  const curve = loss.curve.map((point) => (typeof point[2] === "number" ? point[2] : null));
  const at = loss.best_step === null ? "" : ` at step ${loss.best_step}`;
  const best = `best ${plain(loss.best)}${at}`;
  return (
    <Tile
      name="Loss"
      value={plain(loss.final ?? loss.smooth ?? loss.last)}
      note={loss.final ? `final; moving average: ${best}` : best}
    >
      <Sparkline values={curve} label="Loss curve" />
    </Tile>
  );
}

/** The metrics of the finished model if they are known, else the newest evaluation; and the best evaluation. */
function AccuracyTile({ now }: { now: View }) {
  const row = runs.value.find((other) => other.run === server.value?.run);
  const evaluated = summarizeEvaluations(now.loss.evaluations);
  const shown = summarizeResult(row?.metrics) ?? evaluated;
  if (!shown) {
    return (
      <Tile kind="Accuracy" name="Accuracy" value={NOTHING} note="not evaluated; see --evaluate-every" />
    );
  }
  const label = metricLabel(shown.name);
  const name = label[0].toUpperCase() + label.slice(1);
  const prefix = evaluated && evaluated.name !== shown.name ? `${metricLabel(evaluated.name)}: ` : "";
  const best =
    evaluated && `${prefix}best ${metricValue(evaluated.name, evaluated.best)} at step ${evaluated.bestStep}`;
  return (
    <Tile
      kind="Accuracy"
      name={name}
      value={metricValue(shown.name, shown.last)}
      note={best ?? "of the finished model"}
    />
  );
}

function EfficiencyTile({ now }: { now: View }) {
  const measured = efficiency(now, runs.value, server.value?.run);
  return (
    <Tile
      name="Efficiency"
      value={percent(measured?.share)}
      note={measured?.description ?? "not measured yet"}
    />
  );
}

function StalenessTile({ now }: { now: View }) {
  if (!now.staleness) {
    return <Tile name="Wait" value={percent(now.wait_share)} note="of the step time, last minute" />;
  }
  const { p95, max } = now.staleness;
  return <Tile name="Staleness p95" value={plain(p95)} note={`updates behind; maximum ${max}`} />;
}

function RecoveryTile({ now }: { now: View }) {
  const recoveries = now.generations.filter((generation) => generation.recovery);
  const last = recoveries[recoveries.length - 1]?.recovery;
  const none = now.run.is_elastic ? "no worker was lost" : "the run is not elastic";
  const canCheckpoint = canAct.value && now.run.is_elastic && now.state === "training";
  return (
    <Tile
      name="Recovery"
      value={last ? seconds(last.total_s) : NOTHING}
      note={recoveries.length ? `last of ${recoveries.length}` : none}
    >
      {canCheckpoint && <button onClick={() => void requestAction("checkpoint")}>Checkpoint now</button>}
    </Tile>
  );
}

function HealthPanel({ now }: { now: View }) {
  const { health } = now;
  const calculation = health.penalties.length ? health.arithmetic : "no deductions";
  return (
    <Panel
      class="healthbox"
      title="Health"
      shows="100 minus the deductions of firing alerts, each with its reason"
      good="95 or more"
      otherwise="the largest deduction comes first; the alerts say what to do"
    >
      <p class="score" data-score={health.score ?? "unknown"}>
        {health.score === null ? "unknown" : health.score} <span class="words">{health.words}</span>
      </p>
      {health.score !== null && <p class="arithmetic">{calculation}</p>}
      <ul class="trends">
        {now.trends.slice(0, 3).map((trend) => (
          <li key={trend.series}>{trend.words}</li>
        ))}
      </ul>
    </Panel>
  );
}

function WorkerGrid({ now }: { now: View }) {
  const speeds = now.workers
    .map((worker) => worker.relative_speed)
    .filter((speed): speed is number => !!speed);
  const slowest = speeds.length > 1 && (
    <span class="muted">slowest worker: {percent(Math.min(...speeds))} of the median speed</span>
  );
  return (
    <Panel
      class="gridbox"
      title="Workers"
      shows="one cell per worker: its state and its step"
      good="all ●, at the same step"
      otherwise="select the worker that differs"
      side={slowest}
      empty={now.workers.length ? "" : "No workers yet."}
    >
      <ul class={`grid ${gridSize(now.workers.length)}`}>
        {now.workers.map((worker) => (
          <li key={worker.worker}>
            <WorkerCell worker={worker} hasName={now.workers.length <= FEW_WORKERS} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function gridSize(workers: number): string {
  if (workers <= FEW_WORKERS) return "few";
  return workers > MANY_WORKERS ? "many" : "";
}

function WorkerCell({ worker, hasName }: { worker: WorkerRow; hasName: boolean }) {
  const state = stateLabel(worker.state);
  const facts = `lag ${worker.lag}, ${seconds(worker.step_p50_s)} per step`;
  const onClick = () => {
    selected.value = [worker.worker];
    openPage("workers");
  };
  return (
    <button
      class={`cell ${state.tone}`}
      title={`${worker.worker}: ${state.word}, step ${worker.step}, ${facts}`}
      aria-label={hasName ? undefined : `${worker.worker}, ${state.word}, step ${worker.step}`}
      onClick={onClick}
    >
      {hasName && <span class="name">{worker.worker}</span>}
      <span>
        <span aria-hidden="true">{state.glyph}</span>
        {hasName && ` ${state.word}`}
      </span>
      <small>{hasName ? `step ${worker.step}, ${seconds(worker.step_p50_s)}` : worker.step}</small>
    </button>
  );
}

type Point = [step: number, t_s: number, loss: number];
const X_AXES: XAxis[] = ["time", "step", "samples"];
const xAxis = signal<XAxis>("time");

/** Mean loss of one worker between the points of the curve. */
function workerLoss(points: Point[], worker: string | undefined): (number | null)[] {
  if (!worker || points.length < 2) return points.map(() => null);
  const sums = new Float64Array(points.length);
  const counts = new Uint32Array(points.length);
  let i = 0;
  for (const row of steps.between(worker, points[0][1] - 1, points[points.length - 1][1])) {
    const end = endOf(row);
    while (i < points.length - 1 && points[i][1] < end) i++;
    if (!Number.isFinite(row[10])) continue;
    sums[i] += row[10];
    counts[i]++;
  }
  return points.map((_, j) => (counts[j] ? sums[j] / counts[j] : null));
}

function lossMarks(): Mark[] {
  return keyEvents(events.value)
    .filter((event) => ["generation_entered", "checkpoint", "action"].includes(event.kind))
    .map((event) => ({ x: event.t_s, glyph: event.glyph }));
}

function LossPanel({ now }: { now: View }) {
  const axis = xAxis.value;
  const column = axis === "time" ? 1 : 0;
  const points = now.loss.curve
    .filter((point): point is Point => typeof point[2] === "number")
    .sort((a, b) => a[column] - b[column]);
  const xs = points.map((point) => (axis === "samples" ? point[0] * now.run.batch : point[column]));
  const worker = selected.value[0] ?? now.workers[0]?.worker;
  const average: Line = {
    label: "moving average",
    values: points.map((point) => point[2]),
    colour: phaseColour("backward"),
    strong: true,
  };
  const single: Line = {
    label: `${worker} only`,
    values: workerLoss(points, worker),
    colour: phaseColour("wait"),
  };
  const onSelect = (from: number, to: number) => {
    range.value = [from, to];
    openPage("timeline");
  };
  return (
    <Panel
      class="lossbox"
      title="Loss"
      shows={
        "the moving average of the training loss; thin: one worker only; dashed: generations, checkpoints and " +
        "actions. Drag over the chart to open that window in the timeline"
      }
      good="it falls, without a jump at a dashed line"
      otherwise="if it rises after a dashed line, open that window in the timeline"
      empty={points.length ? "" : `No loss yet; ${plural(now.progress.step, "step")} done.`}
      side={
        <label>
          x axis{" "}
          <select
            value={axis}
            onChange={(event) => {
              xAxis.value = event.currentTarget.value as XAxis;
            }}
          >
            {X_AXES.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      }
    >
      <Chart
        key={axis}
        label={`Loss by ${axis}, now ${plain(now.loss.smooth)}`}
        x={xs}
        height={270}
        marks={axis === "time" ? lossMarks() : []}
        xAxis={axis}
        lines={axis === "time" ? [single, average] : [average]}
        onSelect={axis === "time" ? onSelect : undefined}
      />
    </Panel>
  );
}
