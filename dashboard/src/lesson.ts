// What is there to learn on the coordinator's page? This run's own story, a sentence at a time. Pure.

import type { Generation, View } from "./types";
import { plain, seconds } from "./words";

export interface Page { title: string; text: string; part: "nodes" | "generations" | "asked"; at_s: number | null }

export function lesson(view: View): Page[] {
  const found = view.coordinator;
  const pages: Page[] = [{ title: "Who decides?", part: "nodes", at_s: null, text: found
    ? `Workers may come and go, so somebody must say who trains together. That is written into one log, which ${found.nodes.length === 1 ? "one node keeps" : `${found.nodes.length} nodes keep alike`}. ${found.has_leader ? `Node ${found.leader} leads: only the leader appends.` : "Nobody leads just now: nothing can be appended until one of them is elected."}`
    : "This run has no coordinator: its workers are those it began with, and if one is lost the run ends. Begin one with --elastic, and come back." }];
  if (!found) return pages;
  pages.push({ title: "What is a term?", part: "nodes", at_s: found.terms?.[0]?.[0] ?? null, text: `Each election begins a new term, and a term has one leader at most. This run is in term ${plain(found.term)} after ${found.leader_changes} ${found.leader_changes === 1 ? "change" : "changes"} of leader. Whoever hears of a higher term steps down at once, so two leaders can never both be believed.` });
  const needed = Math.floor((found.voters ?? found.nodes.length) / 2) + 1;
  pages.push({ title: "When is something decided?", part: "nodes", at_s: null, text: `An entry counts once ${needed} of ${found.voters ?? found.nodes.length} nodes have it on disk: the commit, now ${plain(found.commit)}. The bar under each node is how far it knows. ${needed > 1 ? "A minority may be lost, and nothing that was committed is." : "With one node there is nobody to take over: three nodes survive the loss of one."}` });
  const [first, ...later] = view.generations;
  if (first) pages.push({ title: "What is a generation?", part: "generations", at_s: first.at_s, text: `A crew that trains together. Generation ${first.number} began after ${seconds(first.at_s)} with ${first.workers.length} workers (${first.why}). Whoever comes or goes ends it: all meet anew, from the newest state that anybody has committed.` });
  const lost = later.find((one) => one.recovery);
  pages.push(lost ? recovery(lost) : { title: "How does it recover?", part: "generations", at_s: null, text: "Nobody was lost yet. Kill a worker on the page Lab, and come back: this lesson will have one more page about it." });
  const again = later.find((one) => lost && one.number > lost.number);
  if (again) pages.push({ title: "Who came back?", part: "generations", at_s: again.at_s, text: `Generation ${again.number} began after ${seconds(again.at_s)}: ${again.why}. It has ${again.workers.length} workers and went on from step ${plain(again.committed)}${again.committed >= lost!.committed ? ", not behind the one before: no committed step was lost" : ""}.` });
  pages.push({ title: "Who may ask?", part: "asked", at_s: null, text: "What you ask of a run is appended to the same log before it is done, with your name: requested, accepted by the leader, applied, and its effect seen. Nothing is shown as done before the run's own log says so." });
  return pages;
}

function recovery(one: Generation): Page {
  const { detect_s, stop_s, reform_s, restore_s, resume_s, total_s } = one.recovery!;
  return { title: "How does it recover?", part: "generations", at_s: one.at_s, text: `Generation ${one.number} began because ${one.why}. It took ${seconds(total_s)}: ${seconds(detect_s)} to notice, ${seconds(stop_s ?? 0)} to stop the others, ${seconds(reform_s)} to agree on a new crew, ${seconds(restore_s)} to give everybody the same state, ${seconds(resume_s)} to the first step. It went on from step ${plain(one.committed)}.` };
}
