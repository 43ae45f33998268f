// Tests of the pure modules of the page; run by tests/dashboard/test_page.py.

import { barriers, stalenessFront } from "../src/barriers";
import { describeChange, phaseChanges } from "../src/diff";
import { efficiency } from "../src/efficiency";
import { metricLabel, metricValue, summarizeEvaluations, summarizeResult } from "../src/evaluation";
import { checkExpectations, FAULTS } from "../src/expectations";
import { percent, seconds, si } from "../src/format";
import { lessonPages } from "../src/lesson";
import { describeQuorum } from "../src/quorum";
import { endOf, Steps } from "../src/steps";
import { trendLine } from "../src/trend";
import type { Coordinator, Evaluation, RunEvent, StepRow, View } from "../src/types";

function equal(actual: unknown, expected: unknown, what: string): void {
  if (JSON.stringify(actual) === JSON.stringify(expected)) return;
  throw new Error(`${what}: ${JSON.stringify(actual)}, not ${JSON.stringify(expected)}`);
}

function row(step: number, start_s: number, wait_s = 0.01, backward_s = 0.02): StepRow {
  return [step, start_s, 0, 0.01, backward_s, 0, wait_s, 0, 0, 0, 1];
}

function rows(from: number, to: number, backward_s = 0.02): StepRow[] {
  return Array.from({ length: to - from }, (_, i) => row(from + i, (from + i) / 10, 0.01, backward_s));
}

function evaluation(step: number, accuracy: number): Evaluation {
  return { step, t_s: step, metrics: { valid_loss: 1 - accuracy, valid_accuracy: accuracy } };
}

