// How does what is shown leave the page? As a file: a table, a picture, or the page itself in one file without scripts.

export function save(name: string, what: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(what);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // some browsers read it only after the click
}

export function saveCsv(name: string, rows: (string | number | null | undefined)[][]): void {
  save(name, new Blob([rows.map((row) => row.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" }));
}

/** A text that a spreadsheet would take for a formula is made harmless; a number stays a number. */
function cell(value: string | number | null | undefined): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function saveJson(name: string, what: unknown): void {
  save(name, new Blob([JSON.stringify(what, null, 1)], { type: "application/json" }));
}

/** Several canvases under each other, with a line of text above. */
export function savePng(name: string, title: string, canvases: HTMLCanvasElement[]): void {
  const style = getComputedStyle(document.documentElement);
  const scale = devicePixelRatio || 1, gap = 10 * scale, head = 24 * scale;
  const whole = document.createElement("canvas");
  whole.width = Math.max(1, ...canvases.map((c) => c.width)) + 2 * gap;
  whole.height = head + canvases.reduce((sum, c) => sum + c.height + gap, gap);
  const c = whole.getContext("2d", { alpha: false })!;
  c.fillStyle = style.getPropertyValue("--paper").trim();
  c.fillRect(0, 0, whole.width, whole.height);
  c.fillStyle = style.getPropertyValue("--ink").trim();
  c.font = `${13 * scale}px system-ui, sans-serif`;
  c.fillText(title, gap, head - 6 * scale);
  let y = head + gap / 2;
  for (const one of canvases) { c.drawImage(one, gap, y); y += one.height + gap; }
  whole.toBlob((blob) => { if (blob) save(name, blob); }, "image/png");
}

/** One file that needs no server: the styles inside, canvases as pictures, nothing to press. */
export function saveHtml(name: string, title: string, part: HTMLElement): void {
  const copy = part.cloneNode(true) as HTMLElement;
  const drawn = [...part.querySelectorAll("canvas")];
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    const picture = document.createElement("img");
    picture.src = drawn[i].toDataURL("image/png");
    picture.alt = canvas.parentElement?.closest("[aria-label]")?.getAttribute("aria-label") ?? "";
    picture.width = drawn[i].clientWidth;
    canvas.replaceWith(picture);
  });
  copy.querySelectorAll("button, select, input, .no-print").forEach((element) => element.remove());
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText)).join("\n");
  const heading = document.createElement("h1");
  heading.textContent = title; // so that it is text, whatever it holds
  const head = `<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">`;
  const theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
  const text = `<!doctype html>\n<html lang="en" data-theme="${theme}"><head>${head}<title>${heading.innerHTML}</title><style>${rules}</style></head><body><main>${heading.outerHTML}${copy.outerHTML}</main></body></html>\n`;
  save(name, new Blob([text], { type: "text/html" }));
}
