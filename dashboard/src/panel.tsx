// Panels: a title, and on request what the panel shows, what a good value is, and what to do otherwise.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { phaseColour } from "./state";
import { percent, type StateLabel } from "./format";
import { PHASES } from "./types";

interface Props {
  title: string;
  shows: string;
  good: string;
  otherwise: string;
  children?: ComponentChildren;
  side?: ComponentChildren;
  class?: string;
  /** There is nothing to draw: the reason, in one line instead of the content. */
  empty?: ComponentChildren;
}

export function Panel({ title, shows, good, otherwise, children, side, class: extra = "", empty }: Props) {
  const [isOpen, setOpen] = useState(false);
  const isEmpty = !!empty;
  return (
    <section class={`panel ${isEmpty ? "is-empty" : ""} ${extra}`} aria-label={title}>
      <header>
        <h2>{title}</h2>
        <button
          class="info"
          aria-expanded={isOpen}
          aria-label={`About: ${title}`}
          onClick={() => setOpen(!isOpen)}
        >
          i
        </button>
        {isEmpty && <p class="muted">{empty}</p>}
        <span class="grow" />
        {side}
      </header>
      {isOpen && (
        <dl class="about">
          <dt>shows</dt>
          <dd>{shows}</dd>
          <dt>good</dt>
          <dd>{good}</dd>
          <dt>otherwise</dt>
          <dd>{otherwise}</dd>
        </dl>
      )}
      {!isEmpty && children}
    </section>
  );
}

export function State({ glyph, word, tone }: StateLabel) {
  return (
    <span class={`state ${tone}`}>
      <span aria-hidden="true">{glyph}</span> {word}
    </span>
  );
}

/** The value of a CSS variable in the current theme. */
export function cssColour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The largest phases first, as text. */
export function describePhases(phases: Record<string, number>, limit: number = PHASES.length): string {
  return PHASES.filter((phase) => (phases[phase] ?? 0) >= 0.005)
    .sort((a, b) => phases[b] - phases[a])
    .slice(0, limit)
    .map((phase) => `${phase} ${percent(phases[phase])}`)
    .join(", ");
}

/** One stacked bar with the shares of phases. */
export function PhaseBar({ phases }: { phases: Record<string, number> }) {
  const text = describePhases(phases) || "not measured yet";
  const shares = PHASES.map((phase) => (phases[phase] ?? 0) * 100);
  const offsets = shares.map((_, i) => shares.slice(0, i).reduce((sum, share) => sum + share, 0));
  return (
    <svg class="phases" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={text}>
      <title>{text}</title>
      {PHASES.map((phase, i) => (
        <rect key={phase} x={offsets[i]} width={shares[i]} height="10" fill={phaseColour(phase)} />
      ))}
    </svg>
  );
}
