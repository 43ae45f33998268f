// Is it fine, and if not, where?

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { act, Stop } from "../acting";
import { Chart, Spark, type Mark } from "../chart";
import { askRuns } from "../connection";
import { efficiency } from "../efficiency";
import { GanttBox, lanesOf, Legend } from "../ganttbox";
import { Panel } from "../panel";
import { told } from "../ribbon";
import { events, go, mayAct, phaseColour, range, runs, selected, server, steps, view } from "../state";
import { endOf } from "../steps";
import type { View } from "../types";
import { NOTHING, bytes, plain, seconds, share, si, stateOf } from "../words";

export function Overview() {
  const now = view.value!;
  return (
    <div class="overview">
      <Tiles now={now} />
      <HealthPanel now={now} />
      <Grid now={now} />
      <Loss now={now} />
      <Panel class="last" title="Last 10 seconds" what="what each worker did, by phase of its steps" good="little grey (waiting), and lanes that look alike" todo="open the timeline; the lane that makes others wait is the one with the longest boxes" side={<Legend />}>
        <GanttBox lanes={lanesOf()} height={Math.max(90, Math.min(300, lanesOf().length * 56))} width_s={10} label={`Phases of ${lanesOf().length} workers in the last ten seconds`} />
      </Panel>
    </div>
  );
}

function Tile({ name, value, note, children }: { name: string; value: string; note?: string; children?: preact.ComponentChildren }) {
  return <div class="tile" data-tile={name}><h2>{name}</h2><p class="value">{value}</p>{note && <p class="muted">{note}</p>}{children}</div>;
}

function Tiles({ now }: { now: View }) {
  const { progress, throughput, loss } = now;
  const curve = loss.curve.map((point) => (typeof point[2] === "number" ? point[2] : null));
  const recoveries = now.generations.filter((g) => g.recovery);
  const last = recoveries[recoveries.length - 1]?.recovery;
  const change = throughput.change_share;
  const found = efficiency(now, runs.value, server.value?.run);
  useEffect(() => { void askRuns().catch(() => undefined); }, [server.value?.run]); // without them its own work is told
  return (
    <div class="tiles">
      <Tile name="Progress" value={`${progress.step} / ${progress.steps}`} note={`${stateOf(now.state).word}, ${progress.eta_s === null ? seconds(progress.elapsed_s) : `${seconds(progress.eta_s)} to go`}`}><progress max={1} value={progress.share} aria-label="Share of the steps that is done" />{mayAct.value && now.state === "training" && <Stop name={server.value!.run} />}</Tile>
      <Tile name="Throughput" value={si(throughput.samples_per_s, "/s")} note={change === null || change === undefined ? `samples; ${bytes(throughput.bytes_per_s)}/s sent` : `samples, ${change >= 0 ? "+" : "−"}${share(Math.abs(change))} in 5 min`} />
      <Tile name="Loss" value={plain(loss.final ?? loss.smooth ?? loss.last)} note={`${loss.final ? "in the end; running mean's " : ""}best ${plain(loss.best)}${loss.best_step === null ? "" : ` at step ${loss.best_step}`}`}><Spark values={curve} label="How the loss fell" /></Tile>
      <Tile name="Efficiency" value={share(found?.share)} note={found?.words ?? "not known yet"} />
      {now.staleness ? <Tile name="Staleness p95" value={plain(now.staleness.p95)} note={`updates behind; at most ${now.staleness.max}`} /> : <Tile name="Waiting" value={share(now.wait_share)} note="of all step time, last minute" />}
      <Tile name="Recovery" value={last ? seconds(last.total_s) : NOTHING} note={recoveries.length ? `the last of ${recoveries.length}` : now.run.is_elastic ? "nobody was lost" : "not elastic"}>
        {mayAct.value && now.run.is_elastic && now.state === "training" && <button onClick={() => void act("checkpoint")}>Checkpoint now</button>}
      </Tile>
    </div>
  );
}

