// What may be asked of a run, and how far has it come? Nothing is shown as done before the run's own log says so.

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "./connection";
import { events, run, server, tell } from "./state";
import type { Happening, Json } from "./types";

export interface Progress { id: string; action: string; target: string; by: string; source: string; steps: { phase: string; note: string; t_s: number }[] }
const PHASES = ["requested", "accepted", "applied", "effect_seen"];
const asking = signal<{ text: string; word: string; act: () => void } | null>(null);

export function key(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function act(action: string, more: Record<string, Json> = {}): Promise<string | null> {
  const id = key();
  const { status, body } = await post("/api/v1/actions", { key: id, run: run.value ?? server.value!.run, action, ...more });
  if (status >= 400) {
    const steps = body.steps as { note: string }[] | undefined;
    tell(`not done: ${body.error ?? steps?.[steps.length - 1]?.note ?? status}`);
    return null;
  }
  tell(`${action} ${more.worker ?? ""}: ${body.phase ?? "begun"}`);
  return id;
}

/** Asked first, inline, with the harmless answer focused. */
export function confirmed(text: string, word: string, then: () => void): void {
  asking.value = { text, word, act: then };
}

export function Confirm() {
  const cancel = useRef<HTMLButtonElement>(null);
  const now = asking.value;
  useEffect(() => {
    if (!now) return;
    const before = document.activeElement;
    cancel.current?.focus();
    return () => { if (before instanceof HTMLElement && before.isConnected) before.focus(); };
  }, [now]);
  if (!now) return null;
  const close = () => { asking.value = null; };
  return (
    <div class="confirm" role="alertdialog" aria-label={now.text} onKeyDown={(e) => { if (e.key === "Escape") close(); }}>
      <span>{now.text}</span>
      <button class="danger" onClick={() => { close(); now.act(); }}>{now.word}</button>
      <button ref={cancel} onClick={close}>Cancel</button>
    </div>
  );
}

/** Ends the run: whoever means it writes its name. */
export function Stop({ name }: { name: string }) {
  const [said, setSaid] = useState<string | null>(null);
  if (said === null) return <button class="danger" onClick={() => setSaid("")}>Stop …</button>;
  return (
    <form class="row" onSubmit={(e) => { e.preventDefault(); if (said === name) { setSaid(null); void act("stop"); } }}>
      <label>To stop it, write <strong>{name}</strong> <input size={12} value={said} onInput={(e) => setSaid(e.currentTarget.value)} /></label>
      <button class="danger" disabled={said !== name}>Stop the run</button><button type="button" onClick={() => setSaid(null)}>Cancel</button>
    </form>
  );
}

export function progressOf(all: Happening[]): Progress[] {
  const found = new Map<string, Progress>();
  for (const event of all) {
    if (event.kind !== "action") continue;
    const id = String(event.fields.id);
    // That a held worker was let go is told under the same wish.
    const known = found.get(id) ?? { id, action: String(event.fields.action), target: String(event.fields.target), by: String(event.fields.by), source: String(event.fields.source), steps: [] };
    const isIts = String(event.fields.action) === known.action;
    known.steps.push({ phase: isIts ? String(event.fields.phase) : "over", note: String(event.fields.note), t_s: event.t_s });
    found.set(id, known);
  }
  return [...found.values()].reverse();
}

export function Actions({ most = 5 }: { most?: number }) {
  const found = progressOf(events.value).slice(0, most);
  if (!found.length) return <p class="muted">Nothing was asked of this run yet.</p>;
  return <ul class="actions">{found.map((one) => <li key={one.id}><LifeCycle one={one} /></li>)}</ul>;
}

export function LifeCycle({ one }: { one: Progress }) {
  const reached = new Map(one.steps.map((step) => [step.phase, step]));
  const undone = reached.get("refused") ?? reached.get("failed");
  return (
    <div class="life" data-action={one.action} data-phase={one.steps[one.steps.length - 1].phase}>
      <strong>{one.action} {one.target}</strong> <span class="muted">by {one.by}, {one.source}</span>
      <ol>
        {PHASES.map((phase) => {
          const step = reached.get(phase);
          return <li class={step ? "done" : "open"} key={phase}><span aria-hidden="true">{step ? "✔" : "○"}</span> {phase.replace("_", " ")}{step && <span class="muted"> {step.note}</span>}</li>;
        })}
        {reached.has("over") && <li class="done"><span aria-hidden="true">✔</span> over<span class="muted"> {reached.get("over")!.note}</span></li>}
        {undone && <li class="undone"><span aria-hidden="true">✕</span> {undone.phase}<span class="muted"> {undone.note}</span></li>}
      </ol>
    </div>
  );
}
