// What is around every page? Which run, how fresh, how healthy, what is wrong; the pages; what happened.

import { useEffect, useState } from "preact/hooks";
import { Confirm } from "./acting";
import { ask, choose } from "./connection";
import { Drawer, firing } from "./drawer";
import { Coordinator } from "./pages/coordinator";
import { Compare } from "./pages/compare";
import { Lab } from "./pages/lab";
import { Metrics } from "./pages/metrics";
import { Overview } from "./pages/overview";
import { Timeline } from "./pages/timeline";
import { Workers } from "./pages/workers";
import { State } from "./panel";
import { Ribbon } from "./ribbon";
import { address, chosenTheme, drawer, go, help, isReplay, isStale, link, page, PAGES, problem, run, server, tell, theme, toast, view } from "./state";
import { seconds, stateOf } from "./words";

const BODIES = { overview: Overview, workers: Workers, timeline: Timeline, coordinator: Coordinator, metrics: Metrics, lab: Lab, compare: Compare };
const KEYS: [string, string][] = [
  ["1 … 7", "the pages"], ["space", "play or pause a recording"], ["← →", "the event before, the next one"], ["[ ]", "slower, faster"],
  ["L", "back to now"], ["S", "timeline: sort by lag"], ["+ −", "timeline: closer, wider"], ["P", "pause the chosen worker, or let it go on"], ["K", "kill the chosen worker; asks first"], ["/", "workers: filter"], ["A", "alerts"], ["T", "dark or light"], ["?", "this"], ["Esc", "close"],
];
const ABOUT: Record<string, string> = {
  overview: "Is it fine, and if not, where? Six numbers, the health score with its arithmetic, one cell for each worker, the loss, and the last ten seconds.",
  workers: "Who is slow, and why? Each worker against the median one. Choose one to see its phases, its log, and to act on it.",
  timeline: "What did each worker do, when? One lane each; boxes are phases of a step. Wheel: zoom, drag: move, click: what it is.",
  coordinator: "Who decides, and what was decided? The real nodes, and the generations of the run with how long each recovery took, by stage.",
  metrics: "Everything that is collected. Pin up to five.",
  lab: "Break it and watch. Each experiment says first what should happen, and ticks it off as it does.",
  compare: "Which run was better, in what? Choose two to six.",
};

export function Frame() {
  const Body = BODIES[page.value];
  const now = view.value;
  return (
    <>
      <a class="skip" href="#page">Skip to the page</a>
      <Header />
      <nav aria-label="Pages">
        {PAGES.map((name) => <a key={name} href={address({ page: name === "overview" ? null : name })} aria-current={page.value === name ? "page" : undefined} onClick={(e) => { if (e.metaKey || e.ctrlKey) return; e.preventDefault(); go(name); }}>{name[0].toUpperCase() + name.slice(1)}</a>)}
      </nav>
      <main id="page" tabIndex={-1} data-page={page.value} class={isStale.value ? "stale" : ""}>
        <h1 class="sr-only">{page.value[0].toUpperCase() + page.value.slice(1)} of {now?.run.name ?? "a run"}</h1>
        {help.value && <Help />}
        {now ? <Body /> : <p class="empty" role="status">{problem.value ?? "Looking for the run …"}</p>}
      </main>
      <Ribbon />
      <Drawer />
      <Confirm />
      <div class="toast" role="status" aria-live="polite">{toast.value}</div>
    </>
  );
}

function Header() {
  const now = view.value;
  const alerts = firing().length;
  return (
    <header class="top">
      <strong class="brand">paceline</strong>
      <RunChoice />
      {now && <>
        <span class="what">{now.run.mode}{now.run.staleness_bound !== null ? ` (bound ${now.run.staleness_bound})` : ""} · {now.run.task} · {now.run.launcher}</span>
        <span class="crew">{["finished", "stopped", "failed"].includes(now.state) ? "" : `${now.counts.alive ?? now.counts.training ?? 0}/`}{now.counts.desired ?? now.run.workers} workers</span>
        <State {...stateOf(now.state)} />
        <Freshness />
        <span class="health" title={now.health.arithmetic}>Health <strong>{now.health.score ?? "unknown"}</strong></span>
      </>}
      <span class="grow" />
      {server.value?.is_readonly && <span class="badge">read-only</span>}
      {isReplay.value && <span class="badge">recording</span>}
      <button class={alerts ? "warned" : ""} aria-haspopup="dialog" aria-expanded={drawer.value} onClick={() => { drawer.value = !drawer.value; }} id="alerts"><span aria-hidden="true">⚠</span> {alerts} <span class="wide">{alerts === 1 ? "alert" : "alerts"}</span></button>
      <button onClick={copy}>Copy link</button>
      <button onClick={flip} aria-label={`Theme: ${theme.value}; change it`}>{theme.value === "dark" ? "◑" : "◐"}</button>
      <button aria-label="Help" aria-expanded={help.value} onClick={() => { help.value = !help.value; }}>?</button>
    </header>
  );
}

/** A page that does not come over https or from this machine may not copy. */
function copy(): void {
  const text = location.origin + address();
  const failed = () => tell(`this browser does not let it be copied: ${text}`);
  if (!navigator.clipboard) return failed();
  void navigator.clipboard.writeText(text).then(() => tell("the link was copied; it needs the token, too"), failed);
}

export function flip(): void {
  chosenTheme.value = theme.value === "dark" ? "light" : "dark";
}

function Freshness() {
  const { state, age_s, attempt, retry_s } = link.value;
  const text = {
    live: isReplay.value ? "▶ playing" : `● Live ${age_s.toFixed(1)} s ago`, stale: `◌ stale ${seconds(age_s)}`,
    lost: `✕ disconnected, retrying in ${retry_s} s (attempt ${attempt})`, over: "■ over", paused: "❚❚ paused", connecting: "◌ connecting",
  }[state];
  return <span class={`fresh ${state}`} data-link={state}>{text}</span>;
}

function RunChoice() {
  const [all, setAll] = useState<string[]>([]);
  useEffect(() => { void ask<{ runs: { run: string }[] }>("/api/v1/runs").then((found) => setAll(found.runs.map((row) => row.run)), () => setAll([])); }, [server.value?.run, run.value]);
  const chosen = run.value ?? server.value?.run ?? "";
  const names = all.includes(chosen) || !chosen ? all : [chosen, ...all];
  return <label class="run"><span class="sr-only">Run</span><select value={chosen} onChange={(e) => choose(e.currentTarget.value)}>{names.map((name) => <option key={name} value={name}>{name}</option>)}</select></label>;
}

function Help() {
  return (
    <section class="panel help" aria-label="Help">
      <p>{ABOUT[page.value]}</p>
      <dl class="facts">{KEYS.map(([name, what]) => <><dt><kbd>{name}</kbd></dt><dd>{what}</dd></>)}</dl>
    </section>
  );
}
