// Who decides, and what was decided?

import { signal } from "@preact/signals";
import { Actions } from "../acting";
import { seek } from "../connection";
import { Cutting } from "../cutting";
import { lesson, type Page } from "../lesson";
import { Panel } from "../panel";
import { events, isReplay, phaseColour, playing, view } from "../state";
import type { Coordinator as Nodes, Generation, RaftNode, View } from "../types";
import { NOTHING, plain, seconds, short } from "../words";

const ROLES: Record<string, string> = { leader: "★", candidate: "◐", "pre-candidate": "◐", follower: "○", learner: "◌" };
const STAGES = ["detect", "stop", "reform", "restore", "resume"] as const;
const COLOURS = ["error", "wait", "comm", "backward", "checkpoint"]; // of the stages

const taught = signal<number | null>(null); // page of the lesson; null: there is none

export function Coordinator() {
  const now = view.value!;
  const pages = lesson(now);
  const page = taught.value === null ? null : pages[Math.min(taught.value, pages.length - 1)];
  const pointed = (part: Page["part"]) => (page?.part === part ? "pointed" : "");
  return (
    <div class="coordinator">
      <Lesson pages={pages} page={page} />
      <Panel class={pointed("nodes")} title="Nodes" what="the coordinator's real nodes: who leads, how far each log is" good="one ★, all connected, the same commit" todo="`paceline coordinator status` asks each of them">
        {now.coordinator ? <Raft found={now.coordinator} /> : <p class="muted">{now.run.is_elastic ? "The run's log says nothing of its coordinator yet." : "This run needs no coordinator: its workers are those it began with. Begin it with --elastic to have one."}</p>}
      </Panel>
      <Panel class={pointed("generations")} title="Generations" what="each crew that trained together, one after the other; coloured: the time that recovering took, by stage" good="few, and recoveries of a second or less" todo="a long detect means a lease ran out; a long restore means much state travelled">
        <Line now={now} />
        <Table generations={now.generations} />
      </Panel>
      <Panel class={pointed("asked")} title="Asked of the run" what="what operators did, and how far it has come" good="effect seen" todo="refused and failed say why"><Actions most={6} /></Panel>
      <Panel title="What was said" what="what the supervisor decided, in its words" good="nothing" todo="read the newest">
        <Said />
      </Panel>
    </div>
  );
}

/** In a recording each page of it shows the moment that it speaks of. */
function Lesson({ pages, page }: { pages: Page[]; page: Page | null }) {
  const turn = (to: number) => {
    taught.value = to;
    const at = pages[to].at_s;
    if (isReplay.value && at !== null) { playing.value = false; seek(at); }
  };
  if (page === null) return <p class="lesson row"><button id="lesson" onClick={() => turn(0)}>Lesson: what happens here?</button></p>;
  const number = pages.indexOf(page);
  return (
    <section class="panel lesson" aria-label="Lesson">
      <div role="status"><h2>{number + 1} of {pages.length}: {page.title}</h2><p>{page.text}</p></div>
      <div class="row">
        <button disabled={number === 0} onClick={() => turn(number - 1)}>Previous</button>
        <button disabled={number === pages.length - 1} onClick={() => turn(number + 1)}>Next</button>
        <button onClick={() => turn(0)}>Restart</button>
        <button onClick={() => { taught.value = null; }}>Close</button>
      </div>
    </section>
  );
}

function Said() {
  const said = events.value.filter((e) => ["supervision", "worker_lost", "generation_lost"].includes(e.kind)).slice(-10).reverse();
  if (!said.length) return <p class="muted">Nothing yet.</p>;
  return <ul class="plain">{said.map((e) => <li key={e.seq}>{e.text} <span class="muted">{e.who}, {seconds(e.t_s)}</span></li>)}</ul>;
}

