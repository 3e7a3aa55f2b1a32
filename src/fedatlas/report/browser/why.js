// Why clients are served badly, each cause with its evidence; and what to try.

import { adviceWords, doneWords, firstAction, groupGap, nothingWords, withGroupNames, worstClient } from "./answers.js";
import { scatter } from "./chart.js";
import { clearlyBelow, meanOverClients } from "./compare.js";
import { labelShares, nearest } from "./data.js";
import { clientLink, commandCode, copyButton, exact, make, note, renew } from "./dom.js";
import { clip, decimal, kindWords, plural } from "./format.js";
import { metric, metricTitle, sidewards, told, withSpan, worse } from "./metric.js";
import { colourOf, currentSource } from "./plane.js";
import { choose, listen, state } from "./state.js";
import { known, mean, rankCorrelation } from "./stats.js";

const MOST_NEAR = 1000;
const MOST_WORST = 5;
const MOST_LOOKS = 6;
const NAMED = 8;
let block = null;

export function whyPart(data) {
  block = data;
  const node = make("div", { class: "causes" });
  const fill = () => renew(node, block.algorithms.length ? causes() : null, shiftPart());
  listen(["algorithm", "plane", "colour", "grouping", "theme"], fill);
  fill();
  return node;
}

function causes() {
  const own = block.algorithms[state.algorithm];
  const tested = [...own.value.keys()].filter((client) => !Number.isNaN(own.value[client]));
  if (tested.length < 2) return note("Too few clients were tested to look for causes.");
  const charts = [sizeCause(own, tested), distanceCause(own, tested), classCause(own, tested)];
  const scatters = make("div", { class: "scatters" }, charts);
  const labels = labelCause(own, tested);
  // Data that are wrong come first: they can be repaired.
  return [worstList(own), ...(block.check?.suspects.length ? [labels, scatters] : [scatters, labels])];
}

function worstList(own) {
  // The clients that are served worse than the mean by more than chance, or the worst one, each with what stands out.
  const below = clearlyBelow(own).sort((a, b) => (worse(own.value[a], own.value[b]) ? -1 : 1));
  const worst = worstClient(own);
  const people = (below.length ? below : [worst]).slice(0, MOST_WORST);
  const said = (client) => {
    if (block.shared) return "reasons are left out of a copy that is shared";
    const found = (block.reasons[client] || []).map((one) => one.text);
    const gap = groupGap(block, client);
    const all = [...found, ...(gap ? [gap] : [])];
    return all.length ? all.join("; ") : nothingWords(block);
  };
  // The end of the interval with a decimal, where it would read as the mean itself.
  const ends = metric.higher ? own.high : own.low;
  const edge = (client) =>
    below.length && told(ends[client]) === told(meanOverClients(own)) ? `, at best ${told(ends[client], 0.01)}` : "";
  const rest = below.length - people.length;
  return cause(
    below.length ? `Clearly ${sidewards()} the mean over clients` : "The worst served",
    below.length
      ? `The whole interval of ${below.length === 1 ? "this client" : "these clients"} is ${sidewards()} the mean over clients, ${told(meanOverClients(own), 0.01)}.`
      : "",
    make(
      "ul",
      { class: "reasons" },
      // Clients of whom the same is said share a line.
      [...Map.groupBy(people, said)].map(([words, clients]) =>
        make(
          "li",
          {},
          clients.flatMap((client, i) => [
            i ? "; " : null,
            clientLink(block.clients.name[client], () => choose(client)),
            `, ${withSpan(own, client)}${edge(client)}`,
          ]),
          `: ${words}.`,
        ),
      ),
      rest > 0 ? make("li", { class: "aside" }, `${plural(rest, "more client")}: filter the table above.`) : null,
    ),
  );
}

function cause(title, words, picture) {
  return make("div", { class: "cause" }, make("h3", {}, title), make("p", {}, words), picture);
}

function correlationWords(found, more, less) {
  if (!found) return ["Too few clients for a rule; they are drawn as they are."];
  const span = `rank correlation ${decimal(found.value)}, 95 % interval ${decimal(found.low)} to ${decimal(found.high)}`;
  if (found.low > 0) return [exact(`${more}.`, span)];
  if (found.high < 0) return [exact(`${less}.`, span)];
  return [exact("No clear relation: chance may explain what is seen.", span)];
}

function factor(own, tested, title, value, { xTitle, logarithmic = false, more, less, same }) {
  const points = tested
    .map((client) => ({
      client,
      x: value(client),
      y: own.value[client],
      color: colourOf(client),
      name: block.clients.name[client],
    }))
    .filter((point) => !Number.isNaN(point.x));
  const found = rankCorrelation(
    points.map((point) => point.x),
    points.map((point) => point.y),
  );
  const differ = new Set(points.map((point) => point.x)).size > 1;
  if (!differ) return cause(title, `Not the reason: all clients have ${same(points[0]?.x)}.`);
  const words = metric.higher ? correlationWords(found, more, less) : correlationWords(found, less, more);
  const name = points.length <= NAMED ? (client) => clip(block.clients.name[client], 14) : null;
  return cause(title, words, scatter(points, `${metricTitle()} by ${xTitle}`, { xTitle, logarithmic, choose, name }));
}

