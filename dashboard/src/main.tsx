// Entry point of the page: connect, render, and expose its state to tests.

import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { connect, fetchOlderSteps, trackFreshness } from "./connection";
import { Layout } from "./layout";
import { handleShortcuts } from "./shortcuts";
import { cursor_s, events, frames, link, steps, view } from "./state";

/** Sorts the names of objects, so that equal views are equal texts. */
function sortKeys(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sortKeys);
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([name, inner]) => [name, sortKeys(inner)]));
}

declare global {
  interface Window {
    __paceline: Record<string, () => unknown>;
  }
}

window.__paceline = {
  view: () => JSON.stringify(sortKeys(view.value)),
  events: () => events.value.length,
  frames: () => frames.value,
  newest: () => steps.newest_s,
  cursor: () => cursor_s.value,
  link: () => link.value.state,
};

handleShortcuts();
trackFreshness();
fetchOlderSteps();
render(<Layout />, document.getElementById("root")!);
void connect();
