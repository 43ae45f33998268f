// Alerts drawer: firing, pending and resolved alerts, opened from the header of every page.

import { useEffect, useRef } from "preact/hooks";
import { Sparkline } from "./chart";
import { postJson } from "./connection";
import { plain, seconds } from "./format";
import { alertsOpen, canAct, notify, page, range, run, server, view } from "./state";
import type { Alert } from "./types";

const GLYPHS: Record<Alert["state"], string> = { firing: "▲", pending: "◔", resolved: "✔" };
const ORDER: Record<Alert["state"], number> = { firing: 0, pending: 1, resolved: 2 };

export function firingAlerts(): Alert[] {
  return (view.value?.alerts ?? []).filter((alert) => {
    return alert.state === "firing" && !alert.silenced && !alert.inhibited_by;
  });
}

function close(): void {
  alertsOpen.value = false;
}

export function AlertDrawer() {
  const now = view.value;
  const closeButton = useRef<HTMLButtonElement>(null);
  const isOpen = alertsOpen.value && !!now;
  useEffect(() => {
    if (!isOpen) return;
    closeButton.current?.focus();
    return () => document.getElementById("alerts")?.focus();
  }, [isOpen]);
  if (!isOpen) return null;
  const alerts = [...now.alerts].sort((a, b) => ORDER[a.state] - ORDER[b.state] || b.since_s - a.since_s);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") close();
  };
  return (
    <div class="drawer" role="dialog" aria-label="Alerts" onKeyDown={onKeyDown}>
      <div class="head">
        <h2>Alerts</h2>
        <span class="grow" />
        <button ref={closeButton} onClick={close}>
          Close
        </button>
      </div>
      {!alerts.length && <p class="muted">No alerts in this run.</p>}
      <ul>
        {alerts.map((alert) => (
          <li
            key={alert.fingerprint + alert.since_s}
            class={`alert ${alert.state} ${alert.severity}`}
            data-rule={alert.rule}
            data-state={alert.state}
          >
            <AlertDetails alert={alert} now_s={now.now_s} />
          </li>
        ))}
      </ul>
    </div>
  );
}

async function silence(rule: string, for_s: number): Promise<void> {
  const target = run.value ?? server.value!.run;
  const { status, body } = await postJson("/api/v1/silences", { rule, for_s, run: target });
  notify(status < 400 ? `${rule} is silenced for ${seconds(for_s)}` : String(body.error));
}

function showInTimeline(at_s: number): void {
  range.value = [Math.max(0, at_s - 10), at_s + 10];
  page.value = "timeline";
  close();
}

function AlertDetails({ alert, now_s }: { alert: Alert; now_s: number }) {
  const canSilence = canAct.value && alert.state !== "resolved" && !alert.silenced;
  return (
    <>
      <h3>
        <span aria-hidden="true">{GLYPHS[alert.state]}</span> {alert.rule}{" "}
        <span class="muted">
          {alert.severity}, {alert.state}
        </span>
        {alert.injected && <span title="caused by an injected fault"> ⚡ injected</span>}
      </h3>
      <p>{alert.summary}</p>
      <p class="muted">{alert.description}</p>
      <AlertFacts alert={alert} now_s={now_s} />
      {typeof alert.threshold === "number" && (
        <Sparkline
          values={(alert.values ?? []).map(([, value]) => value)}
          threshold={alert.threshold}
          label={`${alert.rule}: value since the alert started; dashed: threshold ${plain(alert.threshold)}`}
        />
      )}
      <div class="row">
        <button onClick={() => showInTimeline(alert.since_s)}>Show in timeline</button>
        {canSilence && (
          <>
            <button onClick={() => void silence(alert.rule, 600)}>Silence 10 min</button>
            <button onClick={() => void silence(alert.rule, 3600)}>Silence 1 h</button>
          </>
        )}
        {alert.silenced && <span class="muted">silenced</span>}
      </div>
    </>
  );
}

function AlertFacts({ alert, now_s }: { alert: Alert; now_s: number }) {
  return (
    <dl class="facts">
      <dt>since</dt>
      <dd>
        {seconds(alert.since_s)}{" "}
        <span class="muted">({seconds(Math.max(0, now_s - alert.since_s))} ago)</span>
      </dd>
      {alert.state === "pending" && alert.fires_in_s !== null && (
        <>
          <dt>fires in</dt>
          <dd>{seconds(alert.fires_in_s)}</dd>
        </>
      )}
      {alert.resolved_s !== null && (
        <>
          <dt>resolved</dt>
          <dd>{seconds(alert.resolved_s)}</dd>
        </>
      )}
      <dt>value</dt>
      <dd>
        {plain(alert.value)} <span class="muted">threshold {plain(alert.threshold)}</span>
      </dd>
      {Object.entries(alert.labels).map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
      {alert.inhibited_by && (
        <>
          <dt>inhibited by</dt>
          <dd>{alert.inhibited_by}</dd>
        </>
      )}
    </dl>
  );
}
