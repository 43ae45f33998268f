// Lab page: fault injection. Expected effects are listed first and checked against the run's log.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ActionProgress, actionsFrom, newKey, requestAction, type Action } from "../actions";
import { fetchJson, postJson, selectRun } from "../connection";
import {
  checkExpectations,
  faultName,
  FAULTS,
  openExpectations,
  type CheckState,
  type Expectation,
  type Fault,
} from "../expectations";
import { Panel } from "../panel";
import { canAct, canInjectFaults, events, notify, steps, view } from "../state";
import { endOf } from "../steps";

interface Scenario {
  name: string;
  what: string;
  times: number;
  how: string;
  expects: string[];
}

interface Outcome {
  holds: boolean;
  expectations: { what: string; limit: string; measured: string; ok: boolean }[];
  problem: string | null;
}

interface Experiment {
  id: string;
  name: string;
  run: string;
  times: number;
  lines: string[];
  ticks: (Expectation & { limit: string })[];
  is_over: boolean;
  outcome: Outcome | null;
}

interface LabResponse {
  scenarios: Scenario[];
  experiments: Experiment[];
}

const MARKS: Record<CheckState, string> = { open: "○", so_far: "◐", held: "✔", broken: "✕" };
const STATE_NAMES: Record<CheckState, string> = {
  open: "not measured yet",
  so_far: "holds so far",
  held: "holds",
  broken: "does not hold",
};
const MAX_TIMES = 2; // faults of a scenario that is started here
const selectedWorker = signal("");
const injected = signal<Record<string, string>>({}); // id of the last action, by experiment
const lab = signal<LabResponse>({ scenarios: [], experiments: [] });

export function Lab() {
  const now = view.value!;
  const workers = now.workers
    .filter((worker) => worker.state !== "lost" && worker.state !== "finished")
    .map((worker) => worker.worker);
  const lastWorker = workers[workers.length - 1] ?? "";
  const worker = workers.includes(selectedWorker.value) ? selectedWorker.value : lastWorker;
  const hasReplicas = (now.coordinator?.nodes.length ?? 0) > 2;
  const faults = FAULTS.filter((fault) => fault.target === "worker" || hasReplicas);
  const tick = Math.floor(now.now_s);
  useEffect(() => {
    fetchJson<LabResponse>("/api/v1/scenarios").then(
      (response) => {
        lab.value = response;
      },
      () => undefined, // the header shows that the server does not respond
    );
  }, [tick]);
  return (
    <div class="lab">
      <Panel
        title="Inject a fault into this run"
        shows="faults for the run that is shown, with their expected effects"
        good="every expectation holds"
        otherwise="open the Coordinator page, and the timeline around the fault"
        side={<WorkerSelect workers={workers} worker={worker} />}
      >
        {!canInjectFaults.value && <p class="muted">{whyDisabled()}</p>}
        <div class="cards">
          {faults.map((fault) => (
            <FaultCard
              key={faultName(fault)}
              fault={fault}
              target={fault.target === "leader" ? `node-${now.coordinator!.leader}` : worker}
            />
          ))}
        </div>
      </Panel>
      <Panel
        title="Scenarios on a separate run"
        shows="scenarios of `paceline lab`, each with its own temporary workers"
        good="every promise holds"
        otherwise="run it on the command line: paceline lab run NAME"
        empty={lab.value.scenarios.length ? "" : "Loading …"}
      >
        <div class="cards">
          {lab.value.scenarios.map((scenario) => (
            <ScenarioCard key={scenario.name} scenario={scenario} />
          ))}
        </div>
      </Panel>
    </div>
  );
}

function whyDisabled(): string {
  if (canAct.value)
    return "Fault injection is disabled for this run; start the dashboard with --allow-faults.";
  return "This dashboard is read-only; faults cannot be injected here.";
}

