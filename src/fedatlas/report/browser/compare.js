// The algorithms: key figures, and differences with their intervals.

import { labelSuspect, worstClient } from "./answers.js";
import { intervalBar } from "./chart.js";
import { kindColor } from "./color.js";
import { choice, make, note, renew } from "./dom.js";
import { clip, plural, thousands } from "./format.js";
import {
  difference,
  hasIntervals,
  metric,
  metricTitle,
  sidewards,
  signed,
  summary,
  told,
  unit,
  worse,
} from "./metric.js";
import { change, listen, state } from "./state.js";
import { known, mean } from "./stats.js";

let block = null;

export function comparePart(data) {
  block = data;
  const names = block.algorithms.map((own, i) => [String(i), own.label]);
  const bar = make(
    "div",
    { class: "switches" },
    choice("algorithm", "Show how clients are served by", names, String(state.algorithm), (value) =>
      change({ algorithm: Number(value) }),
    ),
    names.length > 1
      ? choice("reference", "Differences against", names, String(state.reference), (value) =>
          change({ reference: Number(value) }),
        )
      : null,
  );
  const figures = make("div", { id: "figures", class: "figures" });
  const table = make("div", { id: "comparison" });
  listen(["algorithm", "theme"], () => fillFigures(figures));
  listen(["algorithm", "reference", "theme"], () => fillComparison(table));
  fillFigures(figures);
  fillComparison(table);
  return [bar, figures, wrongNote(), table, aboutAlgorithms(), block.note ? note(block.note) : null];
}

function wrongNote() {
  // Figures over all clients hold those whose labels look wrong.
  const wrong = [...Array(block.count).keys()].filter((client) => labelSuspect(block, client));
  if (!wrong.length) return null;
  const names = wrong.slice(0, 4).map((client) => clip(block.clients.name[client], 24));
  const more = wrong.length > names.length ? ` and ${wrong.length - names.length} more` : "";
  return note(`All figures hold ${names.join(", ")}${more}, measured against labels that look wrong.`);
}

function aboutAlgorithms() {
  // What each name stands for.
  const said = new Map(block.algorithms.filter((own) => own.about).map((own) => [own.label, own.about]));
  if (!said.size) return null;
  return make(
    "ul",
    { class: "reasons" },
    [...said].map(([label, about]) => make("li", {}, make("b", {}, clip(label, 40)), `: ${about}`)),
  );
}

function figure(title, value, about) {
  return make("div", { class: "figure" }, make("span", {}, title), make("b", {}, value), make("small", {}, about));
}

function fillFigures(node) {
  const own = block.algorithms[state.algorithm];
  const found = Object.fromEntries(own.metrics.map((one) => [one.title, one]));
  const trained = known([...own.value].filter((_, i) => !block.clients.held_out[i]));
  const parts = [];
  const main = found[metric.name];
  // Of several runs all figures are over the runs, but for those that say of which run they are.
  const over = own.seeds > 1 ? `mean ± standard deviation over ${own.seeds} runs` : "";
  if (main)
    parts.push(
      figure(
        `${metric.title} over test examples`,
        summary(main, unit()),
        over || `each test example counts alike${main.half === null ? "" : "; 95 % interval"}`,
      ),
    );
  const worst = worstClient(own);
  const worsts = found["worst client of a run"];
  if (worsts) parts.push(figure("worst client", summary(worsts, unit()), over));
  else if (worst !== null) {
    const words = make(
      "button",
      { type: "button", class: "link", on: { click: () => change({ chosen: worst }) } },
      make("bdi", {}, clip(block.clients.name[worst], 28)),
    );
    parts.push(figure("worst client", told(own.value[worst]), words));
  }
  if (trained.length > 1)
    parts.push(
      own.seeds > 1
        ? figure(`${metric.title} over clients`, summary(own.client_mean, unit()), over)
        : figure(`${metric.title} over clients`, told(meanOverClients(own)), "each client counts alike"),
    );
  if (trained.length && hasIntervals(own)) {
    const below = clearlyBelow(own);
    parts.push(
      figure(
        `clearly ${sidewards()} the mean over clients`,
        thousands(below.length),
        `of ${plural(trained.length, "client")} that train and were tested${own.of ? `, ${own.of}` : ""}`,
      ),
    );
  }
  const held = found["held out"];
  if (held)
    parts.push(figure("held-out clients", summary(held, unit()), over ? `never trained; ${over}` : "never trained"));
  parts.push(
    figure(
      "rounds",
      own.rounds < own.planned ? `${own.rounds} of ${own.planned}` : String(own.rounds),
      `${thousands(own.seconds)} s of training${own.seeds > 1 ? `, ${own.seeds} runs` : ""}`,
    ),
  );
  renew(node, parts);
}

