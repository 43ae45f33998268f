// What is around every picture? A title, and three lines for whoever asks: what, what is good, what to do if not.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

interface Props { title: string; what: string; good: string; todo: string; children: ComponentChildren; side?: ComponentChildren; class?: string; id?: string }

export function Panel({ title, what, good, todo, children, side, class: extra = "", id }: Props) {
  const [open, setOpen] = useState(false);
  return (
    <section class={`panel ${extra}`} aria-label={title} id={id}>
      <header>
        <h2>{title}</h2>
        <button class="info" aria-expanded={open} aria-label={`About: ${title}`} onClick={() => setOpen(!open)}>i</button>
        <span class="grow" />
        {side}
      </header>
      {open && <dl class="about"><dt>shows</dt><dd>{what}</dd><dt>good</dt><dd>{good}</dd><dt>if not</dt><dd>{todo}</dd></dl>}
      {children}
    </section>
  );
}

export function State({ glyph, word, tone }: { glyph: string; word: string; tone: string }) {
  return <span class={`state ${tone}`}><span aria-hidden="true">{glyph}</span> {word}</span>;
}