function WorkerSelect({ workers, worker }: { workers: string[]; worker: string }) {
  return (
    <label>
      worker{" "}
      <select
        id="fault-worker"
        value={worker}
        onChange={(event) => {
          selectedWorker.value = event.currentTarget.value;
        }}
      >
        {workers.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

/** Mean step time without the wait for others. */
function ownStepTime(worker: string, from_s: number, to_s: number): number | null {
  const rows = steps.between(worker, from_s, to_s);
  if (!rows.length) return null;
  return rows.reduce((sum, row) => sum + endOf(row) - row[1] - row[6], 0) / rows.length;
}

/** The action of this page, or after a reload and in a recording the newest of its kind. */
function lastAction(fault: Fault): Action | undefined {
  const actions = actionsFrom(events.value);
  const own = injected.value[faultName(fault)];
  if (own) return actions.find((action) => action.id === own);
  return actions.find((action) => {
    const isSameTarget = action.target.startsWith("node") === (fault.target === "leader");
    const isApplied = action.steps.some((step) => step.phase === "applied");
    return action.action === fault.action && isSameTarget && isApplied;
  });
}

function FaultCard({ fault, target }: { fault: Fault; target: string }) {
  const now = view.value!;
  const action = lastAction(fault);
  const expectations = action
    ? checkExpectations(fault, action.id, events.value, now, ownStepTime)
    : openExpectations(fault);
  const inject = async () => {
    const id = await requestAction(fault.action, { worker: target, ...fault.options });
    if (id) injected.value = { ...injected.value, [faultName(fault)]: id };
  };
  return (
    <article class="card" data-card={faultName(fault)} aria-label={fault.title}>
      <h3>{fault.title}</h3>
      <p>
        {fault.injects}.{" "}
        <span class="muted">
          Affects {fault.affects}. Duration: {fault.lasts}.
        </span>
      </p>
      <ExpectationList expectations={expectations} />
      {action && <ActionProgress action={action} />}
      {canInjectFaults.value && (
        <button class="danger" disabled={!target || now.state !== "training"} onClick={() => void inject()}>
          {target ? `Run on ${target}` : "No worker to run on"}
        </button>
      )}
    </article>
  );
}

function ExpectationList({ expectations }: { expectations: Expectation[] }) {
  return (
    <ul class="expectations">
      {expectations.map(({ what, state, measured }) => (
        <li key={what} class={state} data-state={state}>
          <span aria-hidden="true">{MARKS[state]}</span> {what}
          <span class="sr-only"> ({STATE_NAMES[state]})</span> <span class="muted">{measured}</span>
        </li>
      ))}
    </ul>
  );
}

function withLimit(measured: string, limit: string): string {
  return limit === measured ? measured : `${measured} (${limit})`;
}

function scenarioExpectations(scenario: Scenario, experiment: Experiment | undefined): Expectation[] {
  const final = experiment?.outcome?.expectations ?? [];
  if (final.length) {
    return final.map(({ what, ok, measured, limit }) => {
      return { what, state: ok ? "held" : "broken", measured: withLimit(measured, limit) };
    });
  }
  if (experiment) {
    return experiment.ticks.map((tick) => {
      return { ...tick, measured: tick.measured ? withLimit(tick.measured, tick.limit) : "" };
    });
  }
  return scenario.expects.map((what) => ({ what, state: "open", measured: "" }));
}

function ScenarioCard({ scenario }: { scenario: Scenario }) {
  const { experiments } = lab.value;
  const experiment = experiments.findLast((other) => other.name === scenario.name);
  const isBusy = experiments.some((other) => !other.is_over);
  const start = async () => {
    const request = {
      key: newKey(),
      action: "lab",
      scenario: scenario.name,
      times: Math.min(MAX_TIMES, scenario.times),
    };
    const { status, body } = await postJson("/api/v1/actions", request);
    notify(status < 400 ? `${scenario.name} started` : String(body.error));
  };
  return (
    <article class="card" data-scenario={scenario.name} aria-label={scenario.name}>
      <h3>{scenario.name}</h3>
      <p>
        {scenario.what}. <span class="muted">{scenario.how}</span>
      </p>
      <ExpectationList expectations={scenarioExpectations(scenario, experiment)} />
      {experiment && <ScenarioStatus experiment={experiment} />}
      <div class="row">
        {canAct.value && (
          <button disabled={isBusy} onClick={() => void start()}>
            Run
          </button>
        )}
        {experiment && <button onClick={() => selectRun(experiment.run)}>Open its run</button>}
      </div>
    </article>
  );
}

function ScenarioStatus({ experiment: { outcome, lines } }: { experiment: Experiment }) {
  if (!outcome) {
    return (
      <p class="muted" role="status">
        {lines[lines.length - 1] ?? "Starting …"}
      </p>
    );
  }
  const verdict = outcome.holds ? "✔ all promises hold" : "✕ a promise does not hold";
  return (
    <p class={outcome.holds ? "good" : "bad"} role="status">
      {outcome.problem ?? verdict}
    </p>
  );
}