function Raft({ found }: { found: Nodes }) {
  const nodes = found.nodes;
  const most = Math.max(1, ...nodes.map((n) => n.commit ?? 0));
  const place = (i: number): [number, number] => {
    if (nodes.length === 1) return [150, 80];
    const angle = (i / nodes.length) * 2 * Math.PI - Math.PI / 2;
    return [150 + 95 * Math.cos(angle), 90 + 60 * Math.sin(angle)];
  };
  const leader = nodes.findIndex((n) => n.role === "leader");
  const words = found.has_leader ? `node ${found.leader} leads in term ${found.term}` : "nobody leads";
  return (
    <>
      <p data-leader={String(found.leader)}><strong>{words}</strong>; commit {plain(found.commit)}, applied {plain(found.applied)}; {found.leader_changes} {found.leader_changes === 1 ? "change" : "changes"} of leader; answers in {seconds(found.round_trip_s)}</p>
      <svg class="raft" viewBox="0 0 300 190" role="img" aria-label={`${nodes.length} nodes; ${words}`}>
        {leader >= 0 && nodes.map((n, i) => i !== leader && <line key={`l${n.address}`} class={n.is_connected === false ? "cut" : "wire"} x1={place(leader)[0]} y1={place(leader)[1]} x2={place(i)[0]} y2={place(i)[1]} />)}
        {nodes.map((node, i) => <Node key={node.address} node={node} x={place(i)[0]} y={place(i)[1]} share={(node.commit ?? 0) / most} />)}
      </svg>
      <Terms terms={found.terms ?? []} now_s={view.value!.now_s} />
      <Roles nodes={nodes} now_s={view.value!.now_s} />
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of nodes"><table>
        <thead><tr>{["node", "role", "term", "commit", "applied", "lag", "connected", "round trip", "address"].map((h) => <th scope="col" key={h}>{h}</th>)}</tr></thead>
        <tbody>{nodes.map((n) => <tr key={n.address}><th scope="row">{n.name}</th><td><span aria-hidden="true">{glyph(n)}</span> {n.is_reachable ? n.role : `unreachable since ${seconds(n.since_s)}`}</td><td>{plain(n.term)}</td><td>{plain(n.commit)}</td><td>{plain(n.applied)}</td><td>{plain(n.lag)}</td><td>{n.is_connected === null ? NOTHING : n.is_connected ? "yes" : "no"}</td><td>{seconds(n.round_trip_s)}</td><td>{n.address}</td></tr>)}</tbody>
      </table></div>
      <Cutting found={found} />
    </>
  );
}

/** Who led when: one stretch for each term. */
function Terms({ terms, now_s }: { terms: [number, number, number | string | null][]; now_s: number }) {
  if (!terms.length) return null;
  const start = terms[0][0], end = Math.max(now_s, start + 0.1);
  const x = (t: number) => ((t - start) / (end - start)) * 1000;
  const words = terms.map(([t, term, leader]) => `term ${term} from ${seconds(t)}: ${leader === null ? "nobody leads" : `node ${leader}`}`);
  return (
    <>
      <h3>Terms</h3>
      <svg class="generations terms" viewBox="0 0 1000 22" preserveAspectRatio="none" role="img" aria-label={words.join("; ")}>
        {terms.map(([t, term, leader], i) => <rect key={`${term}-${t}`} x={x(t)} y="3" width={Math.max(2, x(terms[i + 1]?.[0] ?? end) - x(t) - 2)} height="16" class={leader === null ? "recovering" : i % 2 ? "odd" : "even"}><title>{words[i]}</title></rect>)}
      </svg>
    </>
  );
}

/** What each node was, when: one row for each, coloured by its role; the glyph says where it ends. */
function Roles({ nodes, now_s }: { nodes: RaftNode[]; now_s: number }) {
  const known = nodes.filter((node) => node.roles?.length);
  if (!known.length) return null;
  const start = Math.min(...known.map((node) => node.roles![0][0])), end = Math.max(now_s, start + 0.1);
  const x = (t: number) => ((t - start) / (end - start)) * 1000;
  return (
    <>
      <h3>Roles</h3>
      <ul class="roles">{known.map((node) => {
        const roles = node.roles!, words = roles.map(([t, role]) => `${role} from ${seconds(t)}`);
        return <li key={node.address}><span><span aria-hidden="true">{glyph(node)}</span> {node.name}</span><svg class="generations terms" viewBox="0 0 1000 22" preserveAspectRatio="none" role="img" aria-label={`node ${node.name}: ${words.join(", ")}`}>
          {roles.map(([t, role], i) => <rect key={t} x={x(t)} y="3" width={Math.max(2, x(roles[i + 1]?.[0] ?? end) - x(t))} height="16" class={`is-${role}`}><title>{words[i]}</title></rect>)}
        </svg></li>;
      })}</ul>
      <p class="muted legend"><span><i class="swatch is-leader" /> leader</span> <span><i class="swatch is-candidate" /> candidate</span> <span><i class="swatch is-follower" /> follower</span> <span><i class="swatch is-down" /> down</span></p>
    </>
  );
}

