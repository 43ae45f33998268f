// State of the page: one signal per value. The URL holds the part that a shared link restores.

import { batch, computed, effect, signal } from "@preact/signals";
import palette from "../../src/paceline/core/palette.json";
import { Steps } from "./steps";
import type { Phase, RunEvent, RunSummary, Server, View } from "./types";

export const PAGES = ["overview", "workers", "timeline", "coordinator", "metrics", "lab", "compare"] as const;
export type PageName = (typeof PAGES)[number];

export interface Link {
  state: "connecting" | "live" | "stale" | "lost" | "over" | "paused";
  age_s: number;
  attempt: number;
  retry_s: number;
}

const DEFAULT_PINNED = ["throughput", "loss", "health"];
const TOAST_MS = 6000;
const query = new URLSearchParams(location.search);

export const page = signal<PageName>(readPage(query));
export const run = signal<string | null>(query.get("run"));
export const selected = signal<string[]>(readList(query, "w")); // workers
export const range = signal<[number, number] | null>(readRange(query)); // of the timeline; null: follow the run
export const comparing = signal<string[]>(readList(query, "runs")); // runs on the Compare page
export const pinned = signal<string[]>(query.has("pin") ? readList(query, "pin") : DEFAULT_PINNED);
export const view = signal<View | null>(null);
export const server = signal<Server | null>(null);
export const events = signal<RunEvent[]>([]);
export const runs = signal<RunSummary[]>([]); // of this folder, newest first; as last fetched
export const problem = signal<string | null>(null); // why no run can be shown
export const link = signal<Link>({ state: "connecting", age_s: 0, attempt: 0, retry_s: 0 });
export const cursor_s = signal<number | null>(readNumber(query.get("at"))); // position in a recording
export const playing = signal(!query.has("at"));
export const speed = signal(Math.max(0.25, Math.min(64, readNumber(query.get("speed")) ?? 1)));
export const duration_s = signal(0); // of a recording
export const hover_s = signal<number | null>(null); // under the pointer, in a chart over time
export const alertsOpen = signal(false);
export const helpOpen = signal(false);
export const toast = signal<string | null>(null);
export const steps = new Steps();
export const frames = signal(0); // number of frames applied

export const isStale = computed(() => link.value.state === "stale" || link.value.state === "lost");
export const isReplay = computed(() => server.value?.is_replay ?? false);
export const canAct = computed(() => {
  return !!server.value && !server.value.is_readonly && !server.value.is_replay;
});
export const canInjectFaults = computed(() => canAct.value && !!server.value?.allows_faults);

const systemTheme = matchMedia("(prefers-color-scheme: dark)");
export const chosenTheme = signal<string>(query.get("theme") ?? "");
export const theme = signal<"light" | "dark">("light");

function applyTheme(): void {
  const isDark = chosenTheme.value === "dark" || (chosenTheme.value !== "light" && systemTheme.matches);
  theme.value = isDark ? "dark" : "light";
}
effect(applyTheme);
systemTheme.addEventListener("change", applyTheme);
effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

export function toggleTheme(): void {
  chosenTheme.value = theme.value === "dark" ? "light" : "dark";
}

export function phaseColour(phase: Phase): string {
  return palette[theme.value].phases[phase];
}

export function errorColour(): string {
  return palette[theme.value].error;
}

function readPage(params: URLSearchParams): PageName {
  const name = params.get("page") as PageName | null;
  return name && PAGES.includes(name) ? name : "overview";
}

function readNumber(text: string | null): number | null {
  if (text === null || text.trim() === "") return null;
  const value = Number(text);
  return Number.isFinite(value) ? value : null;
}

function readList(params: URLSearchParams, name: string): string[] {
  return (params.get(name) ?? "").split(",").filter(Boolean);
}

function readRange(params: URLSearchParams): [number, number] | null {
  const from = readNumber(params.get("from"));
  const to = readNumber(params.get("to"));
  return from !== null && to !== null && to > from ? [from, to] : null;
}

/** The URL of what is shown, with changes; null removes a parameter. */
export function currentUrl(changes: Record<string, string | null> = {}): string {
  const isPaused = isReplay.value && !playing.value && cursor_s.value !== null;
  const values: Record<string, string | null> = {
    run: run.value,
    page: page.value === "overview" ? null : page.value,
    w: selected.value.join(","),
    from: range.value ? range.value[0].toFixed(2) : null,
    to: range.value ? range.value[1].toFixed(2) : null,
    runs: page.value === "compare" ? comparing.value.join(",") : null,
    pin: page.value === "metrics" ? pinned.value.join(",") : null,
    theme: chosenTheme.value,
    at: isPaused ? cursor_s.value!.toFixed(2) : null,
    speed: isReplay.value && speed.value !== 1 ? String(speed.value) : null,
    ...changes,
  };
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value) params.set(name, value);
  }
  const text = params.toString();
  return text ? `/?${text}` : "/";
}

export function openPage(name: PageName): void {
  page.value = name;
  history.pushState(null, "", currentUrl());
  document.getElementById("page")?.focus({ preventScroll: true });
}

// This also removes the token from the URL: the cookie holds it, and a URL is easily shown to others.
effect(() => {
  const url = currentUrl();
  if (url !== location.pathname + location.search) history.replaceState(null, "", url);
});

addEventListener("popstate", () => {
  const params = new URLSearchParams(location.search);
  batch(() => {
    page.value = readPage(params);
    selected.value = readList(params, "w");
    range.value = readRange(params);
  });
});

export function notify(text: string): void {
  toast.value = text;
  setTimeout(() => {
    if (toast.value === text) toast.value = null;
  }, TOAST_MS);
}
