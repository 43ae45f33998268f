// Coordinator page: the Raft nodes, the generations of the run, and the actions on it.

import { signal } from "@preact/signals";
import { ActionList, hasActions, NO_ACTIONS } from "../actions";
import { pauseAt } from "../connection";
import { NOTHING, plain, plural, seconds, short } from "../format";
import { lessonPages, type LessonPage } from "../lesson";
import { Panel } from "../panel";
import { PartitionForm } from "../partitions";
import { byNumber } from "../steps";
import { errorColour, events, isReplay, phaseColour, view } from "../state";
import type { Coordinator as CoordinatorInfo, Generation, NodeId, RaftNode, Term, View } from "../types";

const ROLE_GLYPHS: Record<string, string> = {
  leader: "★",
  candidate: "◐",
  "pre-candidate": "◐",
  follower: "○",
  learner: "◌",
};
const DOWN_GLYPH = "✕";
const LEGEND_ROLES = ["leader", "candidate", "follower", "down"];
const STAGES = ["detect", "stop", "reform", "restore", "resume"] as const;
const SUPERVISOR_KINDS = ["supervision", "worker_lost", "generation_lost"];
const MAX_SUPERVISOR_EVENTS = 10;
const MAX_GENERATIONS = 12;
const MAX_ACTIONS = 6;
const WIDTH = 1000; // of the time axes, in SVG units

const lessonIndex = signal<number | null>(null); // null: the lesson is closed

export function Coordinator() {
  const now = view.value!;
  const pages = lessonPages(now);
  const page = lessonIndex.value === null ? null : pages[Math.min(lessonIndex.value, pages.length - 1)];
  const highlight = (panel: LessonPage["panel"]) => (page?.panel === panel ? "highlighted" : "");
  return (
    <div class="coordinator">
      <Lesson pages={pages} page={page} />
      <div class="column">
        <Panel
          class={highlight("nodes")}
          title="Nodes"
          shows="the coordinator's Raft nodes: the leader, and the position of each log"
          good="one ★, all nodes connected, the same commit index"
          otherwise="`paceline coordinator status` queries each node"
          empty={now.coordinator ? "" : whyNoCoordinator(now)}
        >
          {now.coordinator && <RaftNodes coordinator={now.coordinator} />}
        </Panel>
        <Panel
          class={highlight("actions")}
          title="Actions"
          shows="actions of operators, and the progress of each"
          good="effect seen"
          otherwise="refused and failed state the reason"
          empty={hasActions() ? "" : NO_ACTIONS}
        >
          <ActionList limit={MAX_ACTIONS} />
        </Panel>
      </div>
      <div class="column">
        <Panel
          class={highlight("generations")}
          title="Generations"
          shows="the sets of workers that trained together, in order; below, the time of each recovery"
          good="few generations, and recoveries of a second or less"
          otherwise="a long detect means that a lease expired; a long restore means that much state was copied"
          empty={now.generations.length ? "" : whyNoGenerations(now)}
        >
          <GenerationAxis now={now} />
          <GenerationTable generations={now.generations} />
        </Panel>
        <SupervisorPanel />
      </div>
    </div>
  );
}

function whyNoCoordinator(now: View): string {
  if (now.run.is_elastic) return "No sample of the coordinator yet.";
  return "Only elastic runs have a coordinator (--elastic).";
}

function whyNoGenerations(now: View): string {
  return now.run.is_elastic ? "No generation yet." : "Only elastic runs have generations.";
}

/** In a recording, each page moves to the time that it describes. */
function Lesson({ pages, page }: { pages: LessonPage[]; page: LessonPage | null }) {
  const open = (index: number) => {
    lessonIndex.value = index;
    const { at_s } = pages[index];
    if (isReplay.value && at_s !== null) pauseAt(at_s);
  };
  const close = () => {
    lessonIndex.value = null;
  };
  if (page === null) {
    return (
      <p class="lesson row">
        <button id="lesson" onClick={() => open(0)}>
          Lesson: the coordinator in this run
        </button>
      </p>
    );
  }
  const index = pages.indexOf(page);
  return (
    <section class="panel lesson" aria-label="Lesson">
      <div role="status">
        <h2>
          {index + 1} of {pages.length}: {page.title}
        </h2>
        <p>{page.text}</p>
      </div>
      <div class="row">
        <button disabled={index === 0} onClick={() => open(index - 1)}>
          Previous
        </button>
        <button disabled={index === pages.length - 1} onClick={() => open(index + 1)}>
          Next
        </button>
        <button onClick={() => open(0)}>Restart</button>
        <button onClick={close}>Close</button>
      </div>
    </section>
  );
}

