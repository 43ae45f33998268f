// What is shown, and where are we? One signal for each; the address bar says the same, so that a link leads here.

import { batch, computed, effect, signal } from "@preact/signals";
import palette from "./palette.json";
import { Steps } from "./steps";
import type { Happening, KnownRun, Server, View } from "./types";

export const PAGES = ["overview", "workers", "timeline", "coordinator", "metrics", "lab", "compare"] as const;
export type PageName = (typeof PAGES)[number];
export type Link = { state: "connecting" | "live" | "stale" | "lost" | "over" | "paused"; age_s: number; attempt: number; retry_s: number };

const query = new URLSearchParams(location.search);
const asked = query.get("page") as PageName | null;

export const page = signal<PageName>(asked && PAGES.includes(asked) ? asked : "overview");
export const run = signal<string | null>(query.get("run"));
export const selected = signal<string[]>(listed(query, "w"));
export const range = signal<[number, number] | null>(readRange(query));
export const comparing = signal<string[]>(listed(query, "runs")); // which runs, on their page
export const pinned = signal<string[]>(query.has("pin") ? listed(query, "pin") : ["throughput", "loss", "health"]);
export const view = signal<View | null>(null);
export const server = signal<Server | null>(null);
export const events = signal<Happening[]>([]);
export const runs = signal<KnownRun[]>([]); // of this folder, newest first; as of when somebody last asked
export const problem = signal<string | null>(null); // nothing can be shown: why
export const link = signal<Link>({ state: "connecting", age_s: 0, attempt: 0, retry_s: 0 });
export const cursor_s = signal<number | null>(finite(query.get("at"))); // replay: where we are
export const playing = signal(!query.has("at"));
export const speed = signal(Math.max(0.25, Math.min(64, finite(query.get("speed")) ?? 1)));
export const duration_s = signal(0);
export const hover_s = signal<number | null>(null); // where somebody points in a chart over time
export const drawer = signal(false);
export const help = signal(false);
export const toast = signal<string | null>(null);
export const steps = new Steps();
export const frames = signal(0); // grows with each frame that was taken

export const isStale = computed(() => link.value.state === "stale" || link.value.state === "lost");
export const isReplay = computed(() => server.value?.is_replay ?? false);
export const mayAct = computed(() => !!server.value && !server.value.is_readonly && !server.value.is_replay);
export const mayStrike = computed(() => mayAct.value && !!server.value?.allows_faults);

const system = matchMedia("(prefers-color-scheme: dark)");
export const chosenTheme = signal<string>(query.get("theme") ?? "");
export const theme = signal<"light" | "dark">("light");
const settle = () => { theme.value = chosenTheme.value === "dark" || (chosenTheme.value !== "light" && system.matches) ? "dark" : "light"; };
effect(settle);
system.addEventListener("change", settle);
effect(() => { document.documentElement.dataset.theme = theme.value; });

export function phaseColour(name: string): string {
  const colours: Record<string, string> = palette[theme.value].phases;
  const alias: Record<string, string> = palette.same_as;
  return colours[alias[name] ?? name];
}

function finite(said: string | null): number | null {
  return said !== null && said.trim() !== "" && Number.isFinite(Number(said)) ? Number(said) : null;
}

function listed(said: URLSearchParams, name: string): string[] {
  return (said.get(name) ?? "").split(",").filter(Boolean);
}

function readRange(said: URLSearchParams): [number, number] | null {
  const [from, to] = [finite(said.get("from")), finite(said.get("to"))];
  return from !== null && to !== null && to > from ? [from, to] : null;
}

export function address(changes: Record<string, string | null> = {}): string {
  const now = new URLSearchParams();
  const say = (name: string, value: string | null) => { if (value) now.set(name, value); };
  say("run", run.value);
  say("page", page.value === "overview" ? null : page.value);
  say("w", selected.value.join(","));
  say("from", range.value ? range.value[0].toFixed(2) : null);
  say("to", range.value ? range.value[1].toFixed(2) : null);
  say("runs", page.value === "compare" ? comparing.value.join(",") : null);
  say("pin", page.value === "metrics" ? pinned.value.join(",") : null);
  say("theme", chosenTheme.value);
  say("at", isReplay.value && !playing.value && cursor_s.value !== null ? cursor_s.value.toFixed(2) : null);
  say("speed", isReplay.value && speed.value !== 1 ? String(speed.value) : null);
  for (const [name, value] of Object.entries(changes)) { now.delete(name); say(name, value); }
  const text = now.toString();
  return text ? `/?${text}` : "/";
}

export function go(to: PageName): void {
  page.value = to;
  history.pushState(null, "", address());
  document.getElementById("page")?.focus({ preventScroll: true });
}

// The token, if it is there, goes: the cookie has it, and an address is easily shown to others.
effect(() => { const now = address(); if (now !== location.pathname + location.search) history.replaceState(null, "", now); });
addEventListener("popstate", () => {
  const said = new URLSearchParams(location.search);
  const name = said.get("page") as PageName | null;
  batch(() => {
    page.value = name && PAGES.includes(name) ? name : "overview";
    selected.value = listed(said, "w");
    range.value = readRange(said);
  });
});

export function tell(text: string): void {
  toast.value = text;
  setTimeout(() => { if (toast.value === text) toast.value = null; }, 6000);
}
