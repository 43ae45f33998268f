// Which run was better, in what, and can one be sure?

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { Chart, type Line } from "../chart";
import { around, Bars, LINES, PhaseBars, Speedups, type Compared, type Row } from "../compared";
import { ask, askRuns } from "../connection";
import { Legend } from "../ganttbox";
import { Panel } from "../panel";
import { saveCsv, saveHtml, saveJson, savePng } from "../saving";
import { comparing, phaseColour, runs, server, theme, view } from "../state";
import type { Json } from "../types";
import { plain, seconds, share, si } from "../words";

const MOST = 6;
const AGAIN_MS = 3000;

// It outlasts the page: who comes back sees what was there until there is something newer.
const compared = signal<Compared | null>(null);

export function Compare() {
  const all = runs.value, found = compared.value;
  const [problem, setProblem] = useState("");
  const [turn, setTurn] = useState(0); // grows when what failed is asked again
  const part = useRef<HTMLDivElement>(null);
  const awaited = useRef(""); // the runs whose answer is on its way
  const fail = (error: Error) => { setProblem(error.message); setTimeout(() => setTurn(turn + 1), AGAIN_MS); };
  useEffect(() => {
    void askRuns().then((answer) => {
      if (comparing.value.length) return;
      const mine = server.value?.run;
      const others = answer.map((row) => row.run).filter((name) => name !== mine);
      comparing.value = [...(mine ? [mine] : []), ...others].slice(0, 2);
    }, fail);
  }, [turn]);
  const names = comparing.value.join();
  const moment = found?.runs.some((row) => row.state === "training") ? Math.floor((view.value?.now_s ?? 0) / 10) : 0;
  useEffect(() => {
    if (!names || awaited.current === names) return; // a slow answer is waited for, however slow
    awaited.current = names;
    const take = (act: () => void) => { if (awaited.current === names) { awaited.current = ""; act(); } }; // whoever chose again wants another one
    void ask<Compared>("/api/v1/compare", { runs: names }).then((answer) => take(() => { compared.value = answer; setProblem(""); }), (error: Error) => take(() => fail(error)));
  }, [names, moment, turn]);
  const flip = (name: string) => { comparing.value = comparing.value.includes(name) ? comparing.value.filter((n) => n !== name) : [...comparing.value, name].slice(-MOST); };
  return (
    <div class="compare">
      <Panel title="Runs" what="the runs in this folder, newest first; runs of the same plan but for the seed are repeats of each other" good="choose two to six that differ in one thing" todo="start more: paceline compare"
        side={found && <Exports found={found} part={part} />}>
        <ul class="names" tabIndex={0} aria-label="Runs">{all.map((row) => <li key={row.run}><button aria-pressed={comparing.value.includes(row.run)} onClick={() => flip(row.run)}>{row.run} <span class="muted">{row.mode} {row.task} {row.num_workers ?? ""}</span></button></li>)}</ul>
        {problem && <p class="bad" role="status">{problem}</p>}
      </Panel>
      {found && <div class="compare" ref={part}>
        <Numbers found={found} />
        <div class="charts">
          <Panel title="Speed-up" what="samples a second over those of the run with the fewest workers; dashed: the ideal, dotted: Amdahl's law; bars: 95 % of three rounds or more" good="on the dashed line" todo="below it: look at the shares, what grew with the workers?">
            <Speedups found={found} />
            {found.scaling.map((fit) => <p class="muted" key={fit.mode}>{fit.mode}: {share(fit.serial)} of the work is not shared{fit.limit === null ? "" : `; no number of workers is more than ${plain(fit.limit)} times as fast`}.</p>)}
          </Panel>
          <Panel title="Efficiency" what="speed-up for each worker; the whisker is 95 % of three rounds or more" good="near 100 %" todo="fewer workers, larger batches, or a mode that waits less"><Bars rows={found.runs} most={100} unit=" %" label="Efficiency of each run" of={(row) => row.efficiency && { value: row.efficiency.value * 100, low: row.efficiency.low === null ? null : row.efficiency.low * 100, high: row.efficiency.high === null ? null : row.efficiency.high * 100 }} />
            <h3>Samples a second</h3><Bars rows={found.runs} unit="/s" label="Samples a second of each run" of={(row) => row.throughput} /></Panel>
          <Panel title="Loss over time" what="how each run's loss fell, by the clock" good="the lowest line soonest" todo="compare by samples, too: fast is not the same as good"><Curves rows={found.runs} by="time" /></Panel>
          <Panel title="Loss by samples" what="the same by samples that were trained on" good="lines on each other: the mode costs no quality" todo="a higher line learns less from each sample"><Curves rows={found.runs} by="samples" /></Panel>
        </div>
        <Panel title="Where the time went" what="the phases of all steps of a run" good="little waiting and communication" todo="what is longer than in the other run is where the speed went" side={<Legend />}><PhaseBars rows={found.runs} /></Panel>
        <Panel title="Settings that differ" what="of the plans, only what is not the same" good="one line" todo="more than one: you compare several things at once"><Differences found={found} /></Panel>
      </div>}
    </div>
  );
}

