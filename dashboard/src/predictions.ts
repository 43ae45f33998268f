// What should happen when somebody breaks something, and has it? Judged by the run's own log alone. Pure.

import type { Happening, View } from "./types";
import { seconds } from "./words";

export interface Tick { what: string; state: "open" | "so_far" | "held" | "broken"; measured: string }
export interface Card { action: string; of?: "node"; title: string; does: string; radius: string; lasts: string; more: Record<string, number>; predicts: string[] }

export const CARDS: Card[] = [
  { action: "kill", title: "Kill a worker", does: "SIGKILL to its process", radius: "one worker; it is replaced", lasts: "at once", more: {},
    predicts: ["the loss is noticed within 2 s", "the others go on in a new generation within 5 s", "no committed step is lost", "the worker is replaced within 30 s"] },
  { action: "pause", title: "Freeze a worker", does: "SIGSTOP to its process, SIGCONT after 15 s", radius: "one worker; it is left out until it wakes", lasts: "15 s", more: { for_s: 15 },
    predicts: ["the others go on without it within 10 s", "no committed step is lost", "it is let go"] },
  { action: "slow", title: "Slow a worker ×4", does: "stops its process three quarters of the time", radius: "who waits for it: everybody in synchronous modes", lasts: "20 s", more: { factor: 4, for_s: 20 },
    predicts: ["its own part of a step takes 1.3 times the others'", "no committed step is lost", "it is let go"] },
  { action: "partition", title: "Cut off a worker", does: "the coordinator's nodes do not hear it any more", radius: "one worker; it is left out until it is heard", lasts: "15 s", more: { for_s: 15 },
    predicts: ["the others go on without it within 10 s", "no committed step is lost", "it is let go"] },
  { action: "partition", of: "node", title: "Cut off the leader", does: "the node that leads the coordinator hears nobody, and is heard by nobody", radius: "one node; the others elect another leader", lasts: "15 s", more: { for_s: 15 },
    predicts: ["another node leads within 5 s", "no committed step is lost", "it is let go"] },
];
/** Of two cards with one action each has its own name. */
export const nameOf = (card: Card) => (card.of ? `${card.action}-${card.of}` : card.action);

/** How long a worker's steps took in this time without waiting for others, on average; null: it made none. */
export type OwnTime = (worker: string, from_s: number, to_s: number) => number | null;

/** `events` of the whole run, oldest first; `id` is the wish that struck. */
export function ticks(card: Card, id: string, events: Happening[], view: View, own: OwnTime): Tick[] {
  const mine = events.filter((e) => e.kind === "action" && e.fields.id === id);
  const applied = mine.find((e) => e.fields.phase === "applied" && e.fields.action === card.action);
  if (!applied) return card.predicts.map((what) => ({ what, state: "open", measured: "" }));
  const target = String(applied.fields.target), at = applied.t_s;
  const generation = view.generations.find((g) => g.at_s > at);
  const letGo = events.find((e) => e.t_s > at && e.kind === "action" && ["resume", "heal"].includes(String(e.fields.action)) && e.fields.target === target && e.fields.phase === "applied")?.t_s ?? null;
  const judge: Record<string, () => Tick> = {
    "the loss is noticed within 2 s": () => within(generation?.recovery?.detect_s ?? null, 2),
    "the others go on in a new generation within 5 s": () => within(generation ? generation.at_s - at : null, 5),
    "the others go on without it within 10 s": () => within(generation ? generation.at_s - at : null, 10),
    "no committed step is lost": () => kept(events, at, card.action === "slow" || card.of === "node" || !!generation),
    "the worker is replaced within 30 s": () => within(since(events, at, (e) => e.kind === "worker_started" && e.who === target), 30),
    "another node leads within 5 s": () => within(view.coordinator?.terms?.find(([t, , who]) => t > at && who !== null && `node-${who}` !== target)?.[0] ?? null, 5, at),
    "it is let go": () => within(letGo === null ? null : letGo - at, Infinity),
    "its own part of a step takes 1.3 times the others'": () => slowness(view, target, at, own, letGo),
  };
  return card.predicts.map((what) => ({ ...judge[what](), what }));

  function within(found: number | null, limit: number, from = 0): Tick {
    const took = found === null || found === undefined ? null : found - from;
    if (took === null) return { what: "", state: view.now_s - at > limit + 30 ? "broken" : "open", measured: "" };
    return { what: "", state: took <= limit ? "held" : "broken", measured: seconds(took) };
  }
}

function since(events: Happening[], at: number, is: (event: Happening) => boolean): number | null {
  const found = events.find((e) => e.t_s > at && is(e));
  return found ? found.t_s - at : null;
}

/** Whoever went on must find in the next generation what it had committed in the one before. */
function kept(events: Happening[], at: number, isKnown: boolean): Tick {
  const had = new Map<string, number>();
  let checked = 0;
  for (const event of events) {
    if (event.t_s < at) continue;
    if (event.kind === "generation_lost") had.set(event.who, Number(event.fields.committed));
    if (event.kind === "worker_started") had.delete(event.who);
    if (event.kind !== "generation_entered" || !had.has(event.who)) continue;
    checked++;
    if (Number(event.fields.committed) < had.get(event.who)!) return { what: "", state: "broken", measured: `${event.who} was taken back` };
    had.delete(event.who);
  }
  return checked || isKnown ? { what: "", state: isKnown ? "held" : "open", measured: checked ? `${checked} workers agree` : "nobody had to go back" } : { what: "", state: "open", measured: "" };
}

function slowness(view: View, target: string, at: number, own: OwnTime, letGo: number | null): Tick {
  const to = letGo ?? view.now_s;
  const others = view.workers.filter((w) => w.worker !== target).map((w) => own(w.worker, at, to)).filter((v): v is number => v !== null).sort((a, b) => a - b);
  const mine = own(target, at, to);
  if (mine === null || !others.length || to - at < 2) return { what: "", state: "open", measured: "" };
  const times = mine / others[Math.floor(others.length / 2)];
  return { what: "", state: times >= 1.3 ? "held" : letGo === null ? "open" : "broken", measured: `${times.toFixed(1)} times` };
}
