// Fault experiments on a live run: expected effects, checked against the run's own log. Pure.

import { plural, seconds } from "./format";
import type { RunEvent, View } from "./types";

export type CheckState = "open" | "so_far" | "held" | "broken";

export interface Result {
  state: CheckState;
  measured: string;
}

export interface Expectation extends Result {
  what: string;
}

export interface Fault {
  action: string;
  target: "worker" | "leader";
  title: string;
  injects: string;
  affects: string;
  lasts: string;
  options: Record<string, number>;
  expects: Check[];
}

interface Check {
  what: string;
  run: (context: Context) => Result;
}

/** Mean step time of a worker in this window without waiting for others; null: it made no step. */
export type OwnStepTime = (worker: string, from_s: number, to_s: number) => number | null;

interface Context {
  fault: Fault;
  events: RunEvent[]; // oldest first
  view: View;
  ownStepTime: OwnStepTime;
  target: string;
  at_s: number; // when the fault was applied
}

const OPEN: Result = { state: "open", measured: "" };
const TIMEOUT_S = 30; // an effect that is missing for so long after its limit has failed
const MIN_SLOWDOWN = 1.3;
const MIN_SLOW_WINDOW_S = 2;

const DETECTED: Check = {
  what: "the loss is detected within 2 s",
  run: (context) => within(context, newGeneration(context)?.recovery?.detect_s ?? null, 2),
};
const REPLACED: Check = {
  what: "the worker is replaced within 30 s",
  run: (context) => {
    const { events, target, at_s } = context;
    const start = events.find((event) => {
      return event.t_s > at_s && event.kind === "worker_started" && event.who === target;
    });
    return within(context, start ? start.t_s - at_s : null, 30);
  },
};
const NEW_LEADER: Check = {
  what: "another node becomes leader within 5 s",
  run: (context) => {
    const terms = context.view.coordinator?.terms ?? [];
    const elected = terms.find(([t_s, , leader]) => {
      return t_s > context.at_s && leader !== null && `node-${leader}` !== context.target;
    });
    return within(context, elected ? elected[0] - context.at_s : null, 5);
  },
};
const RELEASED: Check = {
  what: "the fault ends and its target is released",
  run: (context) => {
    const released_s = releaseTime(context);
    return within(context, released_s === null ? null : released_s - context.at_s, Infinity);
  },
};
const COMMITTED_STEPS_KEPT: Check = { what: "no committed step is lost", run: checkCommittedSteps };
const SLOWED: Check = {
  what: `its own step time is at least ${MIN_SLOWDOWN} times that of the others`,
  run: checkSlowdown,
};

function continuesWithin(what: string, limit_s: number): Check {
  return {
    what: `${what} within ${limit_s} s`,
    run: (context) => {
      const generation = newGeneration(context);
      return within(context, generation ? generation.at_s - context.at_s : null, limit_s);
    },
  };
}

export const FAULTS: Fault[] = [
  {
    action: "kill",
    target: "worker",
    title: "Kill a worker",
    injects: "SIGKILL to its process",
    affects: "one worker, which is replaced",
    lasts: "instantaneous",
    options: {},
    expects: [
      DETECTED,
      continuesWithin("the other workers continue in a new generation", 5),
      COMMITTED_STEPS_KEPT,
      REPLACED,
    ],
  },
  {
    action: "pause",
    target: "worker",
    title: "Freeze a worker",
    injects: "SIGSTOP to its process, SIGCONT after 15 s",
    affects: "one worker, which is excluded until it resumes",
    lasts: "15 s",
    options: { for_s: 15 },
    expects: [continuesWithin("the other workers continue without it", 10), COMMITTED_STEPS_KEPT, RELEASED],
  },
  {
    action: "slow",
    target: "worker",
    title: "Slow a worker ×4",
    injects: "SIGSTOP to its process for three quarters of the time",
    affects: "every worker that waits for it; in synchronous strategies all of them",
    lasts: "20 s",
    options: { factor: 4, for_s: 20 },
    expects: [SLOWED, COMMITTED_STEPS_KEPT, RELEASED],
  },
  {
    action: "partition",
    target: "worker",
    title: "Isolate a worker",
    injects: "Network partition: the coordinator's nodes ignore its messages",
    affects: "one worker, which is excluded until the partition heals",
    lasts: "15 s",
    options: { for_s: 15 },
    expects: [continuesWithin("the other workers continue without it", 10), COMMITTED_STEPS_KEPT, RELEASED],
  },
  {
    action: "partition",
    target: "leader",
    title: "Isolate the leader",
    injects: "Network partition between the coordinator's leader and all others",
    affects: "one node; the others elect a new leader",
    lasts: "15 s",
    options: { for_s: 15 },
    expects: [NEW_LEADER, COMMITTED_STEPS_KEPT, RELEASED],
  },
];

