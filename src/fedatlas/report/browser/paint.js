// Drawing the map on its canvas.

import { shapePath } from "./chart.js";
import { ink, suspicionColor } from "./color.js";
import { nearest } from "./data.js";
import { clip } from "./format.js";
import { colourOf, currentPlane, currentSource, shapeOf } from "./plane.js";
import { radius, screenOf, sheet, worldSide } from "./sheet.js";
import { state } from "./state.js";

const LABELLED = 40;

export function drawMap() {
  if (!sheet.canvas?.width) return;
  const pen = sheet.canvas.getContext("2d");
  const ratio = window.devicePixelRatio || 1;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, sheet.width, sheet.height);
  const ground = ink("paper");
  drawBackdrop(pen);
  const middle = state.hover ?? state.chosen;
  const near = middle === null ? [] : nearest(currentSource(), middle, 5, sheet.block.count);
  if (state.lines && middle !== null) drawLines(pen, middle, near);
  const order = [...Array(sheet.block.count).keys()].sort((a, b) => radius(b) - radius(a));
  const marked = [];
  for (const client of order) {
    const [x, y] = screenOf(client);
    if (x < -40 || y < -40 || x > sheet.width + 40 || y > sheet.height + 40) continue;
    const dim = sheet.sought && !sheet.sought.has(client);
    drawClient(pen, client, x, y, dim, ground);
    if (client === state.chosen || client === state.hover || client === sheet.focus) marked.push(client);
  }
  for (const client of marked) drawRing(pen, client);
  drawNames(
    pen,
    order,
    near.map(([other]) => other),
    ground,
  );
  if (sheet.lasso) drawLasso(pen);
}

function drawBackdrop(pen) {
  const backdrop = currentPlane().backdrop;
  if (!backdrop || sheet.moving) return;
  const side = worldSide();
  const cell = side / backdrop.side;
  const left = sheet.width / 2 + sheet.x - side / 2;
  const top = sheet.height / 2 + sheet.y - side / 2;
  pen.fillStyle = ink("faint");
  for (let i = 0; i < backdrop.side; i += 1) {
    for (let j = 0; j < backdrop.side; j += 1) {
      const count = backdrop.counts[i * backdrop.side + j];
      if (!count) continue;
      pen.globalAlpha = 0.06 + (0.3 * count) / 255;
      pen.fillRect(left + i * cell, top + j * cell, cell + 0.5, cell + 0.5);
    }
  }
  pen.globalAlpha = 1;
}

function drawLines(pen, middle, near) {
  const [x, y] = screenOf(middle);
  pen.strokeStyle = ink("muted");
  for (const [other, cosine] of near) {
    const [a, b] = screenOf(other);
    pen.globalAlpha = Math.max(0.15, Math.min(0.9, cosine));
    pen.lineWidth = 0.6 + 2 * Math.max(0, cosine);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(a, b);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function drawClient(pen, client, x, y, dim, ground) {
  const outline = new Path2D(shapePath(shapeOf(client), x, y, radius(client)));
  const color = colourOf(client);
  const unselected = state.selected.size > 0 && !state.selected.has(client);
  pen.globalAlpha = dim ? 0.12 : unselected ? 0.35 : 0.88;
  if (sheet.block.clients.held_out[client]) {
    pen.fillStyle = ground;
    pen.fill(outline);
    pen.lineWidth = 2.2;
    pen.strokeStyle = color;
    pen.stroke(outline);
  } else {
    pen.fillStyle = color;
    pen.fill(outline);
    pen.lineWidth = 1;
    pen.strokeStyle = ground;
    pen.stroke(outline);
  }
  if (sheet.block.suspicion[client] === 2 && !dim) {
    pen.lineWidth = 2;
    pen.strokeStyle = suspicionColor(2);
    pen.beginPath();
    pen.arc(x, y, radius(client) + 4, 0, 7);
    pen.setLineDash([3, 2.5]);
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.globalAlpha = 1;
}

function drawRing(pen, client) {
  const [x, y] = screenOf(client);
  pen.lineWidth = client === state.chosen ? 2.6 : 1.4;
  pen.strokeStyle = ink("ink");
  pen.beginPath();
  pen.arc(x, y, radius(client) + (sheet.block.suspicion[client] === 2 ? 9 : 5), 0, 7);
  pen.stroke();
}

function drawNames(pen, order, near, ground) {
  const first = [state.hover, state.chosen, sheet.focus, ...near].filter((client) => client !== null);
  const others =
    sheet.block.count <= LABELLED ? order : sheet.sought && sheet.sought.size <= LABELLED ? [...sheet.sought] : [];
  const taken = [];
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.lineJoin = "round";
  for (const client of new Set([...first, ...others])) {
    const [x, y] = screenOf(client);
    const text = clip(sheet.block.clients.name[client], 22);
    const wide = pen.measureText(text).width;
    const ringed = client === state.chosen || client === state.hover;
    const gap = radius(client) + (sheet.block.suspicion[client] === 2 ? (ringed ? 10 : 5) : ringed ? 6 : 0) + 5;
    const left = x + gap + wide > sheet.width - 4 ? x - gap - wide : x + gap;
    const box = [left - 2, y - 8, left + wide + 2, y + 8];
    if (taken.some((own) => own[0] < box[2] && box[0] < own[2] && own[1] < box[3] && box[1] < own[3])) continue;
    taken.push(box);
    pen.lineWidth = 3.5;
    pen.strokeStyle = ground;
    pen.strokeText(text, left, y);
    pen.fillStyle = first.includes(client) ? ink("ink") : ink("muted");
    pen.fillText(text, left, y);
  }
}

function drawLasso(pen) {
  pen.beginPath();
  for (const [x, y] of sheet.lasso) pen.lineTo(x, y);
  pen.closePath();
  pen.fillStyle = ink("accent");
  pen.globalAlpha = 0.12;
  pen.fill();
  pen.globalAlpha = 1;
  pen.lineWidth = 1.5;
  pen.strokeStyle = ink("accent");
  pen.stroke();
}
