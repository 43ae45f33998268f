// Where does the page begin? It listens, it is drawn, and it tells tests what it shows.

import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { connect, fetchPast, watchFreshness } from "./connection";
import { Frame } from "./frame";
import { listenToKeys } from "./keys";
import { cursor_s, events, frames, link, steps, view } from "./state";

/** Names in order, so that equal views are equal texts. */
function ordered(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(ordered);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, inner]) => [name, ordered(inner)]));
}

declare global { interface Window { __paceline: Record<string, () => unknown> } }
window.__paceline = {
  view: () => JSON.stringify(ordered(view.value)),
  events: () => events.value.length,
  frames: () => frames.value,
  newest: () => steps.newest_s,
  cursor: () => cursor_s.value,
  link: () => link.value.state,
};

listenToKeys();
watchFreshness();
fetchPast();
render(<Frame />, document.getElementById("root")!);
void connect();
