// Acting on selected clients: the command or the config that holds them out, leaves them out, groups or adapts them.

import { byId, choice, copyButton, make, note, renew, saveFile, wholeWords } from "./dom.js";
import { clip, plural } from "./format.js";
import { listen, select, state } from "./state.js";

const ACTIONS = {
  held_out: ["hold out", "They are tested, and never train."],
  leave_out: ["leave out", "They take no part at all."],
  group: ["give a model of their own", "They share one model, all others another."],
  adapt: ["adapt the run to them", "Each tunes the trained model on its own examples."],
};
const chosen = { action: "held_out", form: "command" };
let block = null;

export function actPart(data) {
  block = data;
  const node = make("div", { id: "selection", class: "selection", "data-count": 0 });
  listen(["selected"], () => fillSelection(node));
  fillSelection(node);
  return node;
}

function fillSelection(node) {
  const clients = [...state.selected].sort((a, b) => a - b);
  node.dataset.count = clients.length;
  node.hidden = clients.length === 0;
  if (!clients.length) {
    renew(node);
    return;
  }
  const names = clients.map((client) => block.clients.name[client]);
  const shown =
    names
      .slice(0, 6)
      .map((name) => clip(name, 24))
      .join(", ") + (names.length > 6 ? ", …" : "");
  const clear = make("button", { type: "button", id: "clear", on: { click: () => select([]) } }, "Clear");
  renew(
    node,
    make(
      "div",
      { class: "selected" },
      make("b", {}, `${plural(clients.length, "client")} selected`),
      make("span", {}, shown),
      clear,
    ),
    block.act ? actions(names) : note(cannot()),
  );
}

function cannot() {
  return block.shared
    ? "Commands are left out of a copy that is shared."
    : "These clients were not made from a config, so there is no command; use their names in Python.";
}

function actions(names) {
  const possible = Object.keys(ACTIONS).filter((key) => key !== "adapt" || block.act.run);
  if (!possible.includes(chosen.action)) chosen.action = possible[0];
  const forms = [["command", "as a command"], ...(block.act.config ? [["config", "as a config"]] : [])];
  const output = make("pre", { id: "command", tabindex: 0 });
  const about = make("p", { class: "note" });
  const save = make(
    "button",
    { id: "save", type: "button", on: { click: () => saveFile("page.toml", output.textContent, "text/plain") } },
    "Save",
  );
  const write = () => {
    const config = chosen.form === "config" && chosen.action !== "adapt";
    renew(output, config ? configText(chosen.action, names) : wholeWords(commandText(chosen.action, names)));
    about.textContent = `${ACTIONS[chosen.action][1]}${config ? " Save it and run: fedatlas train --config page.toml" : ""}`;
    save.hidden = !config;
  };
  const bar = make(
    "div",
    { class: "switches" },
    choice(
      "action",
      "Do",
      possible.map((key) => [key, ACTIONS[key][0]]),
      chosen.action,
      (value) => {
        chosen.action = value;
        write();
      },
    ),
    choice("form", "Write it", forms, chosen.form, (value) => {
      chosen.form = value;
      write();
    }),
  );
  write();
  return [bar, about, output, copyButton(() => byId("command").textContent, "copy"), save];
}

function listText(names) {
  // JSON's strings are TOML's, but for one character; marks that turn the direction of text are written out.
  const marks = /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
  return JSON.stringify(names).replace(marks, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function outNames(names) {
  return [...new Set([...block.act.held_out, ...names])];
}

function commandText(action, names) {
  const act = block.act;
  const folder = (end) => `--folder ${shellWord(`${act.folder}-${end}`)}`;
  const setting = (key, value) => `--set ${shellWord(`${key}=${value}`)}`;
  if (action === "adapt")
    return `fedatlas adapt ${shellWord(act.run)} ${names.map((name) => `--client ${shellWord(name)}`).join(" ")}`;
  if (action === "held_out")
    return `fedatlas train ${act.given} ${setting("data.held_out", listText(outNames(names)))} ${folder("held-out")}`;
  if (action === "leave_out")
    return `fedatlas train ${act.given} ${setting("data.leave_out", listText([...act.leave_out, ...names]))} ${folder("left-out")}`;
  return `fedatlas train ${act.given} --use group ${setting("sharing.members", `[${listText(names)}]`)} ${folder("grouped")}`;
}

function configText(action, names) {
  const act = block.act;
  const grouped = action === "group";
  const spots = {
    held_out: action === "held_out" ? outNames(names) : act.held_out,
    leave_out: action === "leave_out" ? [...act.leave_out, ...names] : act.leave_out,
    members: grouped ? [names] : null,
    use: grouped ? ["group"] : act.use,
  };
  // A spot that is not needed goes with its line.
  return act.config.replace(/^(\w+) = "@(\w+)@"\n/gm, (_, key, spot) =>
    spots[spot] === null ? "" : `${key} = ${listText(spots[spot])}\n`,
  );
}