function SupervisorPanel() {
  const log = events.value
    .filter((event) => SUPERVISOR_KINDS.includes(event.kind))
    .slice(-MAX_SUPERVISOR_EVENTS)
    .reverse();
  return (
    <Panel
      title="Supervisor"
      shows="decisions of the supervisor, newest first"
      good="none"
      otherwise="read the newest entry"
      empty={log.length ? "" : "No decisions yet."}
    >
      <ul class="plain">
        {log.map((event) => (
          <li key={event.seq}>
            {event.text}{" "}
            <span class="muted">
              {event.who}, {seconds(event.t_s)}
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function describeLeader(leader: NodeId | null): string {
  return leader === null ? "no leader" : `node-${leader} leads`;
}

/** A node keeps its name while it is unreachable; before its id is known, it has its address. */
export function nodeName(node: RaftNode): string {
  return node.name === node.address ? node.address : `node-${node.name}`;
}

function nodeGlyph(node: RaftNode): string {
  return node.is_reachable ? (ROLE_GLYPHS[node.role] ?? DOWN_GLYPH) : DOWN_GLYPH;
}

function nodeRole(node: RaftNode): string {
  return node.is_reachable ? node.role : `down since ${seconds(node.since_s)}`;
}

function RaftNodes({ coordinator }: { coordinator: CoordinatorInfo }) {
  const nodes = [...coordinator.nodes].sort((a, b) => byNumber(nodeName(a), nodeName(b)));
  const leader = coordinator.has_leader
    ? `${describeLeader(coordinator.leader)} in term ${coordinator.term}`
    : "no leader";
  const facts = [
    `commit index ${plain(coordinator.commit)}`,
    `applied ${plain(coordinator.applied)}`,
    plural(coordinator.leader_changes, "leader change"),
    `round trip ${seconds(coordinator.round_trip_s)}`,
  ];
  return (
    <>
      <p data-leader={String(coordinator.leader)}>
        <strong>{leader}</strong>; {facts.join("; ")}
      </p>
      {nodes.length > 1 && <Topology nodes={nodes} label={`${plural(nodes.length, "node")}; ${leader}`} />}
      <TermAxis terms={coordinator.terms ?? []} now_s={view.value!.now_s} />
      <RoleAxis nodes={nodes} now_s={view.value!.now_s} />
      <NodeTable nodes={nodes} />
      <PartitionForm coordinator={coordinator} />
    </>
  );
}

function Topology({ nodes, label }: { nodes: RaftNode[]; label: string }) {
  const maxCommit = Math.max(1, ...nodes.map((node) => node.commit ?? 0));
  const leader = nodes.findIndex((node) => node.role === "leader");
  const positions = nodes.map((_, i) => nodePosition(i, nodes.length));
  return (
    <svg class="raft" viewBox="0 0 300 190" role="img" aria-label={label}>
      {leader >= 0 &&
        nodes.map((node, i) => {
          if (i === leader) return null;
          return (
            <line
              key={`line ${node.address}`}
              class={node.is_connected === false ? "cut" : "wire"}
              x1={positions[leader][0]}
              y1={positions[leader][1]}
              x2={positions[i][0]}
              y2={positions[i][1]}
            />
          );
        })}
      {nodes.map((node, i) => (
        <NodeSymbol
          key={node.address}
          node={node}
          x={positions[i][0]}
          y={positions[i][1]}
          share={(node.commit ?? 0) / maxCommit}
        />
      ))}
    </svg>
  );
}

function nodePosition(index: number, count: number): [number, number] {
  const angle = (index / count) * 2 * Math.PI - Math.PI / 2;
  return [150 + 95 * Math.cos(angle), 90 + 60 * Math.sin(angle)];
}

function NodeSymbol({ node, x, y, share }: { node: RaftNode; x: number; y: number; share: number }) {
  return (
    <g class={`node ${node.is_reachable ? node.role : "down"}`} data-node={nodeName(node)}>
      <title>{`${nodeName(node)}: ${nodeRole(node)}`}</title>
      <circle cx={x} cy={y} r="26" />
      <text x={x} y={y + 1} text-anchor="middle" class="glyph">
        {nodeGlyph(node)}
      </text>
      <text x={x} y={y + 14} text-anchor="middle" class="name">
        {nodeName(node)}
      </text>
      <rect x={x - 22} y={y + 29} width="44" height="5" class="track" />
      <rect x={x - 22} y={y + 29} width={44 * Math.min(1, share)} height="5" class="log" />
    </g>
  );
}

function NodeTable({ nodes }: { nodes: RaftNode[] }) {
  const headers = ["node", "role", "term", "commit", "applied", "lag", "connected", "round trip", "address"];
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of nodes">
      <table>
        <thead>
          <tr>
            {headers.map((header) => (
              <th scope="col" key={header}>
                {header}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {nodes.map((node) => (
            <tr key={node.address} data-node-row={nodeName(node)}>
              <th scope="row">{nodeName(node)}</th>
              <td>
                <span aria-hidden="true">{nodeGlyph(node)}</span> {nodeRole(node)}
              </td>
              <td>{plain(node.term)}</td>
              <td>{plain(node.commit)}</td>
              <td>{plain(node.applied)}</td>
              <td>{plain(node.lag)}</td>
              <td>{yesNo(node.is_connected)}</td>
              <td>{seconds(node.round_trip_s)}</td>
              <td>{node.address}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function parity(index: number): string {
  return index % 2 ? "odd" : "even";
}

function yesNo(value: boolean | null): string {
  if (value === null) return NOTHING;
  return value ? "yes" : "no";
}

interface Segment {
  start_s: number;
  class: string;
  title: string;
}

/** Segments on a time axis, each until the next one. */
function Segments({
  segments,
  start_s,
  end_s,
  label,
  gap = 0,
}: {
  segments: Segment[];
  start_s: number;
  end_s: number;
  label: string;
  gap?: number;
}) {
  const x = (t_s: number) => ((t_s - start_s) / (end_s - start_s)) * WIDTH;
  return (
    <svg
      class="generations terms"
      viewBox={`0 0 ${WIDTH} 22`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
    >
      {segments.map((segment, i) => {
        const left = x(segment.start_s);
        const right = x(segments[i + 1]?.start_s ?? end_s);
        return (
          <rect
            key={`${segment.start_s} ${segment.title}`}
            x={left}
            y="3"
            width={Math.max(2, right - left - gap)}
            height="16"
            class={segment.class}
          >
            <title>{segment.title}</title>
          </rect>
        );
      })}
    </svg>
  );
}

function TermAxis({ terms, now_s }: { terms: Term[]; now_s: number }) {
  if (!terms.length) return null;
  const start_s = terms[0][0];
  const segments = terms.map(([at_s, term, leader], i) => ({
    start_s: at_s,
    class: leader === null ? "recovering" : parity(i),
    title: `term ${term} from ${seconds(at_s)}: ${describeLeader(leader)}`,
  }));
  return (
    <>
      <h3>Terms</h3>
      <Segments
        segments={segments}
        start_s={start_s}
        end_s={Math.max(now_s, start_s + 0.1)}
        label={segments.map((segment) => segment.title).join("; ")}
        gap={2}
      />
    </>
  );
}

/** The role of each node over time; the glyph shows its current role. */
function RoleAxis({ nodes, now_s }: { nodes: RaftNode[]; now_s: number }) {
  const known = nodes.filter((node) => node.roles?.length);
  if (!known.length) return null;
  const start_s = Math.min(...known.map((node) => node.roles![0][0]));
  const end_s = Math.max(now_s, start_s + 0.1);
  return (
    <>
      <h3>Roles</h3>
      <ul class="roles">
        {known.map((node) => {
          const segments = node.roles!.map(([at_s, role]) => ({
            start_s: at_s,
            class: `is-${role}`,
            title: `${role} from ${seconds(at_s)}`,
          }));
          const text = segments.map((segment) => segment.title).join(", ");
          return (
            <li key={node.address}>
              <span>
                <span aria-hidden="true">{nodeGlyph(node)}</span> {nodeName(node)}
              </span>
              <Segments
                segments={segments}
                start_s={start_s}
                end_s={end_s}
                label={`${nodeName(node)}: ${text}`}
              />
            </li>
          );
        })}
      </ul>
      <p class="muted legend">
        {LEGEND_ROLES.map((role) => (
          <span key={role}>
            <i class={`swatch is-${role}`} /> {role}
          </span>
        ))}
      </p>
    </>
  );
}

function GenerationAxis({ now }: { now: View }) {
  const { generations } = now;
  const newest = generations[generations.length - 1];
  const start_s = generations[0].at_s;
  const end_s = Math.max(now.now_s, newest.at_s + 0.1);
  const x = (t_s: number) => ((t_s - start_s) / (end_s - start_s)) * WIDTH;
  const size = plural(newest.workers.length, "worker");
  return (
    <svg
      class="generations"
      viewBox={`0 0 ${WIDTH} 46`}
      preserveAspectRatio="none"
      role="img"
      aria-label={`${plural(generations.length, "generation")}, the newest with ${size}`}
    >
      {generations.map((generation, i) => {
        const left = x(generation.at_s);
        const right = x(generations[i + 1]?.at_s ?? end_s);
        const recoveryStart = x(generation.at_s - (generation.recovery?.total_s ?? 0));
        return (
          <g key={generation.number}>
            <title>{`generation ${generation.number}: ${generation.workers.join(", ")}; ${generation.why}`}</title>
            <rect x={left} y="6" width={Math.max(2, right - left - 2)} height="26" class={parity(i)} />
            {generation.recovery && (
              <rect
                x={Math.max(0, recoveryStart)}
                y="34"
                width={Math.max(3, left - recoveryStart)}
                height="8"
                class="recovering"
              />
            )}
          </g>
        );
      })}
    </svg>
  );
}

function GenerationTable({ generations }: { generations: Generation[] }) {
  const stages = "detect · stop · re-form · restore · resume";
  const headers = ["generation", "start", "workers", "from step", "recovery", stages, "reason"];
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of generations">
      <table>
        <thead>
          <tr>
            {headers.map((header) => (
              <th scope="col" key={header}>
                {header}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {generations
            .slice(-MAX_GENERATIONS)
            .reverse()
            .map((generation) => (
              <GenerationRow key={generation.number} generation={generation} />
            ))}
        </tbody>
      </table>
    </div>
  );
}

function GenerationRow({ generation }: { generation: Generation }) {
  const { number, at_s, workers, committed, recovery, why } = generation;
  return (
    <tr data-generation={number} data-recovery={recovery?.total_s ?? ""}>
      <th scope="row">{number}</th>
      <td>{seconds(at_s)}</td>
      <td>{workers.length}</td>
      <td>{plain(committed)}</td>
      <td>{recovery ? seconds(recovery.total_s) : NOTHING}</td>
      <td>{recovery ? <RecoveryStages generation={generation} /> : NOTHING}</td>
      <td class="why">{why}</td>
    </tr>
  );
}

function stageColours(): string[] {
  return [
    errorColour(),
    phaseColour("wait"),
    phaseColour("comm"),
    phaseColour("backward"),
    phaseColour("apply"),
  ];
}

function RecoveryStages({ generation }: { generation: Generation }) {
  const durations = STAGES.map((name) => generation.recovery![`${name}_s`] ?? 0);
  const total = durations.reduce((sum, duration) => sum + duration, 0) || 1;
  const offsets = durations.map((_, i) => durations.slice(0, i).reduce((sum, duration) => sum + duration, 0));
  const milliseconds = durations.map((duration) => short(Number((duration * 1000).toPrecision(2))));
  const text = STAGES.map((name, i) => `${name} ${milliseconds[i]} ms`).join(", ");
  const colours = stageColours();
  return (
    <span class="stages" title={text}>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={text}>
        {durations.map((duration, i) => (
          <rect
            key={STAGES[i]}
            x={(offsets[i] / total) * 100}
            width={(duration / total) * 100}
            height="8"
            fill={colours[i]}
          />
        ))}
      </svg>{" "}
      {milliseconds.join(" · ")} ms
    </span>
  );
}
