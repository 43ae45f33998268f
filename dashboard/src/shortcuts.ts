// Keyboard shortcuts. They are off while the user types.

import { confirmFirst, requestAction } from "./actions";
import { connect, setPlaying, setSpeed } from "./connection";
import { stepEvent } from "./event_bar";
import {
  alertsOpen,
  canAct,
  canInjectFaults,
  cursor_s,
  helpOpen,
  isReplay,
  openPage,
  PAGES,
  playing,
  range,
  selected,
  speed,
  toggleTheme,
  view,
} from "./state";

const PAUSE_S = 30;

export function handleShortcuts(): void {
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const isTyping = target.closest("input, select, textarea, [contenteditable]");
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
    const number = Number(event.key);
    if (number >= 1 && number <= PAGES.length) {
      openPage(PAGES[number - 1]);
      return;
    }
    const handler = SHORTCUTS[event.key] ?? SHORTCUTS[event.key.toLowerCase()];
    if (!handler || (event.key === " " && target.closest("button, a, summary"))) return;
    // Arrow keys scroll an element that can be scrolled.
    if (event.key.startsWith("Arrow") && target.closest("[tabindex='0']")) return;
    event.preventDefault();
    handler();
  });
}

function click(id: string): void {
  document.getElementById(id)?.click();
}

const SHORTCUTS: Record<string, () => void> = {
  " ": () => {
    if (isReplay.value) setPlaying(!playing.value);
  },
  ArrowLeft: () => stepEvent(-1),
  ArrowRight: () => stepEvent(1),
  "[": () => setSpeed(speed.value / 2),
  "]": () => setSpeed(speed.value * 2),
  l: followLive,
  a: () => {
    alertsOpen.value = !alertsOpen.value;
  },
  t: toggleTheme,
  "?": () => {
    helpOpen.value = !helpOpen.value;
  },
  "/": () => document.getElementById("filter")?.focus(),
  "+": () => click("zoom-in"),
  "-": () => click("zoom-out"),
  s: () => click("sort"),
  p: togglePause,
  K: killSelected,
  Escape: () => {
    alertsOpen.value = false;
    helpOpen.value = false;
  },
};

/** Pause the selected worker, or resume it. */
function togglePause(): void {
  const row = view.value?.workers.find((worker) => worker.worker === selected.value[0]);
  if (!row || !canAct.value || view.value!.state !== "training") return;
  if (row.state === "paused") void requestAction("resume", { worker: row.worker });
  else if (canInjectFaults.value) void requestAction("pause", { worker: row.worker, for_s: PAUSE_S });
}

function killSelected(): void {
  const worker = selected.value[0];
  if (!worker || !canInjectFaults.value || view.value?.state !== "training") return;
  confirmFirst(`Kill ${worker}?`, "Kill", () => void requestAction("kill", { worker }));
}

function followLive(): void {
  range.value = null;
  if (!isReplay.value) return;
  cursor_s.value = null;
  void connect();
}