/** Two experiments have the same action, so their names differ by target. */
export function faultName(fault: Fault): string {
  return fault.target === "leader" ? `${fault.action}-node` : fault.action;
}

export function openExpectations(fault: Fault): Expectation[] {
  return fault.expects.map(({ what }) => ({ what, ...OPEN }));
}

/** Check the expectations of the fault that the action `id` injected. */
export function checkExpectations(
  fault: Fault,
  id: string,
  events: RunEvent[],
  view: View,
  ownStepTime: OwnStepTime,
): Expectation[] {
  const applied = events.find((event) => {
    const { fields } = event;
    const isThis = event.kind === "action" && fields.id === id && fields.action === fault.action;
    return isThis && fields.phase === "applied";
  });
  if (!applied) return openExpectations(fault);
  const target = String(applied.fields.target);
  const context = { fault, events, view, ownStepTime, target, at_s: applied.t_s };
  return fault.expects.map((check) => ({ what: check.what, ...check.run(context) }));
}

function within({ view, at_s }: Context, took_s: number | null, limit_s: number): Result {
  if (took_s !== null) return { state: took_s <= limit_s ? "held" : "broken", measured: seconds(took_s) };
  const isOverdue = view.now_s - at_s > limit_s + TIMEOUT_S;
  return { state: isOverdue ? "broken" : "open", measured: "" };
}

function newGeneration({ view, at_s }: Context) {
  return view.generations.find((generation) => generation.at_s > at_s);
}

function releaseTime({ events, target, at_s }: Context): number | null {
  const release = events.find((event) => {
    const { action, phase, target: released } = event.fields;
    const isRelease = event.kind === "action" && (action === "resume" || action === "heal");
    return event.t_s > at_s && isRelease && released === target && phase === "applied";
  });
  return release?.t_s ?? null;
}

/** A worker must find in the next generation every step that it had committed in the one before. */
function checkCommittedSteps(context: Context): Result {
  const { events, at_s, fault } = context;
  const endsGeneration = fault.action !== "slow" && fault.target !== "leader";
  const isComplete = !endsGeneration || !!newGeneration(context);
  const committed = new Map<string, number>(); // by worker, at the end of its generation
  let checked = 0;
  for (const event of events) {
    if (event.t_s < at_s) continue;
    const step = Number(event.fields.committed);
    if (event.kind === "generation_lost") committed.set(event.who, step);
    if (event.kind === "worker_started") committed.delete(event.who);
    if (event.kind !== "generation_entered" || !committed.has(event.who)) continue;
    checked++;
    if (step < committed.get(event.who)!) {
      return { state: "broken", measured: `${event.who} resumed from an earlier step` };
    }
    committed.delete(event.who);
  }
  if (!isComplete)
    return { state: "open", measured: checked ? `${plural(checked, "resumption")} checked` : "" };
  return {
    state: "held",
    measured: checked ? `${plural(checked, "resumption")} checked` : "no worker had to resume",
  };
}

function checkSlowdown(context: Context): Result {
  const { view, target, at_s, ownStepTime } = context;
  const released_s = releaseTime(context);
  const to_s = released_s ?? view.now_s;
  const others = view.workers
    .filter((worker) => worker.worker !== target)
    .map((worker) => ownStepTime(worker.worker, at_s, to_s))
    .filter((time): time is number => time !== null)
    .sort((a, b) => a - b);
  const own = ownStepTime(target, at_s, to_s);
  if (own === null || !others.length || to_s - at_s < MIN_SLOW_WINDOW_S) return OPEN;
  const factor = own / others[Math.floor(others.length / 2)];
  const measured = `${factor.toFixed(1)} times`;
  if (factor >= MIN_SLOWDOWN) return { state: "held", measured };
  return { state: released_s === null ? "open" : "broken", measured };
}