export function meanOverClients(own) {
  return mean(known([...own.value].filter((_, i) => !block.clients.held_out[i])));
}

export function clearlyBelow(own) {
  // Clients whose whole interval is worse than the mean of those that train.
  const centre = meanOverClients(own);
  const best = metric.higher ? own.high : own.low;
  return [...own.value.keys()].filter((client) => worse(best[client], centre));
}

function fillComparison(node) {
  if (block.algorithms.length < 2) {
    renew(node);
    return;
  }
  const titles = [...new Set(block.algorithms.flatMap((own) => own.metrics.map((one) => one.title)))].filter(
    (title) => title !== metric.name,
  );
  const reference = block.algorithms[state.reference];
  const notes = Object.fromEntries(block.algorithms.flatMap((own) => own.metrics.map((one) => [one.title, one.about])));
  const against = `Against ${clip(reference.label, 24)}`;
  const heads = ["Algorithm", `${metricTitle()}${unit() && " in %"}`, against, "", ...titles, "Seconds"];
  const wide = Math.max(
    metric.percent ? 0.01 : 1e-12,
    ...block.differences[state.reference].map(([value, half]) => Math.abs(value ?? 0) + (half ?? 0)),
  );
  renew(
    node,
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Algorithms" },
      make(
        "table",
        {},
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            heads.map((title) => make("th", { scope: "col", title: notes[title] || null }, title)),
          ),
        ),
        make(
          "tbody",
          {},
          block.algorithms.map((own, i) => algorithmRow(own, i, titles, wide)),
        ),
      ),
    ),
    note(intervalNote()),
  );
}

function algorithmRow(own, i, titles, wide) {
  const [value, half, over] = block.differences[i][state.reference];
  const found = Object.fromEntries(own.metrics.map((one) => [one.title, one]));
  const same = i === state.reference || value === null;
  const about = same ? "the reference" : differenceWords(value, half, over);
  const sure = !same && half !== null && Math.abs(value) > half;
  const better = metric.higher ? value > 0 : value < 0;
  const cells = [
    make("td", {}, found[metric.name] ? summary(found[metric.name]) : "–"),
    make(
      "td",
      { title: about },
      same ? "–" : difference(value, half),
      same || sure ? null : make("small", { class: "aside" }, " may be chance"),
    ),
    make(
      "td",
      {},
      same
        ? null
        : intervalBar(half === null ? NaN : value - half, value, value + half, about, {
            least: -wide,
            most: wide,
            zero: 0,
            color: kindColor(sure ? (better ? 2 : 5) : 0),
          }),
    ),
    ...titles.map((title) => make("td", {}, found[title] ? summary(found[title]) : "–")),
    make("td", {}, thousands(own.seconds)),
  ];
  const name = make(
    "button",
    { type: "button", class: "link", on: { click: () => change({ algorithm: i }) } },
    make("bdi", {}, clip(own.label, 40)),
  );
  return make(
    "tr",
    { "data-algorithm": i, "aria-current": i === state.algorithm ? "true" : null },
    make("th", { scope: "row" }, name, own.seeds > 1 ? make("small", {}, ` ${own.seeds} runs`) : null),
    cells,
  );
}

function differenceWords(value, half, over) {
  const points = metric.percent ? " points" : "";
  if (half === null) return `${signed(value, null)}${points}, ${over}`;
  return `${signed(value, half)}${points}, from ${signed(value - half, half)} to ${signed(value + half, half)}, over ${over}`;
}

function withSeeds() {
  return [" Train with ", make("code", { class: "whole" }, "--seeds 0,1,2"), " for intervals over seeds."];
}

function intervalNote() {
  const all = block.differences.flat();
  const sure = all.some(([value, half]) => half !== null && Math.abs(value) > half);
  const said =
    (sure ? "" : "No difference here is beyond chance. ") +
    (metric.percent ? "In percent. " : "") +
    (metric.higher ? "" : "Lower is better. ") +
    (block.algorithms.some((own) => own.seeds > 1) ? "± is the standard deviation over runs. " : "");
  if (all.some((one) => /^\d+ seeds$/.test(one[2])))
    return [`${said}In brackets: 95 % intervals, of differences over seeds. One that holds 0 may be chance.`];
  if (metric.name !== "accuracy") return [`${said}One seed each: a difference may be chance.`, ...withSeeds()];
  return [`${said}In brackets: 95 % intervals over test examples. Another seed may differ by more.`, ...withSeeds()];
}