function Exports({ found, part }: { found: Compared; part: { current: HTMLDivElement | null } }) {
  const title = `paceline: ${found.runs.map((row) => row.run).join(", ")}`;
  return (
    <div class="row">
      <button onClick={() => saveCsv("compare.csv", table(found))}>CSV</button>
      <button onClick={() => saveJson("compare.json", found)}>JSON</button>
      <button onClick={() => savePng("losses.png", title, [...part.current!.querySelectorAll("canvas")])}>PNG of the losses</button>
      <button onClick={() => saveHtml("compare.html", title, part.current!)}>Page in one file</button>
    </div>
  );
}

const COLUMNS: [string, (row: Row) => string | number | null, ((row: Row) => string)?][] = [
  ["mode", (r) => r.mode], ["workers", (r) => r.workers], ["state", (r) => r.state], ["repeats", (r) => r.repeats], ["steps", (r) => r.step],
  ["training", (r) => r.training_s, (r) => seconds(r.training_s)], ["to the target", (r) => r.target_s, (r) => seconds(r.target_s)],
  ["samples/s", (r) => r.samples_per_s, (r) => si(r.throughput?.value ?? r.samples_per_s)], ["speed-up", (r) => r.speedup?.value ?? null, (r) => around(r.speedup)],
  ["efficiency", (r) => r.efficiency?.value ?? null, (r) => share(r.efficiency?.value)], ["loss", (r) => r.loss, (r) => plain(r.loss)],
  ["comm", (r) => comm(r), (r) => share(comm(r))], ["staleness", (r) => r.staleness_mean, (r) => plain(r.staleness_mean)],
  ["recovering", (r) => r.recovery_s, (r) => (r.recoveries ? `${seconds(r.recovery_s)} in ${r.recoveries}` : "–")], ["cost", (r) => r.cost_worker_s, (r) => (r.cost_worker_s === null ? "–" : si(r.cost_worker_s, "worker s"))],
];
const comm = (row: Row) => (Object.keys(row.phases).length ? (row.phases.comm ?? 0) + (row.phases.codec ?? 0) : null);
const table = (found: Compared) => [["run", ...COLUMNS.map(([name]) => name), "in words"], ...found.runs.map((row) => [row.run, ...COLUMNS.map(([, of]) => of(row)), row.in_words])];

function Numbers({ found }: { found: Compared }) {
  return (
    <Panel title="Side by side" what="what each run came to; speed-up against the run with the fewest workers, with 95 % over three rounds or more" good="depends on what you want: time, quality, bytes" todo="a difference that repeats do not show is noise; `paceline compare` makes repeats">
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of runs"><table>
        <thead><tr><th scope="col">run</th>{COLUMNS.map(([name]) => <th scope="col" key={name}>{name}</th>)}</tr></thead>
        <tbody>{found.runs.map((row) => <tr key={row.run} data-compared={row.run}><th scope="row">{row.run}</th>{COLUMNS.map(([name, of, show]) => <td key={name}>{show ? show(row) : plain(of(row))}</td>)}</tr>)}</tbody>
      </table></div>
      <ul class="plain" data-words>{found.words.map((text) => <li key={text}>{text}</li>)}</ul>
      {found.target_loss !== null && <p class="muted">The target is a loss of {plain(found.target_loss)}: the lowest that all of them came to.</p>}
    </Panel>
  );
}

/** All runs on one axis: between its own points a run has no value. */
function Curves({ rows, by }: { rows: Row[]; by: "time" | "samples" }) {
  const of = (row: Row, p: Row["curve"][0]) => (by === "time" ? p[1] - row.curve[0][1] : p[0] * (row.batch ?? 1));
  const xs = [...new Set(rows.flatMap((row) => row.curve.map((p) => of(row, p))))].sort((a, b) => a - b);
  const lines: Line[] = rows.map((row, i) => {
    const values = new Map(row.curve.map((p) => [of(row, p), typeof p[2] === "number" ? p[2] : null]));
    return { label: row.run, values: xs.map((x) => values.get(x) ?? null), colour: phaseColour(LINES[i % LINES.length]), strong: true, dash: i ? [8, 2 + 2 * i] : undefined };
  });
  return <Chart key={theme.value} label={`Loss of ${rows.length} runs by ${by}`} x={xs} lines={lines} height={220} overTime={by === "time"} isShared={false} along={by === "time" ? "time" : "samples"} />;
}

function Differences({ found }: { found: Compared }) {
  if (!found.differs.length) return <p class="muted">They have the same plan.</p>;
  const text = (value: Json) => (value === null || value === undefined ? "–" : Array.isArray(value) ? value.join(", ") : String(value));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of settings"><table>
      <thead><tr><th scope="col">setting</th>{found.runs.map((row) => <th scope="col" key={row.run}>{row.run}</th>)}</tr></thead>
      <tbody>{found.differs.slice(0, 40).map(([name, values]) => <tr key={name}><th scope="row">{name}</th>{values.map((value, i) => <td key={i}>{text(value)}</td>)}</tr>)}</tbody>
    </table></div>
  );
}
