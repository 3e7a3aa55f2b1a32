// The answers first: whose data look wrong, who is served worst and why, and what to try.

import { commonest, worseThanCommonest } from "./data.js";
import { clientLink, commandCode, copyButton, make } from "./dom.js";
import { capital, clip, kindWords, plural } from "./format.js";
import { metric, signed, told, withSpan, worse, worstOf } from "./metric.js";
import { groupOf, groupTitle } from "./plane.js";
import { showCard, state } from "./state.js";
import { known, mean } from "./stats.js";

const MOST_NAMED = 4;
const GAP = 0.1;
const LONGEST = 90;
const UNCHECKED = "the labels and the data were not checked";

export function answersPart(block) {
  const found = [wrongAnswer(block), worstAnswer(block), tryAnswer(block)].filter(Boolean);
  return found.length ? make("div", { id: "answers", class: "answers" }, found) : null;
}

function answer(question, ...children) {
  return make("div", { class: "answer" }, make("h2", {}, question), children);
}

function link(block, client) {
  return clientLink(block.clients.name[client], () => showCard(client));
}

function wrongAnswer(block) {
  if (!block.check) return answer("Whose data look wrong?", make("p", {}, `Not known: ${UNCHECKED}.`));
  const people = [...new Set(block.check.suspects.map((own) => own.client))];
  if (!people.length) return answer("Whose data look wrong?", make("p", {}, "The check suspects no client."));
  // A wrong column is named by its finding, if that is short.
  const said = (own) =>
    own.kind.startsWith("labels-") || !own.text || own.text.length > LONGEST ? kindWords(own.kind) : own.text;
  const kinds = (client) => [...new Set(block.check.suspects.filter((own) => own.client === client).map(said))];
  const rest = people.length - MOST_NAMED;
  // How it shows; where something was trained there is room for wrong labels only.
  const shows = (client) =>
    block.check.suspects
      .filter((own) => own.client === client && own.cells && (own.cells.rows.length || !block.algorithms.length))
      .map((own) => make("p", { class: "aside" }, `To see it: ${own.cells.how}.`));
  return answer(
    "Whose data look wrong?",
    make(
      "ul",
      {},
      people
        .slice(0, MOST_NAMED)
        .map((client) => make("li", {}, link(block, client), `: ${kinds(client).join("; ")}`, shows(client))),
      rest > 0 ? make("li", { class: "aside" }, `and ${plural(rest, "more client")}`) : null,
    ),
  );
}

export function worstClient(own) {
  const worst = own.value.indexOf(worstOf(known([...own.value])));
  return worst < 0 ? null : worst;
}

function worstAnswer(block) {
  const own = block.algorithms[0];
  const client = own ? worstClient(own) : null;
  if (client === null) return null;
  const others = block.algorithms.slice(1, 3).map((one) => `, ${withSpan(one, client)} under ${clip(one.label, 24)}`);
  const where = others.length ? ` under ${clip(own.label, 24)}${others.join("")}` : "";
  return answer(
    "Who is served worst?",
    make(
      "p",
      {},
      link(block, client),
      `: ${metric.title} ${withSpan(own, client)}${where}${own.of ? ` (${own.of})` : ""}`.replaceAll(" %", "\u00a0%"),
    ),
    simplerPart(block, own, client),
    make("p", { class: "aside" }, mainReason(block, client)),
  );
}

function simplerPart(block, own, client) {
  const simple = commonest(block, client);
  if (!worseThanCommonest(block, own, client)) return null;
  const words = `Always answering “${clip(simple.label, 20)}” would be right in ${told(simple.share)}: the model does worse.`;
  return make("p", {}, words);
}

function mainReason(block, client) {
  const reasons = block.reasons[client] || [];
  const gap = groupGap(block, client);
  const own = reasons.find((one) => one.kind !== "few-tests")?.text;
  const first = own ?? gap ?? reasons[0]?.text;
  if (first && labelSuspect(block, client)) return `What stands out: ${first}.`;
  const cause = causeWords(block, client);
  // The numbers of the check's groups and of those that are shown may differ.
  const more = own ?? (checkGroup(block, client) === groupOf(client) ? gap : null);
  if (cause) return more ? `${cause} ${sentence(more)}` : cause;
  if (first) return `The cause is not known. What stands out: ${first}.`;
  const shares = block.check?.shift.label_shares;
  if (shares?.found && shares.evidence)
    return `The cause is not known. Clients differ in the shares of their labels. ${shares.evidence}`;
  return block.shared ? "Reasons are left out of a copy that is shared." : sentence(nothingWords(block));
}

