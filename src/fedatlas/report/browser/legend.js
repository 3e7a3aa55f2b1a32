// What the map's colours mean, and how good its plane is.

import { groupSwatch, swatch } from "./chart.js";
import { rampColor, suspicionColor } from "./color.js";
import { byId, exact, make, renew } from "./dom.js";
import { clip, percent, plural, thousands } from "./format.js";
import { metric, told } from "./metric.js";
import { currentPlane, currentSource, groupOf, groupTitle, largest, valueRange } from "./plane.js";
import { sheet } from "./sheet.js";
import { select, state } from "./state.js";

const MOST_KINDS = 24;
const FEW = 10; // of so few clients the nearest say little
const ROUGH = 0.6;
const KEPT = [
  [0.95, "almost exactly"],
  [0.8, "well"],
  [ROUGH, "roughly"],
  [-1, "badly"],
];

export function tellLegend() {
  const node = byId("legend");
  if (!node) return;
  const colour = state.colour;
  if (colour === "accuracy" || colour === "size") {
    const [low, high] = colour === "size" ? [0, largest()] : valueRange();
    const texts =
      colour === "size"
        ? [thousands(low), `${thousands(high)} examples`]
        : [told(low), metric.name === "accuracy" ? `${told(high)} right` : `${metric.title} ${told(high)}`];
    renew(node, make("span", {}, texts[0]), ramp(), make("span", {}, texts[1]), heldOutNote());
    return;
  }
  const of = legendKinds(colour);
  renew(
    node,
    of.map(([title, clients, mark]) => legendButton(title, clients, mark)),
    heldOutNote(),
  );
}

function legendKinds(colour) {
  const found = new Map();
  for (let client = 0; client < sheet.block.count; client += 1) {
    const key =
      colour === "group"
        ? groupOf(client)
        : colour === "domain"
          ? sheet.block.clients.domain[client]
          : sheet.block.suspicion[client];
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(client);
  }
  const order = [...found.keys()].sort((a, b) => (colour === "suspicion" ? b - a : a < 0 ? 1 : b < 0 ? -1 : a - b));
  const words = ["nothing found", "different, not wrong", "suspect"];
  return order.map((key) => {
    if (colour === "suspicion") return [words[key], found.get(key), swatch(suspicionColor(key))];
    const title =
      colour === "group"
        ? groupTitle(key)
        : key < 0
          ? `no ${sheet.block.clients.gathered_by}`
          : sheet.block.clients.domains[key];
    return [title, found.get(key), groupSwatch(key)];
  });
}

function legendButton(title, clients, mark, i = 0) {
  if (i >= MOST_KINDS) return null;
  const words = `${clip(title, 28)} (${thousands(clients.length)})`;
  const about = `Select ${plural(clients.length, "client")}: ${clip(title, 60)}`;
  return make(
    "button",
    { type: "button", class: "kind", title: about, on: { click: () => select(clients) } },
    mark,
    words,
  );
}

function ramp() {
  const bar = make("span", { class: "ramp", "aria-hidden": "true" });
  for (let i = 0; i < 24; i += 1) bar.append(make("i", { style: { background: rampColor(i / 23) } }));
  return bar;
}

function heldOutNote() {
  const said = [];
  if (sheet.block.suspicion.includes(2)) said.push("dashed ring: suspect");
  if (sheet.block.clients.held_out.some(Boolean)) said.push("hollow: held out, never trained");
  return said.length ? make("span", { class: "aside" }, said.join("; ")) : null;
}

export function tellKept() {
  const plane = currentPlane();
  const few = Math.max(1, Math.min(5, sheet.block.count - 2));
  const said = [`${currentSource().about} `];
  if (plane.distance !== null) {
    const near =
      plane.near === null || sheet.block.count < FEW
        ? ""
        : `; of each client's ${plural(few, "nearest client")} ${percent(plane.near)} % are its nearest here, too`;
    said.push(
      plane.distance < ROUGH
        ? "Clients that are near each other need not be alike: the map keeps distances "
        : "Clients that are near each other are alike. The map keeps distances ",
    );
    said.push(exact(keptWords(plane.distance), `rank correlation ${plane.distance.toFixed(2)} (${plane.title})`));
    said.push(`${near}. `);
  }
  if (sheet.block.sample)
    said.push(
      `${thousands(sheet.block.count)} of ${thousands(sheet.block.sample.of)} clients are shown: ${sheet.block.sample.how}.`,
    );
  renew(byId("kept"), said);
}

function keptWords(correlation) {
  const [, words] = KEPT.find(([least]) => correlation >= least);
  return words;
}
