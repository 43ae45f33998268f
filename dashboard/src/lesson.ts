// Lesson of the Coordinator page: Raft and generations, explained with the numbers of the shown run. Pure.

import { plain, plural, seconds } from "./format";
import type { Coordinator, Generation, View } from "./types";

export interface LessonPage {
  title: string;
  text: string;
  panel: "nodes" | "generations" | "actions"; // highlighted meanwhile
  at_s: number | null; // a recording is moved there; null: it stays
}

export function lessonPages(view: View): LessonPage[] {
  const { coordinator, generations } = view;
  if (!coordinator) return [withoutCoordinator()];
  const [first, ...later] = generations;
  const recovered = later.find((generation) => generation.recovery);
  const next = later.find((generation) => recovered && generation.number > recovered.number);
  const pages = [coordinatorPage(coordinator), termPage(coordinator), commitPage(coordinator)];
  if (first) pages.push(generationPage(first));
  pages.push(recovered ? recoveryPage(recovered) : noRecoveryPage());
  if (recovered && next) pages.push(replacementPage(next, recovered));
  pages.push(actionPage());
  return pages;
}

function withoutCoordinator(): LessonPage {
  return {
    title: "The coordinator",
    panel: "nodes",
    at_s: null,
    text:
      "This run has no coordinator: its set of workers is fixed, and the run ends if a worker is lost. " +
      "Start a run with --elastic to see one.",
  };
}

function coordinatorPage(coordinator: Coordinator): LessonPage {
  const count = coordinator.nodes.length;
  const log = count === 1 ? "a log on one node" : `a log that is replicated on ${count} nodes`;
  const leader = coordinator.has_leader
    ? `Node ${coordinator.leader} is the leader: only the leader appends entries.`
    : "There is no leader at the moment: entries can be appended after the next election.";
  return {
    title: "The coordinator",
    panel: "nodes",
    at_s: null,
    text: `Workers can join and leave, so the set of workers is recorded in ${log}. ${leader}`,
  };
}

function termPage(coordinator: Coordinator): LessonPage {
  const changes = plural(coordinator.leader_changes, "leader change");
  return {
    title: "Terms",
    panel: "nodes",
    at_s: coordinator.terms?.[0]?.[0] ?? null,
    text:
      "Each election starts a new term, and a term has at most one leader. " +
      `This run is in term ${plain(coordinator.term)} after ${changes}. ` +
      "A node that receives a higher term becomes a follower, so two leaders cannot both commit entries.",
  };
}

function commitPage(coordinator: Coordinator): LessonPage {
  const voters = coordinator.voters ?? coordinator.nodes.length;
  const majority = Math.floor(voters / 2) + 1;
  const consequence =
    majority > 1
      ? "If a minority of the nodes is lost, every committed entry remains."
      : "A single node has no replacement; three nodes tolerate the loss of one.";
  return {
    title: "Commit",
    panel: "nodes",
    at_s: null,
    text:
      `An entry is committed once ${majority} of ${voters} nodes have it on disk. ` +
      `The commit index is ${plain(coordinator.commit)}. ` +
      `The bar under each node shows how far its commit index is. ${consequence}`,
  };
}

function generationPage(generation: Generation): LessonPage {
  return {
    title: "Generations",
    panel: "generations",
    at_s: generation.at_s,
    text:
      "A generation is a set of workers that train together. " +
      `Generation ${generation.number} started after ${seconds(generation.at_s)} ` +
      `with ${plural(generation.workers.length, "worker")} (${generation.why}). ` +
      "A worker that joins or leaves ends the generation; the next one starts from the newest committed state.",
  };
}

function noRecoveryPage(): LessonPage {
  return {
    title: "Recovery",
    panel: "generations",
    at_s: null,
    text: "No worker was lost yet. Kill a worker on the Lab page; this page then shows its recovery by stage.",
  };
}

function recoveryPage(generation: Generation): LessonPage {
  const { detect_s, stop_s, reform_s, restore_s, resume_s, total_s } = generation.recovery!;
  const stages = [
    `${seconds(detect_s)} to detect the loss`,
    `${seconds(stop_s ?? 0)} to stop the survivors`,
    `${seconds(reform_s)} to form the new generation`,
    `${seconds(restore_s)} to restore the same state on all workers`,
    `${seconds(resume_s)} to the first step`,
  ];
  return {
    title: "Recovery",
    panel: "generations",
    at_s: generation.at_s,
    text:
      `Generation ${generation.number} started because ${generation.why}. ` +
      `The recovery took ${seconds(total_s)}: ${stages.join(", ")}. ` +
      `Training resumed from step ${plain(generation.committed)}.`,
  };
}

function replacementPage(generation: Generation, recovered: Generation): LessonPage {
  const isKept = generation.committed >= recovered.committed;
  const conclusion = isKept ? ", not before the previous generation: no committed step was lost" : "";
  return {
    title: "The next generation",
    panel: "generations",
    at_s: generation.at_s,
    text:
      `Generation ${generation.number} started after ${seconds(generation.at_s)}: ${generation.why}. ` +
      `It has ${plural(generation.workers.length, "worker")} and resumed from step ` +
      `${plain(generation.committed)}${conclusion}.`,
  };
}

function actionPage(): LessonPage {
  return {
    title: "Actions",
    panel: "actions",
    at_s: null,
    text:
      "An action is appended to the same log, with its author, before it is executed: requested, accepted by " +
      "the leader, applied, effect seen. A phase is shown only after the run's log contains it.",
  };
}
