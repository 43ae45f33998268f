// How is a number written? Four significant digits at most, its unit after a thin space, never a bare "NaN".

const THIN = "\u2009";
const SI: [number, string][] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
export const NOTHING = "–";

export function si(value: number | null | undefined, unit = ""): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  for (const [size, sign] of SI) if (Math.abs(value) >= size) return unit.length > 2 ? `${short(value / size)}${THIN}${sign} ${unit}` : short(value / size) + THIN + sign + unit;
  return short(value) + (unit ? THIN + unit : "");
}

export function short(value: number): string {
  if (value === 0) return "0";
  if (Number.isInteger(value) && Math.abs(value) < 10000) return String(value);
  if (Math.abs(value) >= 1000) return Math.abs(value) < 1e7 ? String(Number(value.toPrecision(4))) : si(value);
  const text = Math.abs(value) < 0.001 ? value.toExponential(2) : value.toPrecision(4);
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const s = Math.abs(value);
  if (s < 5e-7) return `0${THIN}s`;
  if (s < 1e-3) return short(Math.round(value * 1e7) / 10) + THIN + "µs";
  if (s < 1) return short(Number((value * 1e3).toPrecision(3))) + THIN + "ms";
  if (s < 120) return short(Number(value.toPrecision(3))) + THIN + "s";
  if (s < 7200) return `${Math.floor(value / 60)}${THIN}min${THIN}${Math.round(value % 60)}${THIN}s`;
  return `${Math.floor(value / 3600)}${THIN}h${THIN}${Math.round((value % 3600) / 60)}${THIN}min`;
}

export function share(value: number | null | undefined): string {
  return value === null || value === undefined || !Number.isFinite(value) ? NOTHING : `${Math.round(value * 100)}${THIN}%`;
}

export function bytes(value: number | null | undefined): string {
  return si(value, "B");
}

export function plain(value: number | string | null | undefined): string {
  if (typeof value === "string") return value;
  return value === null || value === undefined || !Number.isFinite(value) ? NOTHING : short(value);
}

export function clockTime(unix_s: number, withMillis = false): string {
  const date = new Date(unix_s * 1000);
  const two = (n: number) => String(n).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withMillis ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

export const STATES: Record<string, { glyph: string; word: string; tone: string }> = {
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
export const stateOf = (name: string) => STATES[name] ?? { glyph: "?", word: name, tone: "calm" };
