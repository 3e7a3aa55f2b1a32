// The table of clients: sorted, filtered, searched, selected, saved.

import { groupSwatch, intervalBar } from "./chart.js";
import { kindColor } from "./color.js";
import { clearlyBelow } from "./compare.js";
import { commonest, labelShares, nearest, worseThanCommonest } from "./data.js";
import { choice, make, renew, saveFile, speak } from "./dom.js";
import { clip, csvText, decimal, kindWords, lower, plural, thousands } from "./format.js";
import { bare, hasIntervals, metric, metricTitle, sidewards, unit, withSpan } from "./metric.js";
import { currentSource, groupOf, groupTitle } from "./plane.js";
import { listen, select, showCard, state, toggle } from "./state.js";

const PAGE = 25;
const view = { sort: null, down: false, words: "", filter: "all", shown: PAGE };
let block = null;
let near = null;

export function tablePart(data) {
  block = data;
  const search = make("input", {
    id: "table-search",
    type: "search",
    placeholder: "name, group or reason",
    on: { input: (event) => update({ words: event.target.value, shown: PAGE }) },
  });
  const bar = make(
    "div",
    { class: "switches" },
    make("label", { class: "choice" }, make("span", {}, "Search"), search),
    choice("table-filter", "Show", filters(), "all", (value) => update({ filter: value, shown: PAGE })),
    make("button", { id: "csv", type: "button", on: { click: saveRows } }, "Save CSV"),
    make(
      "button",
      { id: "select-rows", type: "button", on: { click: () => select(rows().map((row) => row.client)) } },
      "Select these",
    ),
  );
  const body = make("div", { id: "client-table" });
  function update(values) {
    Object.assign(view, values);
    fillTable(body, update);
  }
  listen(["algorithm", "grouping", "plane", "theme", "chosen", "selected"], () => {
    near = null;
    fillTable(body, update);
  });
  fillTable(body, update);
  return [bar, body];
}

function filters() {
  const found = [["all", "all clients"]];
  if (block.algorithms.some(hasIntervals)) found.push(["below", `clearly ${sidewards()} the mean`]);
  if (block.check) found.push(["suspect", "suspects"], ["different", "different, not wrong"]);
  found.push(["reasons", "something stands out"]);
  if (block.clients.held_out.some(Boolean)) found.push(["held", "held out"]);
  found.push(["selected", "selected"]);
  return found;
}

function nearness(client) {
  near = near || new Map();
  if (!near.has(client)) {
    const source = currentSource();
    const found = source && block.count <= 1000 ? nearest(source, client, 1, block.count)[0] : null;
    near.set(client, found ? found[1] : NaN);
  }
  return near.get(client);
}

function reasonsOf(client) {
  return block.reasons[client] || [];
}

function gravity(client) {
  // Wrong labels first, then other suspects, then what is only different.
  const labels = reasonsOf(client).some((one) => one.kind.startsWith("labels-"));
  return 1000 * labels + 100 * block.suspicion[client] + reasonsOf(client).length;
}

function columns() {
  const clients = block.clients;
  const own = block.algorithms[state.algorithm];
  const found = [
    { key: "name", title: "Client", value: (client) => clients.name[client], text: true },
    own
      ? {
          key: "accuracy",
          title: `${metricTitle()}${unit() && " in %"}, ${clip(own.label, 18)}`,
          value: (client) => own.value[client],
          csv: (client) => plainNumber(inPercent(own.value[client])),
          cell: (client) => valueCell(own, client),
        }
      : null,
    {
      key: "reasons",
      title: "What stands out",
      value: gravity,
      cell: reasonCell,
      left: true,
      csv: (client) =>
        reasonsOf(client)
          .map((one) => one.text)
          .join("; "),
    },
    own && metric.name === "accuracy" && block.fixed_answers
      ? {
          key: "simple",
          title: "Always one answer",
          value: (client) => commonest(block, client)?.share ?? NaN,
          csv: (client) => plainNumber(inPercent(commonest(block, client)?.share ?? NaN)),
          cell: simpleCell,
        }
      : null,
    block.groupings.length
      ? { key: "group", title: "Group", value: (client) => groupTitle(groupOf(client)), text: true, cell: groupCell }
      : null,
    { key: "train", title: "To train", value: (client) => clients.train[client] },
    clients.test[0] >= 0 ? { key: "test", title: "To test", value: (client) => clients.test[client] } : null,
    clients.shares && new Set(Array.from(clients.name, (_, client) => classCount(client))).size > 1
      ? {
          key: "classes",
          title: "Classes",
          value: classCount,
        }
      : null,
    block.sources.length && block.count <= 1000
      ? { key: "near", title: "Likeness to nearest", value: nearness, cell: (client) => decimal(nearness(client)) }
      : null,
  ];
  return found.filter(Boolean);
}

