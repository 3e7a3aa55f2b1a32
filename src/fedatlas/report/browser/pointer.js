// The map under a pointer and under the keyboard.

import { make, renew, speak } from "./dom.js";
import { clip, plural } from "./format.js";
import { describeClient } from "./plane.js";
import { queueDraw, radius, screenOf, sheet, zoom, zoomAll } from "./sheet.js";
import { change, choose, select, state, toggle } from "./state.js";

export function addPointer(tip) {
  let held = null;
  const where = (event) => {
    const box = sheet.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  sheet.canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const at = where(event);
    held = { at, from: { x: sheet.x, y: sheet.y }, moved: false };
    if (sheet.lassoOn || event.shiftKey) sheet.lasso = [at];
    sheet.canvas.setPointerCapture(event.pointerId);
  });
  sheet.canvas.addEventListener("pointermove", (event) => {
    const at = where(event);
    if (!held) {
      const client = hit(at);
      if (client !== state.hover) change({ hover: client });
      showTip(tip, client, at);
      return;
    }
    held.moved = held.moved || Math.hypot(at[0] - held.at[0], at[1] - held.at[1]) > 4;
    if (sheet.lasso) sheet.lasso.push(at);
    else if (held.moved)
      Object.assign(sheet, { x: held.from.x + at[0] - held.at[0], y: held.from.y + at[1] - held.at[1] });
    queueDraw();
  });
  const settle = () => {
    held = null;
    sheet.lasso = null;
    queueDraw();
  };
  const stop = (event) => {
    if (!held) return;
    const at = where(event);
    if (sheet.lasso && sheet.lasso.length > 3) takeLasso();
    else if (!held.moved) {
      const client = hit(at);
      // A click beside a dot leaves the card as it is; Escape closes it.
      if (client === null) return settle();
      if (event.ctrlKey || event.metaKey) toggle(client);
      else choose(client);
    }
    settle();
  };
  sheet.canvas.addEventListener("pointerup", stop);
  sheet.canvas.addEventListener("pointercancel", () => settle());
  sheet.canvas.addEventListener("pointerleave", () => {
    if (!held) change({ hover: null });
    showTip(tip, null);
  });
  sheet.canvas.addEventListener(
    "wheel",
    (event) => {
      // The page scrolls; the map zooms with Ctrl, or while it has the focus.
      if (!event.ctrlKey && document.activeElement !== sheet.canvas) return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 400), where(event));
    },
    { passive: false },
  );
}

function hit([x, y]) {
  let [best, least] = [null, Infinity];
  for (let client = 0; client < sheet.block.count; client += 1) {
    const [a, b] = screenOf(client);
    const distance = Math.hypot(a - x, b - y) - radius(client);
    if (distance < 5 && distance < least) [best, least] = [client, distance];
  }
  return best;
}

function inside(polygon, [x, y]) {
  let odd = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i, i += 1) {
    const [[a, b], [c, d]] = [polygon[i], polygon[j]];
    if (b > y !== d > y && x < ((c - a) * (y - b)) / (d - b) + a) odd = !odd;
  }
  return odd;
}

function takeLasso() {
  const found = [];
  for (let client = 0; client < sheet.block.count; client += 1)
    if (inside(sheet.lasso, screenOf(client))) found.push(client);
  select(found);
  speak(`${plural(found.length, "client")} selected`);
}

function showTip(tip, client, at = null) {
  tip.classList.toggle("shown", client !== null);
  if (client === null) return;
  renew(tip, make("b", {}, clip(sheet.block.clients.name[client], 60)), make("span", {}, describeClient(client)));
  const right = at[0] > sheet.width / 2;
  tip.style.left = right ? "auto" : `${at[0] + 16}px`;
  tip.style.right = right ? `${sheet.width - at[0] + 16}px` : "auto";
  tip.style.top = `${at[1] + sheet.canvas.offsetTop + 12}px`;
}

export function onKey(event) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const at = sheet.focus ?? state.chosen;
  if (event.key in steps) focusOn(at === null ? 0 : towards(at, steps[event.key]));
  else if (event.key === "Enter" && at !== null) choose(at);
  else if (event.key === " " && at !== null) toggle(at);
  else if (event.key === "Escape") {
    sheet.focus = null;
    select([]);
    choose(null);
  } else if (event.key === "+" || event.key === "=") zoom(1.5);
  else if (event.key === "-") zoom(1 / 1.5);
  else if (event.key === "0") zoomAll();
  else return;
  event.preventDefault();
}

function focusOn(client) {
  sheet.focus = client;
  speak(`${sheet.block.clients.name[client]}: ${describeClient(client)}`);
  queueDraw();
}

function towards(from, [dx, dy]) {
  // The client that is nearest in a direction: steps aside count double.
  const [x, y] = screenOf(from);
  let [best, least] = [from, Infinity];
  for (let client = 0; client < sheet.block.count; client += 1) {
    const [a, b] = screenOf(client);
    const along = (a - x) * dx + (b - y) * dy;
    const aside = Math.abs((a - x) * dy) + Math.abs((b - y) * dx);
    if (client !== from && along > 0 && along + 2 * aside < least) [best, least] = [client, along + 2 * aside];
  }
  return best;
}