function checkGroup(block, client) {
  return block.groupings.find((own) => own.key === "check")?.of[client];
}

function causeWords(block, client) {
  // In what the check found the client's group to differ from another; nothing where it speaks of other groups.
  const { inputs, labelling } = block.check?.shift ?? {};
  const groups = (own) =>
    own?.found
      ? [...own.evidence.matchAll(/\bgroups? (\d+)(?: and (\d+))?/g)].flatMap(([, ...both]) => both.map(Number))
      : [];
  const own = checkGroup(block, client);
  // Where inputs are alike, all groups differ by what labels mean.
  if (groups(labelling).includes(own) || (groups(labelling).length && !inputs.found))
    return `Labels mean other things in other groups: ${withGroupNames(block, labelling.evidence)}`;
  return groups(inputs).includes(own) ? `Inputs differ. ${withGroupNames(block, inputs.evidence)}` : null;
}

export function withGroupNames(block, text) {
  // A group of one client is called by that client's name, as on the rest of the page.
  const of = block.groupings.find((own) => own.key === "check")?.of || [];
  const name = (group) => {
    const members = [...of.keys()].filter((client) => of[client] === group);
    return members.length === 1 ? clip(block.clients.name[members[0]], 40) : `group ${group}`;
  };
  return text.replace(
    /\bgroups (\d+) and (\d+)/g,
    (_, one, other) => `${name(Number(one))} and ${name(Number(other))}`,
  );
}

function sentence(words) {
  return `${words[0].toUpperCase()}${words.slice(1)}.`;
}

export function nothingWords(block) {
  // Labels that nobody looked at are not cleared.
  return block.check
    ? "nothing stands out in its size, its classes or its distance from the others, and the check found nothing in its data"
    : `nothing stands out in its size, its classes or its distance from the others; ${UNCHECKED}`;
}

export function warning(block) {
  // One sentence before all others where labels look wrong: no figure is worth more than its labels.
  const wrong = block.check ? block.check.suspects.filter((own) => own.kind.startsWith("labels-")) : [];
  if (!wrong.length) return null;
  const people = [...new Set(wrong.map((own) => own.client))];
  const kinds = [...new Set(wrong.map((own) => kindWords(own.kind).replace("labels ", "")))].join(" or ");
  const rest = people.length - MOST_NAMED;
  const named = people.slice(0, MOST_NAMED).flatMap((client, i) => [i ? ", " : "", link(block, client)]);
  return make(
    "p",
    { class: "warning" },
    "The labels of ",
    named,
    rest > 0 ? ` and ${plural(rest, "more client")}` : "",
    ` look ${kinds}. `,
    block.algorithms.length
      ? "Repair that before you believe a figure on this page."
      : "Repair that before you train a model.",
  );
}

export function groupGap(block, client) {
  // A sentence where the client's whole group is served worse than the others.
  const own = block.algorithms[state.algorithm];
  const group = groupOf(client);
  if (!own || !block.groupings.length || group < 0) return null;
  const values = [true, false].map((same) =>
    known([...own.value].filter((_, other) => (groupOf(other) === group) === same && !block.clients.held_out[other])),
  );
  if (values[0].length < 2) return null; // it is alone
  const means = values.map(mean);
  const gap = metric.percent ? GAP : GAP * Math.abs(means[1]);
  if (!(worse(means[0], means[1]) && Math.abs(means[0] - means[1]) > gap)) return null;
  return `its whole group, ${clip(groupTitle(group), 40)}, is served badly: mean ${metric.title} ${told(means[0])}, of the others ${told(means[1])}`;
}

export function commandsFor(block, client) {
  // The commands of the advice that name a client.
  const name = JSON.stringify(block.clients.name[client]);
  return block.advice.filter((own) => own.command.includes(name));
}