const tests: Record<string, () => void> = {
  "the number of steps in memory is limited, also with many workers"() {
    const steps = new Steps();
    for (let turn = 0; turn < 40; turn++) {
      for (let worker = 0; worker < 512; worker++) {
        steps.add([{ seq: turn, worker: `worker-${worker}`, rows: rows(turn * 30, turn * 30 + 30) }]);
      }
    }
    const total = [...steps.lanes.values()].reduce((sum, lane) => sum + lane.length, 0);
    equal(total <= 270_000, true, `${total} rows are in memory`);
    equal(steps.since_s > 0, true, "the start of the complete part is known");
    const newest = steps.between("worker-7", steps.since_s, 1e9);
    equal(newest[0][1] <= steps.since_s + 0.1, true, "without a gap");
    equal(newest[newest.length - 1][0], 1199, "the newest step");
  },
  "a worker that is gone for long has no lane"() {
    const steps = new Steps();
    steps.add([{ seq: 1, worker: "worker-0", rows: rows(0, 10) }]);
    for (let turn = 0; turn < 10; turn++) {
      steps.add([{ seq: 2, worker: "worker-1", rows: rows(turn * 1000, turn * 1000 + 1000) }]);
    }
    equal(steps.names(), ["worker-1"], "lanes");
  },
  "rows that arrive twice are stored once, also in an older window"() {
    const steps = new Steps();
    steps.clear(5);
    steps.add([
      { seq: 1, worker: "a-0", rows: rows(50, 60) },
      { seq: 2, worker: "a-0", rows: rows(55, 65) },
    ]);
    equal(steps.lane("a-0").length, 15, "rows");
    equal(steps.hasPast(2, 5), false, "no older window yet");
    steps.setPast(2, 5, [{ worker: "a-0", rows: rows(20, 52) }]);
    equal(steps.hasPast(2.5, 4.5), true, "an older window");
    const shown = steps.between("a-0", 2, 9).map((step) => step[0]);
    equal(
      shown,
      Array.from({ length: 45 }, (_, i) => 20 + i),
      "each step once",
    );
    steps.clear();
    equal(steps.between("a-0", 0, 9), [], "another run starts empty");
  },
  "the largest change comes first"() {
    const steps = new Steps();
    steps.add([
      { seq: 1, worker: "w-0", rows: rows(0, 20) },
      { seq: 1, worker: "w-1", rows: [...rows(0, 10), ...rows(10, 20, 0.06)] },
    ]);
    const [first, ...rest] = phaseChanges(steps, ["w-0", "w-1"], 1, 2);
    equal([first.worker, first.phase, rest.length], ["w-1", "backward", 0], "the change");
    equal(describeChange(first), `w-1: backward ${seconds(0.02)} → ${seconds(0.06)} per step`, "as text");
    equal(phaseChanges(steps, ["w-0"], 0, 1), [], "without steps before");
  },
  "outliers do not change the trend"() {
    const xs = Array.from({ length: 300 }, (_, i) => i);
    const line = trendLine(
      xs,
      xs.map((x) => (x % 50 === 7 ? 1e6 : 2 * x + 1)),
    );
    equal(Math.abs(line[100]! - 201) < 1, true, `the line is at ${line[100]}`);
    equal(trendLine([1, 2], [1, null]), [null, null], "too few values");
  },
  "a lesson describes the run's own recovery"() {
    const stage_s = 0.1;
    const recovery = {
      detect_s: stage_s,
      stop_s: stage_s,
      reform_s: stage_s,
      restore_s: stage_s,
      resume_s: stage_s,
      total_s: 0.5,
    };
    const generation = (number: number, committed: number, hasRecovery: boolean) => ({
      number,
      at_s: number * 10,
      workers: ["a", "b"],
      why: `reason ${number}`,
      committed,
      recovery: hasRecovery ? recovery : null,
    });
    const coordinator = {
      has_leader: true,
      leader: 1,
      term: 3,
      commit: 9,
      voters: 3,
      leader_changes: 2,
      nodes: [1, 2, 3],
    };
    const generations = [generation(1, 0, false), generation(2, 40, true), generation(3, 44, true)];
    const pages = lessonPages({ coordinator, generations } as unknown as View);
    equal(
      pages.map((page) => page.at_s),
      [null, null, null, 10, 20, 30, null],
      "times",
    );
    equal(pages[2].text.includes("2 of 3"), true, "the majority");
    equal(pages[4].text.includes(seconds(0.5)), true, "the recovery time");
    equal(pages[5].text.includes("no committed step was lost"), true, "the conclusion");
    equal(lessonPages({ coordinator: null, generations: [] } as unknown as View).length, 1, "no coordinator");
  },
  "a worker that resumes from an earlier step breaks the promise"() {
    const event = (t_s: number, kind: string, who: string, fields: object): RunEvent => {
      return { seq: t_s, t_s, kind, who, glyph: "", text: "", fields: fields as RunEvent["fields"] };
    };
    const log = (committed: number) => [
      event(1, "action", "queue", { id: "x", phase: "applied", action: "kill", target: "worker-1" }),
      event(2, "generation_lost", "worker-0", { committed: 7 }),
      event(3, "generation_entered", "worker-0", { committed }),
    ];
    const generations = [{ number: 2, at_s: 3, recovery: { detect_s: 0.2 } }];
    const view = { now_s: 4, workers: [], generations } as unknown as View;
    const stateOf = (committed: number) => {
      const expectations = checkExpectations(FAULTS[0], "x", log(committed), view, () => null);
      return expectations.find(({ what }) => what === "no committed step is lost")!.state;
    };
    equal([stateOf(7), stateOf(6)], ["held", "broken"], "states");
  },
  "a barrier is where the last worker arrives, and only where all take part"() {
    const fast = [row(0, 0, 0.02, 0.02), row(1, 0.1, 0.02, 0.02), row(2, 0.2)];
    const slow = [row(0, 0, 0.01, 0.04), row(1, 0.1, 0.01, 0.05)];
    const times = barriers([fast, slow, []]).map((t_s) => t_s.toFixed(2));
    equal(times, ["0.05", "0.16"], "no barrier in the fast worker's last step");
    equal(barriers([[row(0, 0, 0)], [row(0, 0, 0)]]), [], "no worker waited");
  },
  "the staleness front is the bound behind the fastest worker"() {
    const front = stalenessFront([rows(0, 10), rows(0, 4), [], rows(8, 9)], 5)!;
    equal(front.step, 4, "step");
    const times = front.times.map((t_s) => t_s?.toFixed(2) ?? t_s);
    equal(times, ["0.44", null, undefined, undefined], "a worker behind the front has no time yet");
    equal(stalenessFront([[]], 3), null, "no steps");
  },
  "the effect of a partition on the quorum is known in advance"() {
    const coordinator = { voters: 3, nodes: [1, 2, 3].map((node) => ({ node })) } as unknown as Coordinator;
    const outcome = (isolated: string[]) =>
      describeQuorum(coordinator, isolated).split(" ").slice(0, 4).join(" ");
    equal(outcome(["worker-0"]), "The quorum is not", "a worker only");
    equal(outcome(["node-1", "worker-0"]), "The quorum remains: 2", "one node");
    equal(outcome(["node-1", "node-2"]), "The quorum would be", "two nodes");
  },
  "efficiency is relative to a single-worker run, else the share of own work"() {
    const view = {
      state: "training",
      counts: { alive: 4 },
      throughput: { samples_per_s: 300 },
      run: { task: "xor", device: "cpu", workers: 4 },
      workers: [{ phases: { forward: 0.5, backward: 0.25, wait: 0.25 } }],
    } as unknown as View;
    const single = {
      run: "one",
      mode: "single",
      task: "xor",
      num_workers: 1,
      device: "cpu",
      samples_per_s: 100,
    };
    equal(efficiency(view, [single], "me")!.share, 0.75, "of 4 × 100");
    const own = efficiency(view, [{ ...single, samples_per_s: 1000 }, single], "one")!;
    equal(own.description.includes("1\u2009k/s"), false, "not relative to itself");
    equal(efficiency(view, [{ ...single, task: "digits" }], "me")!.share, 0.75, "another task");
    equal(efficiency(view, [{ ...single, samples_per_s: null }], "me")!.share, 0.75, "not measured");
  },
  "accuracy is shown with the last and the best evaluation"() {
    const summary = summarizeEvaluations([evaluation(10, 0.5), evaluation(20, 0.9), evaluation(30, 0.8)])!;
    equal(summary, { name: "valid_accuracy", last: 0.8, best: 0.9, bestStep: 20 }, "summary");
    equal(metricLabel(summary.name), "validation accuracy", "label");
    equal(metricValue(summary.name, summary.last), "80\u2009%", "value");
    equal(summarizeEvaluations([]), null, "not evaluated");
    const result = summarizeResult({ valid_accuracy: 0.7, test_loss: 0.2, test_accuracy: 0.75 });
    equal(result, { name: "test_accuracy", last: 0.75, best: null, bestStep: null }, "the test metric first");
  },
  "without an accuracy the lowest loss is best"() {
    const losses = [3, 1, 2].map((loss, i) => ({ step: i, t_s: i, metrics: { valid_loss: loss } }));
    equal(summarizeEvaluations(losses), { name: "valid_loss", last: 2, best: 1, bestStep: 1 }, "summary");
    equal(summarizeEvaluations([{ step: 1, t_s: 1, metrics: { valid_loss: "nan" } }]), null, "not a number");
  },
  "numbers have units and at most four digits"() {
    equal(
      [si(12345, "B"), si(null), seconds(0.01234), seconds(95)],
      ["12.35\u2009kB", "–", "12.3\u2009ms", "95\u2009s"],
      "text",
    );
    equal([percent(0.1234), percent(0.1234, 1)], ["12\u2009%", "12.3\u2009%"], "percent");
    equal(endOf(row(0, 1)).toFixed(2), "1.04", "end of a step");
  },
};

for (const [name, test] of Object.entries(tests)) {
  try {
    test();
  } catch (error) {
    throw new Error(`${name}: ${error instanceof Error ? error.message : error}`);
  }
}
console.log(`${Object.keys(tests).length} rules hold`);