function classCount(client) {
  return labelShares(block, client).filter((share) => share > 0).length;
}

function simpleCell(client) {
  const simple = commonest(block, client);
  if (!simple) return "–";
  const about = `Always answering “${simple.label}” is right in so many of its ${simple.of} examples`;
  return make(
    "span",
    { title: about },
    `${bare(simple.share)} `,
    make("small", { class: "aside" }, clip(simple.label, 12)),
  );
}

function groupCell(client) {
  return [groupSwatch(groupOf(client)), make("bdi", {}, clip(groupTitle(groupOf(client)), 24))];
}

function valueCell(own, client) {
  if (Number.isNaN(own.value[client])) return "–";
  const words = withSpan(own, client, "");
  return make(
    "span",
    { class: "with-bar" },
    intervalBar(own.low[client], own.value[client], own.high[client], words, { color: kindColor(0) }),
    words,
  );
}

function reasonCell(client) {
  const level = block.suspicion[client];
  const tags = [];
  if (level === 2) tags.push(make("span", { class: "tag suspect" }, "suspect"));
  if (block.clients.held_out[client]) tags.push(make("span", { class: "tag" }, "held out"));
  const own = block.algorithms[state.algorithm];
  const simple = commonest(block, client);
  if (own && worseThanCommonest(block, own, client))
    tags.push(
      make(
        "span",
        { class: "tag", title: `Always answering “${simple.label}” is right more often` },
        "worse than one answer",
      ),
    );
  const kinds = [...new Set(reasonsOf(client).map((one) => one.kind))].filter((kind) => kind !== "held-out");
  const words = reasonsOf(client)
    .map((one) => one.text)
    .join("; ");
  tags.push(...kinds.slice(0, 3).map((kind) => make("span", { class: "tag", title: words }, kindWords(kind))));
  return tags.length ? tags : "–";
}

function rows() {
  const wanted = lower(view.words.trim());
  const below = view.filter === "below" ? new Set(clearlyBelow(block.algorithms[state.algorithm])) : null;
  const tests = {
    all: () => true,
    below: (client) => below.has(client),
    suspect: (client) => block.suspicion[client] === 2,
    different: (client) => block.suspicion[client] === 1,
    reasons: (client) => reasonsOf(client).length > 0,
    held: (client) => block.clients.held_out[client] === 1,
    selected: (client) => state.selected.has(client),
  };
  const found = [];
  for (let client = 0; client < block.count; client += 1) {
    if (!tests[view.filter](client)) continue;
    const words = [
      block.clients.name[client],
      block.groupings.length ? groupTitle(groupOf(client)) : "",
      ...reasonsOf(client).map((one) => `${one.kind} ${one.text}`),
    ];
    if (wanted && !lower(words.join(" ")).includes(wanted)) continue;
    found.push({ client });
  }
  return sortRows(found);
}

function sortRows(found) {
  const own = columns();
  const key = view.sort ?? (block.algorithms.length ? "accuracy" : block.check ? "reasons" : "train");
  const column = own.find((one) => one.key === key) || own[0];
  const down = view.sort === null ? firstDown(key) : view.down;
  for (const row of found) row.value = column.value(row.client);
  const missing = (value) => value === null || (typeof value === "number" && Number.isNaN(value));
  return found.sort((a, b) => {
    if (missing(a.value) || missing(b.value)) return missing(a.value) - missing(b.value) || a.client - b.client;
    const order = column.text ? a.value.localeCompare(b.value, "en", { numeric: true }) : a.value - b.value;
    return (down ? -order : order) || a.client - b.client;
  });
}

