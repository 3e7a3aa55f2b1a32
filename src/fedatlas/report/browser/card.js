// The card of the chosen client.

import { adviceWords, commandsFor, groupGap, labelSuspect } from "./answers.js";
import { intervalBar } from "./chart.js";
import { kindColor } from "./color.js";
import { commonest, cosine, labelShares, lastWeight, meanShares, nearest, worseThanCommonest } from "./data.js";
import { commandCode, copyButton, exact, make, renew } from "./dom.js";
import { examplesPart } from "./examples.js";
import { capital, clip, decimal, kindWords, percent, plural, sharePercent } from "./format.js";
import { hasIntervals, metricTitle, withSpan } from "./metric.js";
import { currentSource, groupOf, groupTitle } from "./plane.js";
import { choose, listen, state, toggle } from "./state.js";

const MOST_BARS = 14;
const COLUMN_KINDS = new Set(["missing-coded", "other-scale", "constant"]);
let block = null;

export function cardPart(data) {
  block = data;
  const node = make("aside", { id: "card", class: "card", "aria-label": "The chosen client" });
  listen(["chosen", "algorithm", "grouping", "plane", "theme", "selected"], () => fillCard(node));
  fillCard(node);
  return node;
}

function fillCard(node) {
  const client = state.chosen;
  if (client === null) {
    delete node.dataset.client;
    renew(node, make("p", { class: "empty" }, "Choose a client on the map or in the table to see its card."));
    return;
  }
  node.dataset.client = client;
  const parts = [
    head(client),
    suspicion(client),
    remedies(client),
    examples(client),
    labelBars(client),
    figures(client),
    classAccuracies(client),
    why(client),
    neighbours(client),
    disclosed(client),
  ];
  renew(node, parts);
}

function head(client) {
  const clients = block.clients;
  const facts = [
    block.groupings.length ? groupTitle(groupOf(client)) : null,
    clients.domain[client] < 0 ? null : clients.domains[clients.domain[client]],
    `${plural(clients.train[client], "training example")}`,
    clients.test[client] < 0 ? null : `${plural(clients.test[client], "test example")}`,
    clients.held_out[client] ? "held out: it never trains" : null,
  ];
  const chosen = state.selected.has(client);
  return [
    make("h3", { title: clients.name[client] }, make("bdi", {}, clip(clients.name[client], 80))),
    make(
      "p",
      { class: "facts" },
      [...new Set(facts.filter((fact) => fact && fact !== clients.name[client]))].map((fact) =>
        make("span", {}, clip(fact, 60)),
      ),
    ),
    make(
      "button",
      { type: "button", class: "small", "aria-pressed": String(chosen), on: { click: () => toggle(client) } },
      chosen ? "Selected" : "Select",
    ),
  ];
}

function suspicion(client) {
  if (!block.check) return null;
  const lists = [
    ["Suspect", block.check.suspects, "suspect"],
    ["Different, not wrong", block.check.different, "different"],
  ];
  return lists.flatMap(([title, people, kind]) =>
    people
      .filter((own) => own.client === client)
      .map((own) =>
        make(
          "div",
          { class: `finding ${kind}` },
          make("b", {}, `${COLUMN_KINDS.has(own.kind) ? "Column to repair" : title}: ${kindWords(own.kind)}`),
          own.text ? make("p", {}, exact(`${capital(own.text)}.`, own.figure)) : null,
          seen(own.cells),
          own.look ? make("p", { class: "note" }, `Look at ${own.look}.${repair(own)}`) : null,
        ),
      ),
  );
}

function repair(own) {
  if (own.kind !== "labels-inverted" || !block.target) return "";
  return ` If they are exchanged, exchange them back in the column “${clip(block.target, 30)}” of its rows.`;
}

