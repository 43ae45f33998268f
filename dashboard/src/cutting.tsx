// Who is cut off from all others? Nodes and workers that are ticked; what it would cost is said before.

import { signal } from "@preact/signals";
import { act, confirmed } from "./acting";
import { quorum } from "./quorum";
import { mayStrike, view } from "./state";
import type { Coordinator } from "./types";

const MOST = 32; // workers that are listed
const FOR_S = 20;
const ticked = signal<string[]>([]);

export function Cutting({ found }: { found: Coordinator }) {
  const now = view.value!;
  if (!mayStrike.value || now.state !== "training") return null;
  const workers = now.workers.length > MOST ? [] : now.workers.filter((w) => w.state !== "lost").map((w) => w.worker);
  const names = [...found.nodes.filter((node) => node.node !== null).map((node) => `node-${node.node}`), ...workers];
  const chosen = names.filter((name) => ticked.value.includes(name));
  const flip = (name: string) => { ticked.value = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]; };
  const cut = () => confirmed(`Cut ${chosen.join(" and ")} off for ${FOR_S} s? ${quorum(found, chosen)}`, "Cut off", () => void act("partition", { worker: chosen.join(","), for_s: FOR_S }));
  return (
    <fieldset class="row cutting"><legend>Cut off from all others</legend>
      {names.map((name) => <label key={name}><input type="checkbox" checked={chosen.includes(name)} onChange={() => flip(name)} /> {name}</label>)}
      <button class="danger" disabled={!chosen.length} onClick={cut}>⚡ Cut off {FOR_S} s</button>
      <button onClick={() => void act("heal")}>Heal</button>
    </fieldset>
  );
}
