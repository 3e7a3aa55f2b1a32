// The sheet that the map is drawn on: its size, its zoom, and where each client is.

import { currentPlane, largest } from "./plane.js";
import { state } from "./state.js";

const PAD = 34;
export const sheet = {
  block: null,
  canvas: null,
  places: null,
  moving: null,
  lasso: null,
  lassoOn: false,
  focus: null,
  sought: null,
  scale: 1,
  x: 0,
  y: 0,
  width: 600,
  height: 440,
};
let draw = () => {};
let queued = false;

export function drawWith(painter) {
  draw = painter;
}

export function targetPlaces(from = null) {
  const plane = currentPlane();
  const to = new Float64Array(2 * sheet.block.count);
  for (let i = 0; i < sheet.block.count; i += 1) {
    to[2 * i] = plane.px[i] / 65535;
    to[2 * i + 1] = plane.py[i] / 65535;
  }
  if (from === null || matchMedia("(prefers-reduced-motion: reduce)").matches) return to;
  sheet.moving = { from, to, start: performance.now() };
  return from;
}

export function moveTo() {
  if (!sheet.moving) return;
  const part = Math.min(1, (performance.now() - sheet.moving.start) / 450);
  const ease = 1 - (1 - part) ** 3;
  const next = new Float64Array(sheet.places.length);
  for (let i = 0; i < next.length; i += 1)
    next[i] = sheet.moving.from[i] + ease * (sheet.moving.to[i] - sheet.moving.from[i]);
  sheet.places = next;
  if (part === 1) sheet.moving = null;
  else requestAnimationFrame(moveTo);
  draw();
}

export function screenOf(client) {
  const side = Math.min(sheet.width, sheet.height) - 2 * PAD;
  const wide = Math.max(0, (sheet.width - sheet.height) / 2);
  const tall = Math.max(0, (sheet.height - sheet.width) / 2);
  const x = PAD + wide + sheet.places[2 * client] * side;
  const y = PAD + tall + sheet.places[2 * client + 1] * side;
  return [
    (x - sheet.width / 2) * sheet.scale + sheet.width / 2 + sheet.x,
    (y - sheet.height / 2) * sheet.scale + sheet.height / 2 + sheet.y,
  ];
}

export function radius(client) {
  const growth = Math.min(1.8, sheet.scale ** 0.3);
  const crowd = Math.max(0.55, Math.min(1.25, Math.sqrt(160 / sheet.block.count)));
  if (state.area === "same") return 6 * crowd * growth;
  return (3 + 8.5 * Math.sqrt(sheet.block.clients.train[client] / largest())) * crowd * growth;
}

export function resize() {
  const box = sheet.canvas.getBoundingClientRect();
  if (!box.width) return;
  sheet.width = box.width;
  sheet.height = box.height;
  const ratio = window.devicePixelRatio || 1;
  sheet.canvas.width = Math.round(box.width * ratio);
  sheet.canvas.height = Math.round(box.height * ratio);
  draw();
}

export function zoom(factor, at = [sheet.width / 2, sheet.height / 2]) {
  const next = Math.max(0.6, Math.min(40, sheet.scale * factor));
  const real = next / sheet.scale;
  sheet.x = (sheet.x - (at[0] - sheet.width / 2)) * real + (at[0] - sheet.width / 2);
  sheet.y = (sheet.y - (at[1] - sheet.height / 2)) * real + (at[1] - sheet.height / 2);
  sheet.scale = next;
  draw();
}

export function zoomAll() {
  Object.assign(sheet, { scale: 1, x: 0, y: 0 });
  draw();
}

export function queueDraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    draw();
  });
}

export function worldSide() {
  return (Math.min(sheet.width, sheet.height) - 2 * PAD) * sheet.scale;
}