const glyph = (node: RaftNode) => ROLES[node.role] ?? "✕";

function Node({ node, x, y, share }: { node: RaftNode; x: number; y: number; share: number }) {
  return (
    <g class={`node ${node.role}`}>
      <circle cx={x} cy={y} r="22" />
      <text x={x} y={y + 1} text-anchor="middle" class="glyph">{glyph(node)}</text>
      <text x={x} y={y + 14} text-anchor="middle" class="name">{node.name}</text>
      <rect x={x - 22} y={y + 26} width="44" height="5" class="track" />
      <rect x={x - 22} y={y + 26} width={44 * Math.min(1, share)} height="5" class="log" />
    </g>
  );
}

function Line({ now }: { now: View }) {
  const all = now.generations;
  if (!all.length) return <p class="muted">{now.run.is_elastic ? "None yet." : "Only elastic runs have generations."}</p>;
  const end = Math.max(now.now_s, all[all.length - 1].at_s + 0.1), start = all[0].at_s;
  const x = (t: number) => ((t - start) / (end - start || 1)) * 1000;
  return (
    <svg class="generations" viewBox="0 0 1000 46" preserveAspectRatio="none" role="img" aria-label={`${all.length} generations, the newest with ${all[all.length - 1].workers.length} workers`}>
      {all.map((g, i) => <g key={g.number}><title>{`generation ${g.number}: ${g.workers.join(", ")}; ${g.why}`}</title>
        <rect x={x(g.at_s)} y="6" width={Math.max(2, x(all[i + 1]?.at_s ?? end) - x(g.at_s) - 2)} height="26" class={i % 2 ? "odd" : "even"} />
        {g.recovery && <rect x={Math.max(0, x(g.at_s - (g.recovery.total_s ?? 0)))} y="34" width={Math.max(3, x(g.at_s) - x(g.at_s - (g.recovery.total_s ?? 0)))} height="8" class="recovering" />}
      </g>)}
    </svg>
  );
}

function Table({ generations }: { generations: Generation[] }) {
  const shown = generations.slice(-12).reverse();
  if (!shown.length) return null;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of generations"><table class="gens">
      <thead><tr>{["generation", "began", "workers", "from step", "recovery", "detect · stop · re-form · restore · resume", "why"].map((h) => <th scope="col" key={h}>{h}</th>)}</tr></thead>
      <tbody>{shown.map((g) => (
        <tr key={g.number} data-generation={g.number} data-recovery={g.recovery?.total_s ?? ""}>
          <th scope="row">{g.number}</th><td>{seconds(g.at_s)}</td><td>{g.workers.length}</td><td>{plain(g.committed)}</td>
          <td>{g.recovery ? seconds(g.recovery.total_s) : NOTHING}</td><td>{g.recovery ? <Stages generation={g} /> : NOTHING}</td><td class="why">{g.why}</td>
        </tr>))}
      </tbody>
    </table></div>
  );
}

function Stages({ generation }: { generation: Generation }) {
  const found = STAGES.map((name) => generation.recovery![`${name}_s`] ?? 0);
  const whole = found.reduce((a, b) => a + b, 0) || 1;
  let x = 0;
  const ms = found.map((value) => short(Number((value * 1000).toPrecision(2))));
  const text = STAGES.map((name, i) => `${name} ${ms[i]} ms`).join(", ");
  return <span class="stages" title={text}><svg viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={text}>{found.map((value, i) => { const w = (value / whole) * 100; const rect = <rect key={i} x={x} width={w} height="8" fill={phaseColour(COLOURS[i])} />; x += w; return rect; })}</svg> {ms.join(" · ")} ms</span>;
}
