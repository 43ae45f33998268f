// Is something wrong? Alerts that fire, wait or are over; from the header of every page.

import { useEffect, useRef } from "preact/hooks";
import { Against } from "./chart";
import { post } from "./connection";
import { drawer, mayAct, page, range, run, server, tell, view } from "./state";
import type { Alert } from "./types";
import { plain, seconds } from "./words";

const GLYPHS: Record<string, string> = { firing: "▲", pending: "◔", resolved: "✔" };

export function firing(): Alert[] {
  return (view.value?.alerts ?? []).filter((alert) => alert.state === "firing" && !alert.silenced && !alert.inhibited_by);
}

export function Drawer() {
  const now = view.value;
  const close = useRef<HTMLButtonElement>(null);
  const isOpen = drawer.value && !!now;
  useEffect(() => {
    if (!isOpen) return;
    close.current?.focus();
    return () => document.getElementById("alerts")?.focus();
  }, [isOpen]);
  if (!isOpen) return null;
  const order = { firing: 0, pending: 1, resolved: 2 };
  const all = [...now.alerts].sort((a, b) => order[a.state] - order[b.state] || b.since_s - a.since_s);
  return (
    <div class="drawer" role="dialog" aria-label="Alerts" onKeyDown={(e) => { if (e.key === "Escape") drawer.value = false; }}>
      <div class="head"><h2>Alerts</h2><span class="grow" /><button ref={close} onClick={() => { drawer.value = false; }}>Close</button></div>
      {!all.length && <p class="muted">Nothing is or was wrong in this run.</p>}
      <ul>{all.map((alert) => <li key={alert.fingerprint + alert.since_s} class={`alert ${alert.state} ${alert.severity}`} data-rule={alert.rule} data-state={alert.state}><One alert={alert} now_s={now.now_s} /></li>)}</ul>
    </div>
  );
}

function One({ alert, now_s }: { alert: Alert; now_s: number }) {
  const quiet = async (for_s: number) => {
    const { status, body } = await post("/api/v1/silences", { rule: alert.rule, for_s, run: run.value ?? server.value!.run });
    tell(status < 400 ? `${alert.rule} is silent for ${seconds(for_s)}` : String(body.error));
  };
  return (
    <>
      <h3><span aria-hidden="true">{GLYPHS[alert.state]}</span> {alert.rule} <span class="muted">{alert.severity}, {alert.state}</span>{alert.injected && <span title="caused by an injected fault"> ⚡ injected</span>}</h3>
      <p>{alert.summary}</p>
      <p class="muted">{alert.description}</p>
      <dl class="facts">
        <dt>since</dt><dd>{seconds(alert.since_s)} <span class="muted">({seconds(Math.max(0, now_s - alert.since_s))} ago)</span></dd>
        {alert.state === "pending" && alert.fires_in_s !== null && <><dt>fires in</dt><dd>{seconds(alert.fires_in_s)}</dd></>}
        {alert.resolved_s !== null && <><dt>resolved</dt><dd>{seconds(alert.resolved_s)}</dd></>}
        <dt>value</dt><dd>{plain(alert.value)} <span class="muted">threshold {plain(alert.threshold)}</span></dd>
        {Object.entries(alert.labels).map(([name, value]) => <><dt>{name}</dt><dd>{value}</dd></>)}
        {alert.inhibited_by && <><dt>muted by</dt><dd>{alert.inhibited_by}</dd></>}
      </dl>
      {typeof alert.threshold === "number" && <Against values={(alert.values ?? []).map(([, value]) => value)} limit={alert.threshold} label={`${alert.rule}: its value since it began, against ${plain(alert.threshold)} (dashed)`} />}
      <div class="row">
        <button onClick={() => { range.value = [Math.max(0, alert.since_s - 10), alert.since_s + 10]; page.value = "timeline"; drawer.value = false; }}>Show around this moment</button>
        {mayAct.value && alert.state !== "resolved" && !alert.silenced && <><button onClick={() => void quiet(600)}>Silence 10 min</button><button onClick={() => void quiet(3600)}>1 h</button></>}
        {alert.silenced && <span class="muted">silenced</span>}
      </div>
    </>
  );
}
