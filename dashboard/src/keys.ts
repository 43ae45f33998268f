// Which key does what? Nothing while somebody types.

import { act, confirmed } from "./acting";
import { setPlaying, setSpeed, connect } from "./connection";
import { flip } from "./frame";
import { step } from "./ribbon";
import { cursor_s, drawer, go, help, isReplay, mayAct, mayStrike, PAGES, playing, range, selected, speed, view } from "./state";

export function listenToKeys(): void {
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, [contenteditable]")) return;
    const number = Number(event.key);
    if (number >= 1 && number <= PAGES.length) return go(PAGES[number - 1]);
    const does = ACTS[event.key];
    if (!does || (event.key === " " && target.closest("button, a, summary"))) return;
    // Whoever is in something that scrolls means to scroll it.
    if (event.key.startsWith("Arrow") && target.closest("[tabindex='0']")) return;
    event.preventDefault();
    does();
  });
}

const ACTS: Record<string, () => void> = {
  " ": () => { if (isReplay.value) setPlaying(!playing.value); },
  ArrowLeft: () => step(-1),
  ArrowRight: () => step(1),
  "[": () => setSpeed(speed.value / 2),
  "]": () => setSpeed(speed.value * 2),
  L: () => now(), l: () => now(),
  a: () => { drawer.value = !drawer.value; }, A: () => { drawer.value = !drawer.value; },
  t: flip, T: flip,
  "?": () => { help.value = !help.value; },
  "/": () => document.getElementById("filter")?.focus(),
  "+": () => document.getElementById("closer")?.click(), "-": () => document.getElementById("wider")?.click(),
  s: () => document.getElementById("sort")?.click(), S: () => document.getElementById("sort")?.click(),
  p: () => hold(), P: () => hold(),
  K: () => strike(),
  Escape: () => { drawer.value = false; help.value = false; },
};

/** The chosen worker pauses, or goes on if it does. */
function hold(): void {
  const row = view.value?.workers.find((worker) => worker.worker === selected.value[0]);
  if (!row || !mayAct.value || view.value!.state !== "training" || (row.state !== "paused" && !mayStrike.value)) return;
  void (row.state === "paused" ? act("resume", { worker: row.worker }) : act("pause", { worker: row.worker, for_s: 30 }));
}

function strike(): void {
  const name = selected.value[0];
  if (name && mayStrike.value && view.value?.state === "training") confirmed(`Kill ${name}?`, "Kill", () => void act("kill", { worker: name }));
}

function now(): void {
  range.value = null;
  if (!isReplay.value) return;
  cursor_s.value = null;
  void connect();
}