function sizeCause(own, tested) {
  return factor(own, tested, "Size", (client) => block.clients.train[client], {
    xTitle: "training examples",
    logarithmic: true,
    same: (count) => plural(count, "training example"),
    more: "Clients with more examples are served better",
    less: "Clients with more examples are served worse",
  });
}

function distanceCause(own, tested) {
  const source = currentSource();
  if (!source || block.count > MOST_NEAR || block.count < 3) return null;
  const near = (client) => mean(nearest(source, client, 3, block.count).map((pair) => pair[1]));
  return factor(own, tested, "Likeness to others", near, {
    xTitle: `likeness to the ${Math.min(3, block.count - 1)} nearest (1 is alike)`,
    same: (value) => `the same likeness to others, ${decimal(value)}`,
    more: "Clients that are like others are served better",
    less: "Clients that are like others are served worse",
  });
}

function classCause(own, tested) {
  if (!block.clients.shares || block.classes.length < 3) return null;
  return factor(
    own,
    tested,
    "Missing classes",
    (client) => labelShares(block, client).filter((share) => share > 0).length,
    {
      xTitle: "classes that it has",
      same: (count) => plural(count, "class", "es"),
      more: "Clients with more classes are served better",
      less: "Clients with more classes are served worse",
    },
  );
}

function labelCause(own, tested) {
  if (!block.check) return null;
  const accused = new Set(block.check.suspects.map((one) => one.client));
  const [inside, outside] = [
    tested.filter((client) => accused.has(client)),
    tested.filter((client) => !accused.has(client)),
  ];
  const people = block.check.suspects.length
    ? make("ul", { class: "reasons" }, block.check.suspects.slice(0, 12).map(suspectLine))
    : note("The check found no client whose data look wrong.");
  const means = [inside, outside].map((clients) => mean(known(clients.map((client) => own.value[client]))));
  const words =
    inside.length && outside.length
      ? `Mean ${metric.title} of the ${plural(inside.length, "suspect")} ${told(means[0])}, of the others ${told(means[1])}.`
      : "";
  return cause("Trouble with data or labels", words, people);
}

function suspectLine(own) {
  return make(
    "li",
    {},
    clientLink(block.clients.name[own.client], () => choose(own.client)),
    ": ",
    exact(`${own.text || kindWords(own.kind)}.`, own.figure),
    own.look ? make("span", { class: "aside" }, ` Look at ${own.look}.`) : null,
  );
}

function shiftPart() {
  if (!block.check) return null;
  const names = { inputs: "Inputs", label_shares: "Shares of the labels", labelling: "What labels mean" };
  return make(
    "div",
    { class: "cause" },
    make("h3", {}, "How the clients differ"),
    make(
      "dl",
      { class: "shift" },
      Object.entries(block.check.shift).map(([way, own]) => [
        make(
          "dt",
          {},
          names[way] || way,
          make(
            "span",
            { class: `tag${own.found && way === "labelling" ? " found" : ""}` },
            way === "labelling" ? (own.found ? "differs" : "does not differ") : own.found ? "differ" : "do not differ",
          ),
        ),
        make("dd", {}, exact(withGroupNames(block, own.evidence), own.figures)),
      ]),
    ),
    block.check.remarks.map((remark) => note(`Cannot be told: ${remark}`)),
    block.algorithms.length
      ? null
      : make(
          "div",
          {},
          make("h3", {}, "Suspects"),
          block.check.suspects.length
            ? make("ul", { class: "reasons" }, block.check.suspects.slice(0, 12).map(suspectLine))
            : note("No client's data look wrong."),
        ),
  );
}

export function commandLine(command, why, done = "") {
  return make(
    "div",
    { class: "command", "data-command": command },
    why ? make("p", {}, adviceWords({ command, why })) : null,
    done ? make("p", { class: "aside" }, `✓ ${done}.`) : null,
    make("div", { class: "code" }, commandCode(command), copyButton(command)),
  );
}

export function tryPart(data) {
  if (!data.advice.length) return null;
  const looks = new Set((data.check?.suspects || []).map((own) => own.look).filter(Boolean));
  const first = [...looks].slice(0, MOST_LOOKS);
  const urgent = firstAction(data)?.own;
  const order = [urgent, ...data.advice.filter((own) => own !== urgent && !own.done)].filter(Boolean);
  const done = data.advice.filter((own) => own.done);
  return [
    first.length
      ? make(
          "div",
          { class: "looks" },
          make("p", {}, make("b", {}, "First, look at")),
          make(
            "ul",
            { class: "reasons" },
            first.map((look) => make("li", {}, look)),
          ),
        )
      : null,
    // In the order of the first answer, and last what the page holds already.
    order.map((own) => commandLine(own.command, own.why)),
    done.map((own) => commandLine(own.command, own.why, doneWords(data, own))),
    data.check && !data.algorithms.length
      ? note("A training of these data writes a page that has the same findings, and how each client is served.")
      : null,
  ];
}