export function betterPart(block) {
  // The algorithm that is better than the first one by more than chance, by the most.
  const sure = block.differences
    .map((row, i) => ({ i, value: row[0][0], half: row[0][1], over: row[0][2] }))
    .filter((one) => one.half !== null && worse(0, one.value) && Math.abs(one.value) > one.half)
    .sort((a, b) => (worse(a.value, b.value) ? 1 : -1));
  if (!sure.length) return null;
  const [{ i, value, half, over }] = sure;
  const [better, first] = [block.algorithms[i].label, block.algorithms[0].label];
  return make(
    "p",
    { class: "lead" },
    "Best of what was run: ",
    make("b", {}, clip(better, 28)),
    `, ${signed(value, half)}${metric.percent ? " points" : ""} of ${metric.title} against ${clip(first, 24)} (95 % interval ${signed(value - half, half)} to ${signed(value + half, half)}, over ${over}).`,
  );
}

const GOALS = [
  [/ --use group/, "Train a model for each group of clients that gains by one; the others share one"],
  [/ compare fedavg fedper/, "Compare one model for all with one whose last layer each client keeps for itself"],
  [/ compare fedavg fedbn/, "Compare one model for all with one whose norms each client keeps for itself"],
  [
    / compare fedavg feddisco/,
    "Compare one model for all with a method that allows for different shares of the labels",
  ],
];

export function adviceWords({ command, why }) {
  // What is left out until it is repaired is named in the command; of a setting that is given twice the last counts.
  const lists = Object.fromEntries(
    [...command.matchAll(/data\.(drop|held_out)=\[([^\]]*)\]/g)].map(([, key, list]) => [
      key,
      clip(list.replaceAll(/,\s*/g, ", ").replaceAll('"', ""), 60),
    ]),
  );
  const left = [
    lists.drop && `without the column${lists.drop.includes(",") ? "s" : ""} ${lists.drop}`,
    lists.held_out && `without ${lists.held_out} (tested, but does not train)`,
  ].filter(Boolean);
  if (why === "until repaired" && left.length) return `Until that is repaired, train ${left.join(", and ")}`;
  return GOALS.find(([pattern]) => pattern.test(command))?.[1] ?? capital(why);
}

export function labelSuspect(block, client) {
  const people = block.check ? block.check.suspects : [];
  return people.some((own) => own.client === client && own.kind.startsWith("labels-"));
}

export function firstAction(block) {
  // One thing to do, with the command that does it: check, or repair and train without it until then, or the advice.
  const open = block.advice.filter((own) => !own.done);
  const check = open.find((own) => own.command.startsWith("fedatlas check "));
  if (!block.check && check) return { words: "Check the data and the labels.", own: check };
  const first = block.check?.suspects[0];
  const named = first ? commandsFor(block, first.client) : [];
  const train = block.check ? open.find((one) => one.command.startsWith("fedatlas train")) : null;
  const own = named[0] || train || open[0];
  if (!own) return null;
  if (!first?.look) return { words: own.why ? `${adviceWords(own)}.` : "", own };
  return {
    words: `Look at ${first.look}.`,
    own,
    after: own.why ? `${adviceWords(own)}:` : "",
  };
}

export function doneWords(block, { done }) {
  // How an algorithm that the page holds already serves the clients.
  const own = block.algorithms.find((one) => one.label === done);
  const found = known([...own.value].filter((_, client) => !block.clients.held_out[client]));
  const whose = own.of ? ` (${own.of})` : "";
  if (!found.length) return `Done: ${clip(done, 28)} is on this page`;
  const least = `${metric.percent ? "" : `${metric.title} `}${told(worstOf(found))} or better`;
  return `Done: ${clip(done, 28)} serves all ${plural(found.length, "client")} at ${least}${whose}`.replaceAll(
    " %",
    "\u00a0%",
  );
}

function tryAnswer(block) {
  if (!block.advice.length) return null;
  const done = block.advice.filter((one) => one.done);
  const ticked = done.map((one) => make("p", {}, "✓ ", doneWords(block, one), "."));
  const action = firstAction(block);
  if (!action) return answer("What to try next?", ticked);
  const { words, own, after } = action;
  const more = block.advice.length - done.length - 1;
  return answer(
    done.length ? "What to try next?" : "What to try first?",
    ticked,
    words ? make("p", {}, words) : null,
    after ? make("p", { class: "aside" }, after) : null,
    make("div", { class: "code" }, commandCode(own.command), copyButton(own.command)),
    more > 0 ? make("a", { href: "#try" }, `${plural(more, "more command")}`) : null,
  );
}
