// Is it fine, and if not, where?

import { act, Stop } from "../acting";
import { Chart, Spark, type Mark } from "../chart";
import { GanttBox, lanesOf, Legend } from "../ganttbox";
import { Panel } from "../panel";
import { told } from "../ribbon";
import { events, go, mayAct, phaseColour, selected, server, view } from "../state";
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
        <GanttBox lanes={lanesOf()} height={Math.max(90, Math.min(300, lanesOf().length * 30))} width_s={10} label={`Phases of ${lanesOf().length} workers in the last ten seconds`} />
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
  const speeds = now.workers.map((w) => w.relative_speed).filter((v): v is number => v !== null && v !== undefined);
  return (
    <div class="tiles">
      <Tile name="Progress" value={`${progress.step} / ${progress.steps}`} note={`${stateOf(now.state).word}, ${progress.eta_s === null ? seconds(progress.elapsed_s) : `${seconds(progress.eta_s)} to go`}`}><progress max={1} value={progress.share} aria-label="Share of the steps that is done" />{mayAct.value && now.state === "training" && <Stop name={server.value!.run} />}</Tile>
      <Tile name="Throughput" value={si(throughput.samples_per_s, "/s")} note={change === null || change === undefined ? `samples; ${bytes(throughput.bytes_per_s)}/s sent` : `samples, ${change >= 0 ? "+" : "−"}${share(Math.abs(change))} in 5 min`} />
      <Tile name="Loss" value={plain(loss.smooth ?? loss.last)} note={`best ${plain(loss.best)}${loss.best_step === null ? "" : ` at step ${loss.best_step}`}`}><Spark values={curve} label="How the loss fell" /></Tile>
      <Tile name="Evenness" value={speeds.length ? share(Math.min(...speeds)) : NOTHING} note="speed of the slowest worker, of the median one" />
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
      <p class="arithmetic">{health.arithmetic}</p>
      <ul class="trends">{now.trends.slice(0, 3).map((trend) => <li key={trend.series}>{trend.words}</li>)}</ul>
    </Panel>
  );
}

function Grid({ now }: { now: View }) {
  return (
    <Panel class="gridbox" title="Workers" what="one cell for each worker: its state and its step" good="all ● and the same step" todo="choose the one that differs">
      <ul class="grid">
        {now.workers.map((w) => {
          const state = stateOf(w.state);
          return <li key={w.worker}><button class={`cell ${state.tone}`} title={`${w.worker}: ${state.word}, step ${w.step}, lag ${w.lag}, ${seconds(w.step_p50_s)} a step`} aria-label={`${w.worker}, ${state.word}, step ${w.step}`} onClick={() => { selected.value = [w.worker]; go("workers"); }}><span aria-hidden="true">{state.glyph}</span><small>{w.step}</small></button></li>;
        })}
      </ul>
    </Panel>
  );
}

function Loss({ now }: { now: View }) {
  const points = now.loss.curve.filter((p): p is [number, number, number] => typeof p[2] === "number").sort((a, b) => a[1] - b[1]);
  const marks: Mark[] = told(events.value).filter((e) => ["generation_entered", "checkpoint", "action"].includes(e.kind)).map((e) => ({ x: e.t_s, glyph: e.glyph, text: e.text }));
  return (
    <Panel class="lossbox" title="Loss" what="the running mean of the loss over time; dashed: what happened" good="it falls, and no dashed mark leaves a step in it" todo="if it rises after a mark, look there in the timeline">
      <Chart label={`Loss over time, now ${plain(now.loss.smooth)}`} x={points.map((p) => p[1])} height={300} marks={marks}
        lines={[{ label: "loss", values: points.map((p) => p[2]), colour: phaseColour("backward"), strong: true }]} />
    </Panel>
  );
}

export function smoothed(values: number[], weight = 0.85): number[] {
  let last = values[0] ?? 0;
  return values.map((value) => (last = Number.isFinite(value) ? weight * last + (1 - weight) * value : last));
}
