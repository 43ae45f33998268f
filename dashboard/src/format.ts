// Formatting of numbers and states: at most four significant digits, the unit after a thin space, never "NaN".

const THIN = "\u2009";
const SI_PREFIXES: [number, string][] = [
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];
export const NOTHING = "–";

type Maybe<T> = T | null | undefined;

function isKnown(value: Maybe<number>): value is number {
  return value !== null && value !== undefined && Number.isFinite(value);
}

export function si(value: Maybe<number>, unit = ""): string {
  if (!isKnown(value)) return NOTHING;
  for (const [size, prefix] of SI_PREFIXES) {
    if (Math.abs(value) < size) continue;
    const number = short(value / size);
    return unit.length > 2 ? `${number}${THIN}${prefix} ${unit}` : `${number}${THIN}${prefix}${unit}`;
  }
  return short(value) + (unit ? THIN + unit : "");
}

export function short(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 10000) return String(value);
  if (size >= 1e7) return si(value);
  if (size >= 1000) return String(Number(value.toPrecision(4)));
  const text = size < 0.001 ? value.toExponential(2) : value.toPrecision(4);
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

export function seconds(value: Maybe<number>): string {
  if (!isKnown(value)) return NOTHING;
  const size = Math.abs(value);
  if (size < 5e-7) return `0${THIN}s`;
  if (size < 1e-3) return `${short(Math.round(value * 1e7) / 10)}${THIN}µs`;
  if (size < 1) return `${short(Number((value * 1e3).toPrecision(3)))}${THIN}ms`;
  if (size < 120) return `${short(Number(value.toPrecision(3)))}${THIN}s`;
  if (size < 7200) return `${Math.floor(value / 60)}${THIN}min${THIN}${Math.round(value % 60)}${THIN}s`;
  return `${Math.floor(value / 3600)}${THIN}h${THIN}${Math.round((value % 3600) / 60)}${THIN}min`;
}

export function percent(value: Maybe<number>, digits = 0): string {
  return isKnown(value) ? `${Number((value * 100).toFixed(digits))}${THIN}%` : NOTHING;
}

export function bytes(value: Maybe<number>): string {
  return si(value, "B");
}

export function plain(value: Maybe<number | string>): string {
  if (typeof value === "string") return value;
  return isKnown(value) ? short(value) : NOTHING;
}

export function plural(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

export function clockTime(unix_s: number): string {
  const date = new Date(unix_s * 1000);
  const parts = [date.getHours(), date.getMinutes(), date.getSeconds()];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

export interface StateLabel {
  glyph: string;
  word: string;
  tone: string;
}

const STATES: Record<string, StateLabel> = {
  training: { glyph: "●", word: "training", tone: "good" },
  starting: { glyph: "◐", word: "starting", tone: "calm" },
  paused: { glyph: "❚❚", word: "paused", tone: "calm" },
  slow: { glyph: "▲", word: "slow", tone: "warn" },
  lost: { glyph: "✕", word: "dead", tone: "bad" },
  failed: { glyph: "✕", word: "failed", tone: "bad" },
  stopping: { glyph: "◐", word: "stopping", tone: "calm" },
  stopped: { glyph: "■", word: "stopped", tone: "calm" },
  finished: { glyph: "✔", word: "finished", tone: "calm" },
};

export function stateLabel(name: string): StateLabel {
  return STATES[name] ?? { glyph: "?", word: name, tone: "calm" };
}