function seen(cells) {
  // How to see it in a spreadsheet.
  if (!cells) return null;
  const head = make(
    "tr",
    {},
    cells.columns.map((title) => make("th", { scope: "col" }, clip(title, 22))),
  );
  const row = ([name, ...values]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", title: name }, clip(name, 16)),
      values.map((value) => make("td", {}, value)),
    );
  return make(
    "div",
    { class: "seen" },
    make("p", {}, make("b", {}, "In a spreadsheet: "), `${cells.how}.`),
    cells.rows.length
      ? make(
          "div",
          { class: "scroll", tabindex: 0, role: "region", "aria-label": "What there is to see in a spreadsheet" },
          make("table", {}, make("thead", {}, head), make("tbody", {}, cells.rows.map(row))),
        )
      : null,
  );
}

function remedies(client) {
  return commandsFor(block, client).map((own) =>
    make(
      "div",
      { class: "remedy" },
      own.why ? make("p", { class: "note" }, `${adviceWords(own)}:`) : null,
      make("div", { class: "code" }, commandCode(own.command), copyButton(own.command)),
    ),
  );
}

function examples(client) {
  // Folded where averages of the same table say more.
  const found = examplesPart(block, client);
  const averaged = block.check?.suspects.some((own) => own.client === client && own.cells?.rows.length);
  return found && averaged ? make("details", {}, make("summary", {}, "Some of its rows"), found) : found;
}

function mates(client) {
  const group = groupOf(client);
  const found = [];
  for (let other = 0; other < block.count; other += 1)
    if (other !== client && groupOf(other) === group) found.push(other);
  return found;
}

function labelBars(client) {
  const own = labelShares(block, client);
  if (!own || own.length < 2) return null;
  const alone = mates(client).length === 0;
  const others = alone
    ? Array.from({ length: block.count }, (_, i) => i).filter((other) => other !== client)
    : mates(client);
  const group = others.length ? meanShares(block, others) : null;
  const most = Math.max(...own, ...(group || []), 0.01);
  let rows = own.map((share, k) => [k, share, group ? group[k] : null]);
  const cut = rows.length > MOST_BARS;
  if (cut) rows = rows.sort((a, b) => Math.max(b[1], b[2] || 0) - Math.max(a[1], a[2] || 0)).slice(0, MOST_BARS);
  const bar = (share, kind) => make("i", { class: kind, style: { width: `${(100 * share) / most}%` } });
  return make(
    "div",
    { class: "bars" },
    make(
      "h4",
      {},
      block.target ? `Labels of “${clip(block.target, 20)}”` : "Labels",
      make("small", {}, group ? ` here, and (grey) the mean of ${alone ? "all" : "its group's"} other clients` : ""),
    ),
    rows.map(([k, share, usual]) =>
      make(
        "div",
        {
          class: "bar",
          title: `${block.classes[k]}: ${percent(share)} %${usual === null ? "" : `, others ${percent(usual)} %`}`,
        },
        make("span", {}, clip(block.classes[k], 12)),
        make("b", {}, bar(share, "own"), usual === null ? null : bar(usual, "usual")),
        make("em", {}, `${percent(share)} %`, usual === null ? null : make("small", {}, ` (${percent(usual)} %)`)),
      ),
    ),
    cut ? make("p", { class: "note" }, `${own.length - MOST_BARS} classes with smaller shares are left out.`) : null,
  );
}

function figures(client) {
  const rows = block.algorithms.filter((own) => !Number.isNaN(own.value[client]));
  if (!rows.length) return null;
  const color = kindColor(0);
  const tests = plural(block.clients.test[client], "test example");
  return make(
    "div",
    { class: "accuracies" },
    make(
      "h4",
      {},
      metricTitle(),
      make("small", {}, ` ${rows.some(hasIntervals) ? "with an interval from" : "on"} ${tests}`),
    ),
    rows.map((own) => {
      const words = withSpan(own, client);
      return make(
        "div",
        { class: "accuracy" },
        make("span", {}, clip(own.label, 26)),
        intervalBar(own.low[client], own.value[client], own.high[client], words, { color }),
        make("em", {}, words),
        make("small", {}, tookPart(own, client)),
      );
    }),
    labelSuspect(block, client)
      ? make("p", { class: "note" }, make("b", {}, "Measured against its own labels, which look wrong."))
      : null,
    yardstick(client, rows),
  );
}

