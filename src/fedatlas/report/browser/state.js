// What the reader has chosen; whoever draws listens.

export const state = {
  chosen: null,
  hover: null,
  selected: new Set(),
  plane: "0/0",
  colour: "group",
  area: "train",
  grouping: 0,
  algorithm: 0,
  reference: 0,
  frame: null,
  lines: true,
  theme: 0,
};

const listeners = [];
let waiting = null;

export function listen(keys, listener) {
  listeners.push([new Set(keys), listener]);
}

export function change(values) {
  const keys = Object.keys(values).filter((key) => state[key] !== values[key]);
  Object.assign(state, values);
  if (!keys.length) return;
  if (waiting) {
    for (const key of keys) waiting.add(key);
    return;
  }
  waiting = new Set(keys);
  queueMicrotask(() => {
    const changed = waiting;
    waiting = null;
    for (const [own, listener] of listeners) if ([...changed].some((key) => own.has(key))) listener(changed);
  });
}

export function choose(client) {
  change({ chosen: client });
}

export function showCard(client) {
  // The card may be out of sight: above, or on a phone below the map.
  choose(client);
  const card = document.getElementById("card");
  const place = card.parentElement.getClientRects().length ? card.parentElement : card;
  const top = place.getBoundingClientRect().top;
  if (top < 0 || top > innerHeight - 200) place.scrollIntoView({ block: "start" });
}

export function select(clients) {
  change({ selected: new Set(clients) });
}

export function toggle(client) {
  const next = new Set(state.selected);
  if (!next.delete(client)) next.add(client);
  change({ selected: next });
}
