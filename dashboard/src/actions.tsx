// Actions on a run and their progress. A phase is shown only after the run's log contains it.

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { postJson } from "./connection";
import { events, notify, run, server } from "./state";
import type { Json, RunEvent } from "./types";

const PHASES = ["requested", "accepted", "applied", "effect_seen"];
const RELEASED = "released"; // a paused, slowed or isolated worker runs freely again

interface ActionStep {
  phase: string;
  note: string;
  t_s: number;
}

export interface Action {
  id: string;
  action: string;
  target: string;
  by: string;
  source: string;
  steps: ActionStep[];
}

interface Confirmation {
  question: string;
  button: string;
  onConfirm: () => void;
}

const confirmation = signal<Confirmation | null>(null);

/** An idempotency key: a request that is sent twice is executed once. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Request an action; returns its id, or null if it was refused. */
export async function requestAction(
  action: string,
  options: Record<string, Json> = {},
): Promise<string | null> {
  const id = newKey();
  const target = run.value ?? server.value!.run;
  const { status, body } = await postJson("/api/v1/actions", { key: id, run: target, action, ...options });
  if (status >= 400) {
    const steps = body.steps as { note: string }[] | undefined;
    notify(`${action} refused: ${body.error ?? steps?.[steps.length - 1]?.note ?? status}`);
    return null;
  }
  notify(`${action} ${options.worker ?? ""}: ${body.phase ?? "started"}`);
  return id;
}

/** Ask for confirmation first, with the focus on Cancel. */
export function confirmFirst(question: string, button: string, onConfirm: () => void): void {
  confirmation.value = { question, button, onConfirm };
}

export function ConfirmDialog() {
  const cancelButton = useRef<HTMLButtonElement>(null);
  const pending = confirmation.value;
  useEffect(() => {
    if (!pending) return;
    const previousFocus = document.activeElement;
    cancelButton.current?.focus();
    return () => {
      if (previousFocus instanceof HTMLElement && previousFocus.isConnected) previousFocus.focus();
    };
  }, [pending]);
  if (!pending) return null;
  const close = () => {
    confirmation.value = null;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") close();
  };
  const onConfirm = () => {
    close();
    pending.onConfirm();
  };
  return (
    <div class="confirm" role="alertdialog" aria-label={pending.question} onKeyDown={onKeyDown}>
      <span>{pending.question}</span>
      <button class="danger" onClick={onConfirm}>
        {pending.button}
      </button>
      <button ref={cancelButton} onClick={close}>
        Cancel
      </button>
    </div>
  );
}

/** Stops the run after its name was typed. */
export function StopRun({ name }: { name: string }) {
  const [typed, setTyped] = useState<string | null>(null);
  if (typed === null) {
    return (
      <button class="danger" onClick={() => setTyped("")}>
        Stop …
      </button>
    );
  }
  const onSubmit = (event: Event) => {
    event.preventDefault();
    if (typed !== name) return;
    setTyped(null);
    void requestAction("stop");
  };
  return (
    <form class="row" onSubmit={onSubmit}>
      <label>
        To stop the run, type <strong>{name}</strong>{" "}
        <input size={12} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
      </label>
      <button class="danger" disabled={typed !== name}>
        Stop the run
      </button>
      <button type="button" onClick={() => setTyped(null)}>
        Cancel
      </button>
    </form>
  );
}

/** The actions in a log, newest first. */
export function actionsFrom(log: RunEvent[]): Action[] {
  const actions = new Map<string, Action>();
  for (const event of log) {
    if (event.kind !== "action") continue;
    const { id, action, target, by, source, phase, note } = event.fields;
    const known = actions.get(String(id)) ?? {
      id: String(id),
      action: String(action),
      target: String(target),
      by: String(by),
      source: String(source),
      steps: [],
    };
    // The release of a worker is logged under the id of the action that paused, slowed or isolated it.
    const isOwnPhase = String(action) === known.action;
    known.steps.push({ phase: isOwnPhase ? String(phase) : RELEASED, note: String(note), t_s: event.t_s });
    actions.set(known.id, known);
  }
  return [...actions.values()].reverse();
}

export const NO_ACTIONS = "No actions yet.";

export function hasActions(): boolean {
  return events.value.some((event) => event.kind === "action");
}

export function ActionList({ limit = 5 }: { limit?: number }) {
  const actions = actionsFrom(events.value).slice(0, limit);
  if (!actions.length) return <p class="muted">{NO_ACTIONS}</p>;
  return (
    <ul class="actions">
      {actions.map((action) => (
        <li key={action.id}>
          <ActionProgress action={action} />
        </li>
      ))}
    </ul>
  );
}

export function ActionProgress({ action }: { action: Action }) {
  const reached = new Map(action.steps.map((step) => [step.phase, step]));
  const failure = reached.get("refused") ?? reached.get("failed");
  const release = reached.get(RELEASED);
  return (
    <div
      class="progress"
      data-action={action.action}
      data-phase={action.steps[action.steps.length - 1].phase}
    >
      <strong>
        {action.action} {action.target}
      </strong>{" "}
      <span class="muted">
        by {action.by}, {action.source}
      </span>
      <ol>
        {PHASES.map((phase) => (
          <ProgressStep key={phase} name={phase.replace("_", " ")} step={reached.get(phase)} />
        ))}
        {release && <ProgressStep name={RELEASED} step={release} />}
        {failure && <ProgressStep name={failure.phase} step={failure} isFailure />}
      </ol>
    </div>
  );
}

function ProgressStep({
  name,
  step,
  isFailure = false,
}: {
  name: string;
  step?: ActionStep;
  isFailure?: boolean;
}) {
  if (!step) {
    return (
      <li class="open">
        <span aria-hidden="true">○</span> {name}
      </li>
    );
  }
  return (
    <li class={isFailure ? "undone" : "done"}>
      <span aria-hidden="true">{isFailure ? "✕" : "✔"}</span> {name}
      <span class="muted"> {step.note}</span>
    </li>
  );
}
