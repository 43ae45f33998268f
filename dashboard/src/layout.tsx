// Frame of every page: header with run, state and alerts, the navigation, and the event bar.

import { useEffect, useState } from "preact/hooks";
import { ConfirmDialog } from "./actions";
import { AlertDrawer, firingAlerts } from "./alerts";
import { fetchJson, selectRun } from "./connection";
import { EventBar } from "./event_bar";
import { plural, seconds, stateLabel } from "./format";
import { Compare } from "./pages/compare";
import { Coordinator } from "./pages/coordinator";
import { Lab } from "./pages/lab";
import { Metrics } from "./pages/metrics";
import { Overview } from "./pages/overview";
import { Timeline } from "./pages/timeline";
import { Workers } from "./pages/workers";
import { State } from "./panel";
import {
  alertsOpen,
  currentUrl,
  helpOpen,
  isReplay,
  isStale,
  link,
  notify,
  openPage,
  page,
  PAGES,
  problem,
  run,
  server,
  theme,
  toast,
  toggleTheme,
  view,
  type Link,
  type PageName,
} from "./state";
import { isOver, type RunSummary, type View } from "./types";

const COMPONENTS = {
  overview: Overview,
  workers: Workers,
  timeline: Timeline,
  coordinator: Coordinator,
  metrics: Metrics,
  lab: Lab,
  compare: Compare,
};

const SHORTCUTS: [string, string][] = [
  ["1 … 7", "open a page"],
  ["space", "play or pause a recording"],
  ["← →", "previous event, next event"],
  ["[ ]", "playback speed: slower, faster"],
  ["L", "return to live"],
  ["S", "timeline: sort by lag"],
  ["+ −", "timeline: zoom in, zoom out"],
  ["P", "pause or resume the selected worker"],
  ["K", "kill the selected worker, with confirmation"],
  ["/", "workers: filter"],
  ["A", "alerts"],
  ["T", "dark or light theme"],
  ["?", "help"],
  ["Esc", "close"],
];

const DESCRIPTIONS: Record<PageName, string> = {
  overview:
    "State of the run: progress, throughput, loss and accuracy, the health score with its calculation, " +
    "one cell per worker, the loss curve, and the last ten seconds.",
  workers:
    "Each worker compared with the median worker. Select one to see its phases, events and log, and to act on it.",
  timeline:
    "One lane per worker; boxes are phases of a step. Scroll to zoom, drag to move, click for details.",
  coordinator: "The coordinator's Raft nodes, and the generations of the run with each recovery by stage.",
  metrics: "Every collected series. Pin up to five.",
  lab: "Fault injection. Each experiment lists the expected effects first and checks them against the run's log.",
  compare: "Two to six runs side by side: throughput, speedup, accuracy, loss, phases and settings.",
};

function titleCase(name: string): string {
  return name[0].toUpperCase() + name.slice(1);
}

export function Layout() {
  const Page = COMPONENTS[page.value];
  const now = view.value;
  return (
    <>
      <a class="skip" href="#page">
        Skip to the page
      </a>
      <Header />
      <nav aria-label="Pages">
        {PAGES.map((name) => (
          <PageLink key={name} name={name} />
        ))}
      </nav>
      <main id="page" tabIndex={-1} data-page={page.value} class={isStale.value ? "stale" : ""}>
        <h1 class="sr-only">
          {titleCase(page.value)} of {now?.run.name ?? "a run"}
        </h1>
        {helpOpen.value && <Help />}
        {now ? (
          <Page />
        ) : (
          <p class="empty" role="status">
            {problem.value ?? "Loading the run …"}
          </p>
        )}
      </main>
      <EventBar />
      <AlertDrawer />
      <ConfirmDialog />
      <div class="toast" role="status" aria-live="polite">
        {toast.value}
      </div>
    </>
  );
}

