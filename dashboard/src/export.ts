// Export of what is shown, as a file: CSV, JSON, PNG, or one HTML file without scripts.

export type Cell = string | number | null | undefined;

function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // some browsers read it only after the click
}

export function downloadCsv(name: string, rows: Cell[][]): void {
  const lines = rows.map((row) => row.map(csvCell).join(","));
  download(name, new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
}

/** A text that a spreadsheet would run as a formula is escaped; a number stays a number. */
function csvCell(value: Cell): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function downloadJson(name: string, value: unknown): void {
  download(name, new Blob([JSON.stringify(value, null, 1)], { type: "application/json" }));
}

/** The canvases below each other, under a line of text. */
export function downloadPng(name: string, title: string, canvases: HTMLCanvasElement[]): void {
  const style = getComputedStyle(document.documentElement);
  const scale = devicePixelRatio || 1;
  const gap = 10 * scale;
  const header = 24 * scale;
  const image = document.createElement("canvas");
  image.width = Math.max(1, ...canvases.map((canvas) => canvas.width)) + 2 * gap;
  image.height = header + canvases.reduce((sum, canvas) => sum + canvas.height + gap, gap);
  const context = image.getContext("2d", { alpha: false })!;
  context.fillStyle = style.getPropertyValue("--paper").trim();
  context.fillRect(0, 0, image.width, image.height);
  context.fillStyle = style.getPropertyValue("--ink").trim();
  context.font = `${13 * scale}px system-ui, sans-serif`;
  context.fillText(title, gap, header - 6 * scale);
  let y = header + gap / 2;
  for (const canvas of canvases) {
    context.drawImage(canvas, gap, y);
    y += canvas.height + gap;
  }
  image.toBlob((blob) => {
    if (blob) download(name, blob);
  }, "image/png");
}

/** One file that needs no server: styles inside, canvases as images, no controls. */
export function downloadHtml(name: string, title: string, part: HTMLElement): void {
  const copy = part.cloneNode(true) as HTMLElement;
  const canvases = [...part.querySelectorAll("canvas")];
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    const image = document.createElement("img");
    image.src = canvases[i].toDataURL("image/png");
    image.alt = canvas.parentElement?.closest("[aria-label]")?.getAttribute("aria-label") ?? "";
    image.width = canvases[i].clientWidth;
    canvas.replaceWith(image);
  });
  copy.querySelectorAll("button, select, input, .no-print").forEach((element) => element.remove());
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText));
  const heading = document.createElement("h1");
  heading.textContent = title; // escaped
  const theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
  const head = [
    `<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">`,
    `<title>${heading.innerHTML}</title><style>${rules.join("\n")}</style>`,
  ].join("");
  const body = `<main>${heading.outerHTML}${copy.outerHTML}</main>`;
  const page = `<html lang="en" data-theme="${theme}"><head>${head}</head><body>${body}</body></html>`;
  download(name, new Blob([`<!doctype html>\n${page}\n`], { type: "text/html" }));
}
