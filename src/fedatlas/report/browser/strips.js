// A strip for each group: how many clients, how they are served, one algorithm against the others.

import { dotStrip, groupSwatch } from "./chart.js";
import { kindColor } from "./color.js";
import { meanShares } from "./data.js";
import { make, note, renew } from "./dom.js";
import { clip, percent, plural, thousands } from "./format.js";
import { bare, metricTitle, told, unit, worstOf } from "./metric.js";
import { groupOf, groupTitle } from "./plane.js";
import { listen, select, showCard, state } from "./state.js";
import { deviation, known, mean } from "./stats.js";

const MOST_GROUPS = 40;
const MOST_ALGORITHMS = 4;
let block = null;

export function groupsPart(data) {
  block = data;
  const decided = block.algorithms.some((own) => own.why_groups.length);
  if (!block.groupings.length) return decided ? make("div", { id: "groups", class: "groups" }, whyGroups()) : null;
  const node = make("div", { id: "groups", class: "groups" });
  listen(["grouping", "algorithm", "theme"], () => fillGroups(node));
  fillGroups(node);
  return node;
}

function fillGroups(node) {
  const grouping = block.groupings[state.grouping];
  const members = new Map();
  for (let client = 0; client < block.count; client += 1) {
    const group = groupOf(client);
    if (!members.has(group)) members.set(group, []);
    members.get(group).push(client);
  }
  const groups = [...members].sort((a, b) => (a[0] < 0) - (b[0] < 0) || b[1].length - a[1].length || a[0] - b[0]);
  const rest = groups.length - MOST_GROUPS;
  const shownGroups = groups.filter(([group]) => group >= 0).length;
  if (shownGroups === block.count && block.count > 1) {
    const words = `Every client is a group by itself (${grouping.title}): no two are alike beyond chance.`;
    renew(node, grouping.key === "domain" ? null : note(words), whyGroups());
    return;
  }
  renew(
    node,
    make("h3", {}, shownGroups ? plural(shownGroups, "group") : "No groups", make("small", {}, ` ${grouping.title}`)),
    grouping.about ? note(grouping.about) : null,
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Groups" },
      make("table", {}, groupsHead(), make("tbody", {}, groups.slice(0, MOST_GROUPS).map(groupRow))),
    ),
    rest > 0 ? note(`And ${plural(rest, "smaller group")}.`) : null,
    whyGroups(),
  );
}

function whyGroups() {
  // What was decided about groups of clients, what trials showed, and what they cost.
  const found = block.algorithms.filter((own) => own.why_groups.length);
  return found.map((own) =>
    make(
      "div",
      { class: "why-groups" },
      make("h4", {}, "Why these groups", make("small", {}, ` ${clip(own.label, 40)}`)),
      make(
        "ul",
        { class: "reasons" },
        own.why_groups.map((line) => make("li", {}, line)),
      ),
    ),
  );
}

function others() {
  return block.algorithms.filter((_, i) => i !== state.algorithm).slice(0, MOST_ALGORITHMS);
}

function groupsHead() {
  const own = block.algorithms[state.algorithm];
  const inPercent = unit() && " in %";
  const heads = own
    ? [
        "Group",
        "Clients",
        `Mean${inPercent}`,
        "Worst",
        "Spread",
        ...others().map((one) => `Mean, ${clip(one.label, 20)}`),
        `${metricTitle()}${inPercent}, ${clip(own.label, 24)}`,
      ]
    : ["Group", "Clients", "Training examples", "Labels"];
  return make(
    "thead",
    {},
    make(
      "tr",
      {},
      heads.map((title) => make("th", { scope: "col" }, title)),
    ),
  );
}

function groupRow([group, clients]) {
  const own = block.algorithms[state.algorithm];
  const name = make(
    "th",
    { scope: "row" },
    make(
      "button",
      {
        type: "button",
        class: "link",
        title: clients.length === 1 ? null : "Select its clients",
        on: { click: () => (clients.length === 1 ? showCard(clients[0]) : select(clients)) },
      },
      groupSwatch(group),
      make("bdi", {}, clip(groupTitle(group), 32)),
    ),
  );
  const row = make("tr", { "data-group": group }, name, make("td", {}, thousands(clients.length)));
  if (!own) {
    row.append(
      make("td", {}, thousands(clients.reduce((sum, client) => sum + block.clients.train[client], 0))),
      make("td", {}, miniLabels(clients)),
    );
    return row;
  }
  const values = known(clients.map((client) => own.value[client]));
  const [centre, worst] = [mean(values), worstOf(values)];
  const about = values.length ? `mean ${told(centre)}, worst ${told(worst)}` : "not tested";
  row.append(
    make("td", {}, bare(centre)),
    make("td", {}, bare(worst)),
    make("td", {}, values.length > 1 ? bare(deviation(values)) : "–"),
    ...others().map((one) => make("td", {}, bare(mean(known(clients.map((client) => one.value[client])))))),
    make("td", {}, dotStrip(values, about, { color: kindColor(group < 0 ? 0 : group) })),
  );
  return row;
}

function miniLabels(clients) {
  if (!block.clients.shares) return "–";
  const shares = meanShares(block, clients).slice(0, 40);
  const most = Math.max(...shares, 0.01);
  return make(
    "span",
    {
      class: "mini",
      role: "img",
      "aria-label": shares.map((share, k) => `${block.classes[k]} ${percent(share)} %`).join(", "),
    },
    shares.map((share, k) =>
      make("i", {
        title: `${block.classes[k]}: ${percent(share)} %`,
        style: { height: `${Math.max(4, (100 * share) / most)}%` },
      }),
    ),
  );
}
