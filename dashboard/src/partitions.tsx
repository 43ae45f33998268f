// Network partition of selected nodes and workers; its effect on the quorum is shown before it is requested.

import { signal } from "@preact/signals";
import { confirmFirst, requestAction } from "./actions";
import { describeQuorum } from "./quorum";
import { canInjectFaults, view } from "./state";
import type { Coordinator } from "./types";

const MAX_WORKERS = 32; // more are not listed
const DURATION_S = 20;
const checked = signal<string[]>([]);

export function PartitionForm({ coordinator }: { coordinator: Coordinator }) {
  const now = view.value!;
  if (!canInjectFaults.value || now.state !== "training") return null;
  const alive = now.workers.filter((worker) => worker.state !== "lost").map((worker) => worker.worker);
  const workers = now.workers.length > MAX_WORKERS ? [] : alive;
  const nodes = coordinator.nodes.filter((node) => node.node !== null).map((node) => `node-${node.node}`);
  const names = [...nodes, ...workers];
  const isolated = names.filter((name) => checked.value.includes(name));
  const toggle = (name: string) => {
    checked.value = isolated.includes(name)
      ? isolated.filter((other) => other !== name)
      : [...isolated, name];
  };
  const onIsolate = () => {
    const question = `Isolate ${isolated.join(" and ")} for ${DURATION_S} s? ${describeQuorum(coordinator, isolated)}`;
    confirmFirst(question, "Isolate", () => {
      void requestAction("partition", { worker: isolated.join(","), for_s: DURATION_S });
    });
  };
  return (
    <fieldset class="row partition">
      <legend>Network partition: isolate from all others</legend>
      {names.map((name) => (
        <label key={name}>
          <input type="checkbox" checked={isolated.includes(name)} onChange={() => toggle(name)} /> {name}
        </label>
      ))}
      <button class="danger" disabled={!isolated.length} onClick={onIsolate}>
        ⚡ Isolate for {DURATION_S} s
      </button>
      <button onClick={() => void requestAction("heal")}>Heal</button>
    </fieldset>
  );
}