function yardstick(client, rows) {
  // What a model must beat: one that always answers the commonest label.
  const simple = commonest(block, client);
  if (!simple) return null;
  const under = rows.filter((own) => worseThanCommonest(block, own, client)).map((own) => clip(own.label, 24));
  return make(
    "p",
    { class: "note" },
    `Always answering “${clip(simple.label, 20)}”, its commonest label in training, would be right in ${percent(simple.share)} % of its ${simple.of} examples.`,
    under.length ? make("b", {}, ` ${under.join(" and ")} ${under.length > 1 ? "do" : "does"} worse than that.`) : null,
  );
}

function tookPart(own, client) {
  const said = `took part in ${own.tookPart[client]} of ${plural(own.rounds, "round")}`;
  const weight = lastWeight(own, client, block.count);
  return Number.isNaN(weight) ? said : `${said}; counted for ${sharePercent(weight)} in the last mean`;
}

function classAccuracies(client) {
  const own = block.algorithms[state.algorithm];
  const row = own?.classes ? own.classes[client] : null;
  if (!row) return own && !block.shared && block.metric.name === "accuracy" ? howByClass() : null;
  return make(
    "div",
    { class: "bars" },
    make("h4", {}, `Recognised by class, ${clip(own.label, 20)}`),
    row.map((share, k) =>
      share === null
        ? null
        : make(
            "div",
            { class: "bar" },
            make("span", {}, clip(block.classes[k] ?? "", 12)),
            make("b", {}, make("i", { class: "own", style: { width: `${100 * share}%` } })),
            make("em", {}, `${percent(share)} %`),
          ),
    ),
  );
}

function howByClass() {
  return make(
    "p",
    { class: "note" },
    "How each class is recognised was not recorded. To see it, train with ",
    make("code", {}, `--set 'training.metrics=["recall_per_class"]'`),
    ".",
  );
}

function why(client) {
  const people = block.check ? [...block.check.suspects, ...block.check.different] : [];
  const accounted = new Set(people.filter((own) => own.client === client).map((own) => own.text));
  const found = (block.reasons[client] || []).map((own) => own.text).filter((text) => !accounted.has(text));
  const gap = groupGap(block, client);
  if (gap) found.push(gap);
  if (!found.length) return null;
  const lines = found.map((text) => make("li", {}, text));
  return make("div", {}, make("h4", {}, "What stands out"), make("ul", { class: "reasons" }, lines));
}

function neighbours(client) {
  const source = currentSource();
  if (!source || block.count < 2) return null;
  return make(
    "div",
    {},
    make("h4", {}, "Nearest clients", make("small", {}, ` likeness by ${source.title}`)),
    make(
      "ul",
      { class: "near" },
      nearest(source, client, 5, block.count).map(([other]) =>
        make(
          "li",
          {},
          make(
            "button",
            { type: "button", class: "link", on: { click: () => choose(other) } },
            make("bdi", {}, clip(block.clients.name[other], 32)),
          ),
          make(
            "em",
            { title: "likeness: 1 is alike, 0 unrelated, −1 opposite" },
            decimal(cosine(source, client, other)),
          ),
        ),
      ),
    ),
  );
}

function disclosed(client) {
  const own = block.algorithms[state.algorithm];
  if (!own) return null;
  const silent = own.tookPart[client] === 0;
  const lines = silent ? ["nothing in training: it took part in no round"] : own.disclosed;
  return make(
    "details",
    {},
    make("summary", {}, `What this client sent out (${clip(own.label, 24)})`),
    make(
      "ul",
      { class: "reasons" },
      lines.map((line) => make("li", {}, line)),
    ),
    silent ? null : make("p", { class: "note" }, `In each of ${plural(own.tookPart[client], "round")}.`),
  );
}
