// The clients as the map has them: where they are, their groups, colours and words.

import { kindColor, kindShape, rampColor, suspicionColor } from "./color.js";
import { frameValue } from "./data.js";
import { clip, lower, plural } from "./format.js";
import { metric, withSpan } from "./metric.js";
import { state } from "./state.js";
import { known } from "./stats.js";

let block = null;
let largestTrain = 0;

export function setBlock(data) {
  block = data;
}

export function currentSource() {
  return block.sources[Number(state.plane.split("/")[0])] || null;
}

export function currentPlane() {
  const [source, plane] = state.plane.split("/").map(Number);
  return block.sources[source].planes[plane];
}

export function groupOf(client) {
  return block.groupings.length ? block.groupings[state.grouping].of[client] : 0;
}

export function groupTitle(group) {
  const own = block.groupings[state.grouping];
  if (!own) return "all clients";
  if (group < 0) return "in no group";
  if (own.names) return own.names[group];
  const first = own.of.indexOf(group);
  const alone = first >= 0 && own.of.indexOf(group, first + 1) < 0;
  return alone ? clip(block.clients.name[first], 40) : `group ${group}`;
}

function valueNow(client) {
  const own = block.algorithms[state.algorithm];
  if (!own) return NaN;
  if (state.frame !== null && own.frames) return frameValue(own, state.frame, client, block.count);
  return own.value[client];
}

export function largest() {
  largestTrain = largestTrain || block.clients.train.reduce((a, b) => Math.max(a, b), 1);
  return largestTrain;
}

export function colourOf(client) {
  const clients = block.clients;
  if (state.colour === "group") return kindColor(groupOf(client));
  if (state.colour === "domain") return kindColor(clients.domain[client]);
  if (state.colour === "suspicion") return suspicionColor(block.suspicion[client]);
  if (state.colour === "size") return rampColor(Math.log(1 + clients.train[client]) / Math.log(1 + largest()));
  const [low, high] = valueRange();
  return rampColor((valueNow(client) - low) / (high - low || 1));
}

export function shapeOf(client) {
  if (state.colour === "group") return kindShape(groupOf(client));
  if (state.colour === "domain") return kindShape(block.clients.domain[client]);
  return "circle";
}

export function valueRange() {
  const own = block.algorithms[state.algorithm];
  const values = known([...own.value]);
  return values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
}

export function describeClient(client) {
  const clients = block.clients;
  const said = [];
  if (block.groupings.length) said.push(clip(groupTitle(groupOf(client)), 40));
  said.push(plural(clients.train[client], "training example"));
  const own = block.algorithms[state.algorithm];
  if (own && !Number.isNaN(own.value[client])) {
    said.push(
      metric.name === "accuracy" ? withSpan(own, client, " % right") : `${metric.title} ${withSpan(own, client)}`,
    );
  }
  if (clients.held_out[client]) said.push("held out");
  if (block.suspicion[client] === 2) said.push("suspect");
  return said.join(", ");
}

export function searchClients(words) {
  const wanted = lower(words.trim());
  if (!wanted) return [];
  const clients = block.clients;
  const found = [];
  for (let i = 0; i < block.count; i += 1) {
    const domain = clients.domain[i] < 0 ? "" : clients.domains[clients.domain[i]];
    if (lower(clients.name[i]).includes(wanted) || lower(domain).includes(wanted)) found.push(i);
  }
  return found;
}