function firstDown(key) {
  // The worst come first: of an accuracy the lowest, of an error or of reasons the most.
  return key === "reasons" || (key === "accuracy" && !metric.higher);
}

function fillTable(node, update) {
  const own = columns();
  const found = rows();
  const key = view.sort ?? (block.algorithms.length ? "accuracy" : block.check ? "reasons" : "train");
  const down = view.sort === null ? firstDown(key) : view.down;
  const sorter = (column) =>
    make(
      "th",
      {
        scope: "col",
        class: side(column),
        "aria-sort": column.key === key ? (down ? "descending" : "ascending") : null,
      },
      make(
        "button",
        { type: "button", "data-sort": column.key, on: { click: () => sortBy(column.key) } },
        column.title,
        make("span", { "aria-hidden": "true" }, column.key === key ? (down ? " ↓" : " ↑") : ""),
      ),
    );
  function sortBy(next) {
    update({ sort: next, down: key === next ? !down : false });
    const button = node.querySelector(`[data-sort="${next}"]`);
    if (button) button.focus();
    speak(`Sorted by ${next}`);
  }
  const head = make(
    "tr",
    {},
    make("th", { scope: "col" }, make("span", { class: "quiet" }, "Selected")),
    own.map(sorter),
  );
  const more = found.length - view.shown;
  renew(
    node,
    make(
      "p",
      { class: "note", id: "table-count" },
      `${plural(found.length, "client")}${found.length < block.count ? ` of ${thousands(block.count)}` : ""}`,
      state.selected.size
        ? [`; ${thousands(state.selected.size)} selected: `, make("a", { href: "#selection" }, "what to do with them")]
        : null,
    ),
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Clients" },
      make(
        "table",
        {},
        make("thead", {}, head),
        make(
          "tbody",
          {},
          found.slice(0, view.shown).map((row) => tableRow(row.client, own)),
        ),
      ),
    ),
    more > 0
      ? make(
          "button",
          { type: "button", id: "more-rows", on: { click: () => update({ shown: view.shown + 4 * PAGE }) } },
          `Show ${thousands(Math.min(more, 4 * PAGE))} more`,
        )
      : null,
  );
}

function side(column) {
  return column.text || column.left ? "left" : null;
}

function tableRow(client, own) {
  const name = block.clients.name[client];
  const tick = make("input", {
    type: "checkbox",
    "aria-label": `Select ${clip(name, 60)}`,
    on: { change: () => toggle(client) },
  });
  tick.checked = state.selected.has(client);
  const link = make(
    "button",
    { type: "button", class: "link", title: name, on: { click: () => showCard(client) } },
    make("bdi", {}, clip(name, 40)),
  );
  return make(
    "tr",
    { "data-client": client, "aria-current": client === state.chosen ? "true" : null },
    make("td", {}, tick),
    own.map((column) => {
      if (column.key === "name") return make("th", { scope: "row" }, link);
      const value = column.cell ? column.cell(client) : column.value(client);
      return make("td", { class: side(column) }, typeof value === "number" ? thousands(value) : value);
    }),
  );
}

function saveRows() {
  const own = columns();
  const algorithm = block.algorithms[state.algorithm];
  const heads = [...own.map((column) => column.title), ...(algorithm ? ["low", "high"] : [])];
  const found = rows().map(({ client }) => [
    ...own.map((column) => (column.csv ? column.csv(client) : plainNumber(column.value(client)))),
    ...(algorithm ? [algorithm.low, algorithm.high].map((row) => plainNumber(inPercent(row[client]))) : []),
  ]);
  saveFile("clients.csv", csvText([heads, ...found]), "text/csv");
}

function inPercent(value) {
  return metric.percent ? 100 * value : value;
}

function plainNumber(value) {
  if (typeof value !== "number") return value;
  return Number.isNaN(value) ? "" : Number.isInteger(value) ? value : Number(value.toPrecision(6));
}
