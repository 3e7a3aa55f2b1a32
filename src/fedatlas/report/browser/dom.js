// Elements of the document. Texts become text nodes, never markup; this is the one place that makes elements.

import { clip } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [name, listener] of Object.entries(value)) node.addEventListener(name, listener);
    else if (key === "style") for (const [name, own] of Object.entries(value)) node.style.setProperty(name, own);
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function renew(node, ...children) {
  node.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

export function speak(text) {
  byId("live").textContent = text;
}

export function choice(id, label, options, value, change) {
  const select = make(
    "select",
    { id, on: { change: (event) => change(event.target.value) } },
    options.map(([key, title]) => make("option", { value: key }, title)),
  );
  select.value = value;
  return make("label", { class: "choice" }, make("span", {}, label), select);
}

export function press(id, title, text, pressed, click) {
  const attributes = { id, type: "button", title, "aria-label": title, on: { click } };
  if (pressed !== null) attributes["aria-pressed"] = String(pressed);
  return make("button", attributes, text);
}

export function copyButton(text, id = null) {
  const button = make("button", { id, type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    const words = typeof text === "function" ? text() : text;
    button.textContent = (await copyText(words)) ? "Copied" : "Select and copy";
    speak(button.textContent);
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "quiet", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function wholeWords(command) {
  // Lines end between words, never at a hyphen inside one.
  return command
    .split(" ")
    .flatMap((word) => [" ", make("span", { class: "word" }, word)])
    .slice(1);
}

export function commandCode(command) {
  return make("code", { tabindex: 0 }, wholeWords(command));
}

export function saveFile(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export function section(id, title, ...children) {
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), children);
}

export function clientLink(name, click, most = 40) {
  return make(
    "button",
    { type: "button", class: "link", title: name, on: { click } },
    make("bdi", {}, clip(name, most)),
  );
}

export function exact(words, figure) {
  // Plain words, and a mark with the figure behind them for those who know it: under the pointer, or with the focus.
  if (!figure) return words;
  const mark = make(
    "button",
    {
      type: "button",
      class: "exact",
      "aria-label": `For statisticians: ${figure}`,
      "data-exact": `For statisticians: ${figure}`,
    },
    "i",
  );
  return [words, "\u00a0", mark];
}

export function note(...children) {
  return make("p", { class: "note" }, children);
}