function PageLink({ name }: { name: PageName }) {
  const onClick = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey) return; // opens a new tab
    event.preventDefault();
    openPage(name);
  };
  return (
    <a
      href={currentUrl({ page: name === "overview" ? null : name })}
      aria-current={page.value === name ? "page" : undefined}
      onClick={onClick}
    >
      {titleCase(name)}
    </a>
  );
}

function Header() {
  const now = view.value;
  const alerts = firingAlerts().length;
  return (
    <header class="top">
      <strong class="brand">paceline</strong>
      <RunSelect />
      {now && <RunStatus now={now} />}
      <span class="grow" />
      {server.value?.is_readonly && <span class="badge">read-only</span>}
      {isReplay.value && <span class="badge">recording</span>}
      <button
        id="alerts"
        class={alerts ? "warned" : ""}
        aria-haspopup="dialog"
        aria-expanded={alertsOpen.value}
        onClick={() => {
          alertsOpen.value = !alertsOpen.value;
        }}
      >
        <span aria-hidden="true">⚠</span> {plural(alerts, "alert")}
      </button>
      <button onClick={copyLink}>Copy link</button>
      <button onClick={toggleTheme} aria-label={`Theme: ${theme.value}; switch`}>
        {theme.value === "dark" ? "◑" : "◐"}
      </button>
      <button
        aria-label="Help"
        aria-expanded={helpOpen.value}
        onClick={() => {
          helpOpen.value = !helpOpen.value;
        }}
      >
        ?
      </button>
    </header>
  );
}

function RunStatus({ now }: { now: View }) {
  const { mode, staleness_bound: bound, task, launcher, workers } = now.run;
  const total = now.counts.desired ?? workers;
  const alive = now.counts.alive ?? now.counts.training ?? 0;
  return (
    <>
      <span>
        {mode}
        {bound !== null ? ` (staleness bound ${bound})` : ""} · {task} · {launcher}
      </span>
      <span>{isOver(now.state) ? plural(total, "worker") : `${alive}/${total} workers`}</span>
      <State {...stateLabel(now.state)} />
      <Freshness link={link.value} />
      <span title={now.health.arithmetic}>
        Health <strong>{now.health.score ?? "unknown"}</strong>
      </span>
    </>
  );
}

/** The clipboard is available only over https or from this machine. */
function copyLink(): void {
  const url = location.origin + currentUrl();
  const onFailure = () => notify(`the browser does not allow copying: ${url}`);
  if (!navigator.clipboard) {
    onFailure();
    return;
  }
  void navigator.clipboard
    .writeText(url)
    .then(() => notify("link copied; it does not contain the token"), onFailure);
}

function Freshness({ link: { state, age_s, attempt, retry_s } }: { link: Link }) {
  const text = {
    live: isReplay.value ? "▶ playing" : `● live, ${age_s.toFixed(1)} s ago`,
    stale: `◌ stale, ${seconds(age_s)}`,
    lost: `✕ disconnected, retrying in ${retry_s} s (attempt ${attempt})`,
    over: "■ ended",
    paused: "❚❚ paused",
    connecting: "◌ connecting",
  }[state];
  return (
    <span class={`fresh ${state}`} data-link={state}>
      {text}
    </span>
  );
}

function RunSelect() {
  const [names, setNames] = useState<string[]>([]);
  useEffect(() => {
    fetchJson<{ runs: RunSummary[] }>("/api/v1/runs").then(
      (response) => setNames(response.runs.map((row) => row.run)),
      () => setNames([]),
    );
  }, [server.value?.run, run.value]);
  const current = run.value ?? server.value?.run ?? "";
  const options = names.includes(current) || !current ? names : [current, ...names];
  return (
    <label class="run">
      <span class="sr-only">Run</span>
      <select value={current} onChange={(event) => selectRun(event.currentTarget.value)}>
        {options.map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

function Help() {
  return (
    <section class="panel help" aria-label="Help">
      <p>{DESCRIPTIONS[page.value]}</p>
      <dl class="facts">
        {SHORTCUTS.map(([key, description]) => (
          <>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{description}</dd>
          </>
        ))}
      </dl>
    </section>
  );
}
