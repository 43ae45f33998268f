// Do the rules of the page hold? Those that need no browser; run by tests/dashboard/test_page.py.

import { changes, inWords } from "../src/changed";
import { quorum } from "../src/quorum";
import { efficiency } from "../src/efficiency";
import { barriers, front } from "../src/fronts";
import { lesson } from "../src/lesson";
import { CARDS, ticks } from "../src/predictions";
import { endOf, Steps } from "../src/steps";
import { trendLine } from "../src/trend";
import type { Coordinator, Happening, StepRow, View } from "../src/types";
import { seconds, si } from "../src/words";

function same(seen: unknown, want: unknown, what: string): void {
  if (JSON.stringify(seen) !== JSON.stringify(want)) throw new Error(`${what}: ${JSON.stringify(seen)}, not ${JSON.stringify(want)}`);
}

function row(step: number, start_s: number, wait_s = 0.01, backward_s = 0.02): StepRow {
  return [step, start_s, 0, 0.01, backward_s, 0, wait_s, 0, 0, 0, 1];
}

function rows(from: number, to: number, backward_s = 0.02): StepRow[] {
  return Array.from({ length: to - from }, (_, i) => row(from + i, (from + i) / 10, 0.01, backward_s));
}

const tests: Record<string, () => void> = {
  "what is kept has a limit, also with many workers"() {
    const steps = new Steps();
    for (let turn = 0; turn < 40; turn++) for (let w = 0; w < 512; w++) steps.add([{ seq: turn, worker: `worker-${w}`, rows: rows(turn * 30, turn * 30 + 30) }]);
    const all = [...steps.lanes.values()].reduce((sum, lane) => sum + lane.length, 0);
    same(all <= 270_000, true, `${all} rows are kept`);
    same(steps.since_s > 0, true, "it knows from when on it knows all");
    const newest = steps.between("worker-7", steps.since_s, 1e9);
    same([newest[0][1] <= steps.since_s + 0.1, newest[newest.length - 1][0]], [true, 1199], "the newest are kept, without a gap");
  },
  "who is gone for long has no lane"() {
    const steps = new Steps();
    steps.add([{ seq: 1, worker: "worker-0", rows: rows(0, 10) }]);
    for (let turn = 0; turn < 10; turn++) steps.add([{ seq: 2, worker: "worker-1", rows: rows(turn * 1000, turn * 1000 + 1000) }]);
    same(steps.names(), ["worker-1"], "lanes");
  },
  "rows that come twice are taken once, and an older window is shown without them"() {
    const steps = new Steps();
    steps.clear(5);
    steps.add([{ seq: 1, worker: "a-0", rows: rows(50, 60) }, { seq: 2, worker: "a-0", rows: rows(55, 65) }]);
    same(steps.lane("a-0").length, 15, "rows");
    same(steps.hasPast(2, 5), false, "nothing older is known");
    steps.remember(2, 5, [{ worker: "a-0", rows: rows(20, 52) }]);
    same(steps.hasPast(2.5, 4.5), true, "now it is");
    same(steps.between("a-0", 2, 9).map((r) => r[0]), Array.from({ length: 45 }, (_, i) => 20 + i), "one story");
    steps.clear();
    same(steps.between("a-0", 0, 9), [], "another run begins with nothing");
  },
  "what changed most is named first"() {
    const steps = new Steps();
    steps.add([{ seq: 1, worker: "w-0", rows: rows(0, 20) }, { seq: 1, worker: "w-1", rows: [...rows(0, 10), ...rows(10, 20, 0.06)] }]);
    const [first, ...rest] = changes(steps, ["w-0", "w-1"], 1, 2);
    same([first.worker, first.phase, rest.length], ["w-1", "backward", 0], "the change");
    same(inWords(first), `w-1: backward ${seconds(0.02)} → ${seconds(0.06)} a step`, "in words");
    same(changes(steps, ["w-0"], 0, 1), [], "nothing was before");
  },
  "a few wild values do not turn the trend"() {
    const xs = Array.from({ length: 300 }, (_, i) => i);
    const line = trendLine(xs, xs.map((x) => (x % 50 === 7 ? 1e6 : 2 * x + 1)));
    same(Math.abs(line[100]! - 201) < 1, true, `the line is at ${line[100]}`);
    same(trendLine([1, 2], [1, null]), [null, null], "too few");
  },
  "a lesson tells the run's own recovery"() {
    const generation = (number: number, committed: number, recovery: object | null) => ({ number, at_s: number * 10, workers: ["a", "b"], why: `reason ${number}`, committed, recovery });
    const node = { node: 1, address: "", role: "leader", term: 3, commit: 9, applied: 9, lag: 0, is_connected: true };
    const coordinator = { has_leader: true, leader: 1, term: 3, commit: 9, applied: 9, voters: 3, missing: 0, leader_changes: 2, round_trip_s: 0.001, nodes: [node, node, node] };
    const took = { detect_s: 0.1, stop_s: 0.1, reform_s: 0.1, restore_s: 0.1, resume_s: 0.1, total_s: 0.5 };
    const view = { coordinator, generations: [generation(1, 0, null), generation(2, 40, took), generation(3, 44, took)] } as unknown as View;
    const pages = lesson(view);
    same(pages.map((page) => page.at_s), [null, null, null, 10, 20, 30, null], "moments");
    same([pages[2].text.includes("2 of 3"), pages[4].text.includes(seconds(0.5)), pages[5].text.includes("no committed step was lost")], [true, true, true], "its numbers");
    same(lesson({ coordinator: null, generations: [] } as unknown as View).length, 1, "without a coordinator");
  },
  "a worker that is taken back breaks the promise"() {
    const event = (t_s: number, kind: string, who: string, fields: object): Happening => ({ seq: t_s, t_s, kind, who, glyph: "", text: "", fields: fields as Happening["fields"] });
    const story = (committed: number) => [event(1, "action", "desk", { id: "x", phase: "applied", action: "kill", target: "worker-1" }), event(2, "generation_lost", "worker-0", { committed: 7 }), event(3, "generation_entered", "worker-0", { committed })];
    const view = { now_s: 4, workers: [], generations: [{ number: 2, at_s: 3, recovery: { detect_s: 0.2 } }] } as unknown as View;
    const judged = (committed: number) => ticks(CARDS[0], "x", story(committed), view, () => null).find((tick) => tick.what === "no committed step is lost")!.state;
    same([judged(7), judged(6)], ["held", "broken"], "judged");
  },
  "a meeting is where the last one came, and only where all were"() {
    const [fast, slow] = [[row(0, 0, 0.02, 0.02), row(1, 0.1, 0.02, 0.02), row(2, 0.2)], [row(0, 0, 0.01, 0.04), row(1, 0.1, 0.01, 0.05)]];
    same(barriers([fast, slow, []]).map((t) => t.toFixed(2)), ["0.05", "0.16"], "nobody met the fast one in its last step");
    same(barriers([[row(0, 0, 0)], [row(0, 0, 0)]]), [], "nobody waited");
  },
  "the front is the bound behind the first one"() {
    const found = front([rows(0, 10), rows(0, 4), [], rows(8, 9)], 5)!;
    same([found.step, found.at.map((t) => t?.toFixed(2) ?? t)], [4, ["0.44", null, undefined, undefined]], "who is behind it has no moment yet");
    same(front([[]], 3), null, "nobody made a step");
  },
  "what a cut leaves of the quorum is said before"() {
    const found = { voters: 3, nodes: [1, 2, 3].map((node) => ({ node })) } as unknown as Coordinator;
    same([["worker-0"], ["node-1", "worker-0"], ["node-1", "node-2"]].map((names) => quorum(found, names).split(" ").slice(0, 3).join(" ")), ["The coordinator stays", "The quorum stays:", "This loses the"], "words");
  },
  "efficiency is measured against one worker alone, else by a worker's own time"() {
    const view = { state: "training", counts: { alive: 4 }, throughput: { samples_per_s: 300 }, run: { task: "xor", device: "cpu", workers: 4 }, workers: [{ phases: { forward: 0.5, backward: 0.25, wait: 0.25 } }] } as unknown as View;
    const alone = { run: "one", mode: "single", task: "xor", num_workers: 1, device: "cpu", samples_per_s: 100 };
    same(efficiency(view, [alone], "me")!.share, 0.75, "of 4 × 100");
    same(efficiency(view, [{ ...alone, samples_per_s: 1000 }, alone], "one")!.words.includes("1\u2009k/s"), false, "not against itself");
    same([efficiency(view, [{ ...alone, task: "digits" }], "me")!.share, efficiency(view, [{ ...alone, samples_per_s: null }], "me")!.words.startsWith("own work")], [0.75, true], "by its own time");
  },
  "numbers have units and four digits at most"() {
    same([si(12345, "B"), si(null), seconds(0.01234), seconds(95), endOf(row(0, 1)).toFixed(2)], ["12.35\u2009kB", "–", "12.3\u2009ms", "95\u2009s", "1.04"], "words");
  },
};

for (const [name, test] of Object.entries(tests)) {
  try { test(); } catch (error) { throw new Error(`${name}: ${error instanceof Error ? error.message : error}`); }
}
console.log(`${Object.keys(tests).length} rules hold`);
