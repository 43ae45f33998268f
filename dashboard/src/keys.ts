// Which key does what? Nothing while somebody types.

import { setPlaying, setSpeed, connect } from "./connection";
import { flip } from "./frame";
import { step } from "./ribbon";
import { cursor_s, drawer, go, help, isReplay, PAGES, playing, range, speed } from "./state";

export function listenToKeys(): void {
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, [contenteditable]")) return;
    const number = Number(event.key);
    if (number >= 1 && number <= PAGES.length) return go(PAGES[number - 1]);
    const act = ACTS[event.key];
    if (!act || (event.key === " " && target.closest("button, a"))) return;
    event.preventDefault();
    act();
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
  s: () => document.getElementById("sort")?.click(), S: () => document.getElementById("sort")?.click(),
  Escape: () => { drawer.value = false; help.value = false; },
};

function now(): void {
  range.value = null;
  if (!isReplay.value) return;
  cursor_s.value = null;
  void connect();
}
