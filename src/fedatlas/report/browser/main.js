// The page: its sections in the order of the reader's questions.

import { actPart } from "./act.js";
import { answersPart, betterPart, warning, worstClient } from "./answers.js";
import { cardPart } from "./card.js";
import { forgetColors } from "./color.js";
import { comparePart } from "./compare.js";
import { nearest, readBlock } from "./data.js";
import { byId, make, note, renew, section } from "./dom.js";
import { clip, plural, thousands } from "./format.js";
import { madePart, newcomersPart } from "./made.js";
import { finishMap, mapSection } from "./map.js";
import { matrixPart } from "./matrix.js";
import { setMetric } from "./metric.js";
import { setBlock } from "./plane.js";
import { screenOf } from "./sheet.js";
import { change, choose, select, state } from "./state.js";
import { groupsPart } from "./strips.js";
import { tablePart } from "./table.js";
import { timePart } from "./time.js";
import { tryPart, whyPart } from "./why.js";

const MOST_NEAR = 1000;
const MOST_LABELS = 3;
const block = readBlock();
setMetric(block);
setBlock(block);

function lead() {
  const clients = block.clients;
  const total = block.sample ? block.sample.of : block.count;
  const said = [
    `${plural(total, "client")}${clients.domains.length ? ` in ${plural(clients.domains.length, clients.gathered_by)}` : ""}`,
  ];
  const held = clients.held_out.filter(Boolean).length;
  if (held && !block.sample) said.push(`${thousands(held)} of them held out of training`);
  const examples = [...clients.train, ...clients.test].reduce((sum, count) => sum + Math.max(0, count), 0);
  if (!block.sample) said.push(plural(examples, block.kind === "features" ? "row" : "example"));
  if (block.target) said.push(`predicting “${clip(block.target, 40)}”`);
  const names = block.classes.map((name) => clip(name, 20));
  if (names.length > MOST_LABELS) said.push(plural(names.length, "class", "es"));
  else if (names.length > 1) said.push(`${names.length} labels: ${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);
  const first = block.algorithms[0];
  // Each seed may split the data anew; a client of one is then nobody of another.
  const whose = first && first.alike < first.seeds ? ` Clients, their figures and the map are of ${first.of}.` : "";
  return `${said.join(", ")}.${whose}`;
}

function themeButton() {
  const words = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };
  const order = ["auto", "light", "dark"];
  const button = make("button", { id: "theme", type: "button" }, words.auto);
  const renewTheme = () => {
    forgetColors();
    change({ theme: state.theme + 1 });
  };
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(document.documentElement.dataset.theme || "auto") + 1) % 3];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    button.textContent = words[next];
    renewTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", renewTheme);
  printLight(renewTheme);
  return button;
}

function printLight(renewTheme) {
  // Paper is white: while the page is printed it has the light theme.
  let before = null;
  const turn = (name) => {
    if (name === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    renewTheme();
    finishMap();
  };
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.documentElement.dataset.printing = "1";
    turn("light");
  });
  window.addEventListener("afterprint", () => {
    delete document.documentElement.dataset.printing;
    turn(before);
  });
}

// Each section is made when its turn comes, so that the map is painted before the rest is computed.
function laterSections() {
  const served = () =>
    section(
      "served",
      "Who is served badly?",
      comparePart(block),
      make("h3", {}, "All clients, the worst first"),
      tablePart(block),
    );
  const why = () => section("why", block.algorithms.length ? "Why?" : "What was found?", whyPart(block));
  const wrapped = (id, title, part) => {
    const content = part(block);
    return content ? section(id, title, content) : null;
  };
  return [
    block.algorithms.length ? served : null,
    block.algorithms.length || block.check ? why : null,
    () => wrapped("try", "What to try?", tryPart),
    block.algorithms.length ? () => wrapped("time", "Over time", timePart) : null,
    () => wrapped("newcomers", "Brought in later", newcomersPart),
    () => section("made", "How was it made?", madePart(block)),
  ].filter(Boolean);
}

function addSection(node) {
  if (!node) return;
  byId("main").append(node);
  byId("contents").append(make("a", { href: `#${node.id}` }, node.querySelector("h2").textContent));
}

function finish(first) {
  const left = first.querySelector(".column");
  left.append(...[groupsPart(block), matrixPart(block)].filter(Boolean));
  if (!block.algorithms.length) first.append(make("h3", {}, "All clients"), ...[tablePart(block)].flat());
  for (const later of laterSections()) addSection(later());
  document.body.dataset.ready = "1";
}

function firstClient() {
  if (block.check?.suspects.length) return block.check.suspects[0].client;
  return block.algorithms.length ? worstClient(block.algorithms[0]) : loneliest();
}

function loneliest() {
  // The client that is least like its nearest one.
  const source = block.sources[0];
  if (!source || block.count < 2 || block.count > MOST_NEAR) return null;
  const near = Array.from({ length: block.count }, (_, client) => nearest(source, client, 1, block.count)[0][1]);
  return near.indexOf(Math.min(...near));
}

function start() {
  if (block.schema !== 1) {
    renew(byId("main"), note("This page was written by another version of the library."));
    return;
  }
  renew(
    byId("top"),
    make("div", { class: "title" }, make("h1", {}, block.title), themeButton()),
    make("p", { class: "lead" }, lead()),
    warning(block) || betterPart(block),
    answersPart(block),
    make("nav", { id: "contents", "aria-label": "Sections" }),
  );
  state.chosen = firstClient();
  // Where every client is its own group, colours of groups say nothing; whom the check suspects does.
  const groups = block.groupings[0]?.of || [];
  const alone = new Set(groups).size === block.count;
  if (alone && !block.algorithms.length && block.check?.suspects.length) state.colour = "suspicion";
  const first = section(
    "clients",
    "Who are the clients?",
    make(
      "div",
      { class: "hero" },
      make("div", { class: "column" }, mapSection(block), actPart(block)),
      make("div", { class: "column" }, cardPart(block)),
    ),
  );
  addSection(first);
  byId("foot").textContent = `Made by ${block.made_by}. One file, no network.`;
  finishMap();
  window.fedatlasPage = {
    choose,
    select,
    screen: screenOf,
    get state() {
      return { ...state, selected: [...state.selected] };
    },
  };
  requestAnimationFrame(() => setTimeout(() => finish(first)));
}

start();