function HealthPanel({ now }: { now: View }) {
  const { health } = now;
  return (
    <Panel class="healthbox" title="Health" what="100 minus what is wrong, each with its reason" good="95 and more" todo="the first line names what costs most; the alerts say what to do">
      <p class="score" data-score={health.score ?? "unknown"}>{health.score === null ? "unknown" : health.score} <span class="words">{health.words}</span></p>
      <p class="arithmetic">{health.penalties.length ? health.arithmetic : health.score === null ? "" : "nothing costs points"}</p>
      <ul class="trends">{now.trends.slice(0, 3).map((trend) => <li key={trend.series}>{trend.words}</li>)}</ul>
    </Panel>
  );
}

function Grid({ now }: { now: View }) {
  const speeds = now.workers.map((w) => w.relative_speed).filter((v): v is number => v !== null && v !== undefined);
  return (
    <Panel class="gridbox" title="Workers" what="one cell for each worker: its state and its step" good="all ● and the same step" todo="choose the one that differs" side={speeds.length > 1 && <span class="muted">the slowest has {share(Math.min(...speeds))} of the median's speed</span>}>
      <ul class={now.workers.length > 96 ? "grid many" : "grid"}>
        {now.workers.map((w) => {
          const state = stateOf(w.state);
          return <li key={w.worker}><button class={`cell ${state.tone}`} title={`${w.worker}: ${state.word}, step ${w.step}, lag ${w.lag}, ${seconds(w.step_p50_s)} a step`} aria-label={`${w.worker}, ${state.word}, step ${w.step}`} onClick={() => { selected.value = [w.worker]; go("workers"); }}><span aria-hidden="true">{state.glyph}</span><small>{w.step}</small></button></li>;
        })}
      </ul>
    </Panel>
  );
}

type Along = "time" | "step" | "samples";
const along = signal<Along>("time");

/** The losses that one worker saw, in the stretches between the points of the curve: faint, behind the running mean. */
function raw(points: [number, number, number][], worker: string | undefined): (number | null)[] {
  if (!worker || points.length < 2) return points.map(() => null);
  const sums = new Float64Array(points.length), counts = new Uint32Array(points.length);
  let i = 0;
  for (const row of steps.between(worker, points[0][1] - 1, points[points.length - 1][1])) {
    const end = endOf(row);
    while (i < points.length - 1 && points[i][1] < end) i++;
    if (Number.isFinite(row[10])) { sums[i] += row[10]; counts[i]++; }
  }
  return points.map((_, at) => (counts[at] ? sums[at] / counts[at] : null));
}

function Loss({ now }: { now: View }) {
  const by = along.value, at = by === "time" ? 1 : 0;
  const points = now.loss.curve.filter((p): p is [number, number, number] => typeof p[2] === "number").sort((a, b) => a[at] - b[at]);
  const xs = points.map((p) => (by === "samples" ? p[0] * now.run.batch : p[at]));
  const marks: Mark[] = by !== "time" ? [] : told(events.value).filter((e) => ["generation_entered", "checkpoint", "action"].includes(e.kind)).map((e) => ({ x: e.t_s, glyph: e.glyph, text: e.text }));
  const lines = [{ label: "running mean", values: points.map((p) => p[2]), colour: phaseColour("backward"), strong: true }];
  const first = selected.value[0] ?? now.workers[0]?.worker;
  const faint = by === "time" ? [{ label: `${first} alone`, values: raw(points, first), colour: phaseColour("wait") }] : [];
  const look = (from: number, to: number) => { range.value = [from, to]; go("timeline"); };
  return (
    <Panel class="lossbox" title="Loss" what="the running mean of the loss; faint: what one worker saw lately; dashed: what happened. Drag over a stretch to see it in the timeline" good="it falls, and no dashed mark leaves a step in it" todo="if it rises after a mark, look there in the timeline"
      side={<label>by <select value={by} onChange={(e) => { along.value = e.currentTarget.value as Along; }}>{["time", "step", "samples"].map((name) => <option key={name}>{name}</option>)}</select></label>}>
      <Chart key={by} label={`Loss by ${by}, now ${plain(now.loss.smooth)}`} x={xs} height={270} marks={marks} overTime={by === "time"} along={by} lines={[...faint, ...lines]} onSelect={by === "time" ? look : undefined} />
    </Panel>
  );
}
