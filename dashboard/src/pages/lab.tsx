// What holds when something breaks? Say first what should happen, break it, and see it ticked off.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { act, key, LifeCycle, progressOf } from "../acting";
import { ask, choose, post } from "../connection";
import { Panel } from "../panel";
import { CARDS, nameOf, ticks, type Card, type Tick } from "../predictions";
import { events, mayAct, mayStrike, steps, tell, view } from "../state";
import { endOf } from "../steps";

interface Scenario { name: string; what: string; times: number; how: string; expects: string[] }
interface Expectation { what: string; limit: string; measured: string; ok: boolean }
interface Experiment { id: string; name: string; run: string; times: number; lines: string[]; ticks: (Tick & { limit: string })[]; is_over: boolean; outcome: { holds: boolean; expectations: Expectation[]; problem: string | null } | null }
const MARKS = { open: "○", so_far: "◐", held: "✔", broken: "✕" };
const target = signal("");
const begun = signal<Record<string, string>>({}); // which wish each card made last
const found = signal<{ scenarios: Scenario[]; experiments: Experiment[] }>({ scenarios: [], experiments: [] });

export function Lab() {
  const now = view.value!;
  const crew = now.workers.filter((w) => !["lost", "finished"].includes(w.state)).map((w) => w.worker);
  const victim = crew.includes(target.value) ? target.value : crew[crew.length - 1] ?? "";
  const nodes = now.coordinator?.nodes ?? [];
  const tick = Math.floor(now.now_s);
  useEffect(() => { void ask<typeof found.value>("/api/v1/scenarios").then((all) => { found.value = all; }, () => undefined); }, [tick]);
  return (
    <div class="lab">
      <Panel title="Break this run" what="faults that strike the run you look at" good="every prediction is ticked off" todo="open the coordinator's page, and the timeline around the moment"
        side={<label>worker <select id="victim" value={victim} onChange={(e) => { target.value = e.currentTarget.value; }}>{crew.map((name) => <option key={name}>{name}</option>)}</select></label>}>
        {!mayStrike.value && <p class="muted">{mayAct.value ? "Faults are off for this run; start the dashboard with --allow-faults." : "This dashboard only shows: nothing can be broken here."}</p>}
        <div class="cards">{CARDS.filter((card) => !card.of || nodes.length > 2).map((card) => <LiveCard key={nameOf(card)} card={card} victim={card.of ? `node-${now.coordinator!.leader}` : victim} />)}</div>
      </Panel>
      <Panel title="On a run of its own" what="experiments of `paceline lab`, each with four workers or so that are thrown away" good="every promise holds" todo="the same by hand: paceline lab run NAME">
        <div class="cards">{found.value.scenarios.map((s) => <Own key={s.name} scenario={s} />)}</div>
      </Panel>
    </div>
  );
}

function ownTime(worker: string, from_s: number, to_s: number): number | null {
  const rows = steps.between(worker, from_s, to_s);
  return rows.length ? rows.reduce((sum, row) => sum + endOf(row) - row[1] - row[6], 0) / rows.length : null;
}

function LiveCard({ card, victim }: { card: Card; victim: string }) {
  const now = view.value!;
  // After a reload, or in a recording, the newest of its kind.
  const last = begun.value[nameOf(card)] ?? progressOf(events.value).find((one) => one.action === card.action && one.target.startsWith("node") === (card.of === "node") && one.steps.some((s) => s.phase === "applied"))?.id;
  const progress = progressOf(events.value).find((one) => one.id === last);
  const list: Tick[] = last ? ticks(card, last, events.value, now, ownTime) : card.predicts.map((what) => ({ what, state: "open", measured: "" }));
  const strike = async () => {
    const id = await act(card.action, { worker: victim, ...card.more });
    if (id) begun.value = { ...begun.value, [nameOf(card)]: id };
  };
  return (
    <article class="card" data-card={nameOf(card)} aria-label={card.title}>
      <h3>{card.title}</h3>
      <p>{card.does}. <span class="muted">Strikes {card.radius}; lasts: {card.lasts}.</span></p>
      <Ticks list={list} />
      {progress && <LifeCycle one={progress} />}
      {mayStrike.value && <button class="danger" disabled={!victim || now.state !== "training"} onClick={() => void strike()}>Run on {victim || "nobody"}</button>}
    </article>
  );
}

function Ticks({ list }: { list: Tick[] }) {
  return <ul class="ticks">{list.map((tick) => <li key={tick.what} class={tick.state} data-state={tick.state}><span aria-hidden="true">{MARKS[tick.state]}</span> {tick.what}<span class="sr-only"> ({tick.state.replace("_", " ")})</span> <span class="muted">{tick.measured}</span></li>)}</ul>;
}

function Own({ scenario }: { scenario: Scenario }) {
  const now = [...found.value.experiments].reverse().find((e) => e.name === scenario.name);
  const busy = found.value.experiments.some((e) => !e.is_over);
  const start = async () => {
    const { status, body } = await post("/api/v1/actions", { key: key(), action: "lab", scenario: scenario.name, times: Math.min(2, scenario.times) });
    tell(status < 400 ? `${scenario.name} has begun` : String(body.error));
  };
  const outcome = now?.outcome;
  const list: Tick[] = outcome?.expectations.length
    ? outcome.expectations.map((e) => ({ what: e.what, state: e.ok ? "held" : "broken", measured: `${e.measured} (${e.limit})` }))
    : now ? now.ticks.map((t) => ({ ...t, measured: t.measured ? `${t.measured} (${t.limit})` : "" }))
    : scenario.expects.map((what) => ({ what, state: "open", measured: "" }));
  return (
    <article class="card" data-scenario={scenario.name} aria-label={scenario.name}>
      <h3>{scenario.name}</h3>
      <p>{scenario.what}. <span class="muted">{scenario.how}</span></p>
      <Ticks list={list} />
      {now && <p class={outcome ? (outcome.holds ? "good" : "bad") : "muted"} role="status">{outcome ? (outcome.problem ?? (outcome.holds ? "✔ all holds" : "✕ something does not hold")) : now.lines[now.lines.length - 1] ?? "begins …"}</p>}
      <div class="row">
        {mayAct.value && <button disabled={busy} onClick={() => void start()}>Run</button>}
        {now && <button onClick={() => choose(now.run)}>Watch it</button>}
      </div>
    </article>
  );
}
