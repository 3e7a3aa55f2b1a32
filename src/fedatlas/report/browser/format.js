// Numbers as people read them. Digits follow the interval: no decimals of noise.

function digitsFor(half) {
  if (half === null || half === undefined || half >= 0.02) return 0;
  return half >= 0.002 ? 1 : 2;
}

export function percent(share, half = null) {
  if (share === null || Number.isNaN(share)) return "–";
  return (100 * share).toFixed(digitsFor(half));
}

export function amount(value, half = null) {
  // Four digits, or as many as two digits of the interval ask for.
  if (value === null || Number.isNaN(value)) return "–";
  const text =
    half > 0
      ? value.toFixed(Math.max(0, Math.min(8, 1 - Math.floor(Math.log10(half)))))
      : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

const KINDS = {
  "missing-coded": "a number stands for missing",
  "other-scale": "a column on another scale",
  constant: "a column that never changes",
  "images-broken": "broken images",
  "test-in-training": "test examples in training",
  "same-examples": "examples of another client",
  "labels-untold": "labels that cannot be judged",
  "columns-missing": "columns without values",
  "few-tests": "few test examples",
  "unlike-others": "unlike all others",
};

export function kindWords(kind) {
  return KINDS[kind] || kind.replaceAll("-", " ");
}

export function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}

export function sharePercent(share) {
  // A share that may be small: two digits of it.
  return `${Number((100 * share).toPrecision(2))} %`;
}

export function decimal(value) {
  return value.toFixed(2).replace("-", "−");
}

export function thousands(number) {
  return number.toLocaleString("en-US");
}

export function plural(number, noun, more = "s") {
  return `${thousands(number)} ${noun}${number === 1 ? "" : more}`;
}

export function clip(text, most) {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}

export function lower(text) {
  return text.toLocaleLowerCase("en-US");
}

function csvCell(value) {
  // A text that a spreadsheet could take for a formula gets an apostrophe.
  let text = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csvText(rows) {
  return `${rows.map((row) => row.map(csvCell).join(",")).join("\r\n")}\r\n`;
}
