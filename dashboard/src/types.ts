// Types of the HTTP API: the shape of /api/v1/snapshot, which src/paceline/monitoring builds.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export const PHASES = ["data", "forward", "backward", "delay", "wait", "codec", "comm", "apply"] as const;
export type Phase = (typeof PHASES)[number];

// step, start_s, then the phases in the order of PHASES (all in s), loss
export type StepRow = number[];

export interface Batch {
  seq: number;
  worker: string;
  rows: StepRow[];
}

export interface Lane {
  worker: string;
  rows: StepRow[];
}

export interface Frame {
  after: number;
  seq: number;
  now_s: number;
  steps: Batch[];
}

export interface RunEvent {
  seq: number;
  t_s: number;
  kind: string;
  who: string;
  glyph: string;
  text: string;
  fields: Record<string, Json>;
}

export interface WorkerRow {
  worker: string;
  rank: number | null;
  node: string | null;
  pid: number | null;
  state: string;
  step: number;
  lag: number;
  step_p50_s: number | null;
  relative_speed: number | null;
  phases: Record<string, number>;
  staleness_p95: number | null;
  restarts: number;
  memory_bytes: number | null;
  cpu_share: number | null;
  bytes_out_per_s: number | null;
  last_seen_s: number | null;
  samples_per_s: number | null;
  why_slow: string | null;
  gradient_norm: number | null;
  round_trip_s: number | null;
}

export interface Recovery {
  detect_s: number | null;
  stop_s?: number | null;
  reform_s: number | null;
  restore_s: number | null;
  resume_s: number | null;
  total_s: number | null;
}

export interface Generation {
  number: number;
  at_s: number;
  workers: string[];
  why: string;
  committed: number;
  recovery: Recovery | null;
}

export interface Alert {
  fingerprint: string;
  rule: string;
  severity: string;
  state: "pending" | "firing" | "resolved";
  since_s: number;
  active_s: number | null;
  resolved_s: number | null;
  fires_in_s: number | null;
  value: number | null;
  threshold: number | string | null;
  labels: Record<string, string>;
  summary: string;
  description: string;
  runbook: string;
  silenced: boolean;
  values?: [number, number][];
  inhibited_by: string | null;
  injected: boolean;
}

export type NodeId = number | string;

export interface RaftNode {
  node: NodeId | null; // null: unreachable
  address: string;
  name: string; // its id, also while it is unreachable
  is_reachable: boolean;
  since_s: number;
  role: string;
  term: number | null;
  commit: number | null;
  applied: number | null;
  lag: number | null;
  is_connected: boolean | null;
  round_trip_s?: number | null;
  roles?: [number, string][];
}

export type Term = [at_s: number, term: number, leader: NodeId | null];

export interface Coordinator {
  has_leader: boolean;
  leader: NodeId | null;
  term: number | null;
  commit: number | null;
  applied: number | null;
  voters: number | null;
  missing: number | NodeId[];
  terms?: Term[];
  leader_changes: number;
  round_trip_s: number | null;
  nodes: RaftNode[];
}

export interface Penalty {
  points: number;
  component: string;
  why: string;
}

export interface Health {
  score: number | null;
  words: string;
  arithmetic: string;
  penalties: Penalty[];
  components: Record<string, number | null>;
  cap: number | null;
}

export interface Host {
  node: string;
  cpu_share: number | null;
  memory_used_bytes: number | null;
  memory_size_bytes: number | null;
  disk_free_bytes: number | null;
  load: number | null;
}

export interface Gpu {
  node: string;
  gpu: number;
  name: string;
  utilization: number | null;
  memory_used_bytes: number | null;
  memory_size_bytes: number | null;
  temperature_c: number | null;
}

export type Metrics = Record<string, Json>;

export interface Evaluation {
  step: number;
  t_s: number;
  metrics: Metrics;
}

export interface RunSummary {
  run: string;
  mode: string | null;
  task: string | null;
  num_workers: number | null;
  device?: string | null;
  samples_per_s?: number | null;
  metrics?: Metrics | null; // of the finished model
}

export type LossPoint = [step: number, t_s: number, loss: number | string];

export interface Loss {
  last: number | string | null;
  final?: number | string | null;
  best: number | null;
  best_step: number | null;
  smooth: number | null;
  curve: LossPoint[];
  evaluations: Evaluation[];
}

export interface RunInfo {
  name: string;
  mode: string;
  task: string;
  launcher: string;
  transport: string;
  device: string;
  workers: number;
  shards: number;
  steps: number;
  batch: number;
  staleness_bound: number | null;
  is_elastic: boolean;
  uses_server: boolean;
  meets: boolean; // the strategy has a barrier in every step
  [more: string]: Json;
}

export interface Trend {
  series: string;
  slope_per_min: number | null;
  change_s: number | null;
  change_share: number | null;
  words: string;
}

export interface View {
  schema: string;
  seq: number;
  now_s: number;
  unix_s: number;
  t0_unix_s: number;
  state: string;
  run: RunInfo;
  progress: { step: number; steps: number; share: number; elapsed_s: number; eta_s: number | null };
  throughput: {
    samples_per_s: number | null;
    before_samples_per_s: number | null;
    change_share: number | null;
    bytes_per_s: number | null;
  };
  loss: Loss;
  staleness: { p50: number; p95: number; max: number } | null;
  wait_share: number | null;
  workers: WorkerRow[];
  counts: Record<string, number>;
  generations: Generation[];
  checkpoint: {
    last_s: number | null;
    age_s: number | null;
    step: number | null;
    bytes: number | null;
    written: number;
    failed: number;
    skipped: number;
    every: number;
  };
  coordinator: Coordinator | null;
  hosts: Host[];
  gpus: Gpu[];
  custom: { name: string; worker: string; value: number; step: number }[];
  health: Health;
  trends: Trend[];
  alerts: Alert[];
  events: RunEvent[];
}

export interface Server {
  run: string;
  is_replay: boolean;
  is_readonly: boolean;
  allows_faults: boolean;
  viewers: number;
  duration_s?: number;
}

export interface Snapshot {
  schema: string;
  server: Server;
  view: View;
}

const OVER = ["finished", "stopped", "failed"];

export function isOver(state: string | undefined): boolean {
  return state !== undefined && OVER.includes(state);
}
