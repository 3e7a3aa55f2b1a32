// The data of the page: read once, packed numbers unpacked.

const KINDS = { u8: Uint8Array, i8: Int8Array, u16: Uint16Array, i16: Int16Array, u32: Uint32Array, f32: Float32Array };
const NONE = 65535;
const MOST_NEAR = 5;
const ROUNDING = 0.005;

function unpack(packed) {
  const text = atob(packed.d);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return new KINDS[packed.t](bytes.buffer);
}

function figures(packed) {
  if (packed.t === "f32") return Float64Array.from(unpack(packed));
  return Float64Array.from(unpack(packed), (value) => (value === NONE ? NaN : value / 10000));
}

export function readBlock() {
  const block = JSON.parse(document.getElementById("data").textContent);
  const clients = block.clients;
  block.count = clients.name.length;
  clients.shares = clients.labels ? unpack(clients.labels) : null;
  for (const source of block.sources) {
    source.rows = unpack(source.vectors);
    for (const plane of source.planes) {
      plane.px = unpack(plane.x);
      plane.py = unpack(plane.y);
      if (plane.backdrop) plane.backdrop.counts = unpack(plane.backdrop.cells);
    }
  }
  for (const own of block.algorithms) {
    own.value = figures(own.clients.value);
    own.low = figures(own.clients.low);
    own.high = figures(own.clients.high);
    own.tookPart = unpack(own.clients.took_part);
    if (own.frames) own.frames.table = unpack(own.frames.value);
    if (own.weights) own.weights.table = unpack(own.weights.table);
  }
  if (block.fixed_answers) block.fixed_answers.share = figures(block.fixed_answers.right);
  block.suspicion = suspicionOf(block);
  block.reasons = block.reasons || {};
  block.pictures = block.pictures || {};
  block.rows = block.rows || {};
  block.advice = block.advice || [];
  return block;
}

function suspicionOf(block) {
  // 2 a suspect, 1 different but not wrong, 0 neither.
  const found = new Uint8Array(block.clients.name.length);
  if (!block.check) return found;
  for (const own of block.check.different) found[own.client] = Math.max(found[own.client], 1);
  for (const own of block.check.suspects) found[own.client] = 2;
  return found;
}

export function cosine(source, i, j) {
  const width = source.width;
  let sum = 0;
  for (let k = 0; k < width; k += 1) sum += source.rows[i * width + k] * source.rows[j * width + k];
  return Math.max(-1, Math.min(1, sum * source.scale * source.scale));
}

export function nearest(source, client, count, total) {
  // The few nearest, by insertion; kept, as several parts of the page ask for them.
  source.near = source.near || new Map();
  const known = source.near.get(client);
  if (known && known.length >= Math.min(count, total - 1)) return known.slice(0, count);
  const wanted = Math.max(count, MOST_NEAR);
  const found = [];
  for (let other = 0; other < total; other += 1) {
    if (other === client) continue;
    const value = cosine(source, client, other);
    if (found.length === wanted && value <= found[wanted - 1][1]) continue;
    let at = found.length;
    while (at > 0 && found[at - 1][1] < value) at -= 1;
    found.splice(at, 0, [other, value]);
    if (found.length > wanted) found.pop();
  }
  source.near.set(client, found);
  return found.slice(0, count);
}

export function labelShares(block, client) {
  if (!block.clients.shares) return null;
  const width = block.classes.length;
  return Array.from(block.clients.shares.subarray(client * width, (client + 1) * width), (value) => value / 255);
}

export function commonest(block, client) {
  // The label that most of a client's training examples have, and how often always answering it is right.
  const own = block.metric.name === "accuracy" ? block.fixed_answers : null;
  if (!own || Number.isNaN(own.share[client])) return null;
  return { label: own.names[own.label[client]], share: own.share[client], of: own.of };
}

export function worseThanCommonest(block, own, client) {
  // Beyond chance where there is an interval, and by more than the rounding of the shares.
  const simple = commonest(block, client);
  const best = Number.isNaN(own.high[client]) ? own.value[client] : own.high[client];
  return simple !== null && best < simple.share - ROUNDING;
}

export function meanShares(block, clients) {
  const total = new Array(block.classes.length).fill(0);
  for (const client of clients) for (const [k, share] of labelShares(block, client).entries()) total[k] += share;
  return total.map((sum) => sum / Math.max(1, clients.length));
}

export function frameValue(own, frame, client, count) {
  const value = own.frames.table[frame * count + client];
  if (own.frames.value.t === "f32") return value;
  return value === 255 ? NaN : value / 250;
}

export function weightAt(own, row, client, count) {
  // A client's share in the mean of a round; NaN where it did not train.
  const value = own.weights.table[row * count + client];
  return value === 255 ? NaN : (value / 254) * own.weights.largest;
}

export function weightIn(own, round, client, count) {
  const row = own.weights ? own.weights.rounds.indexOf(round) : -1;
  return row < 0 ? NaN : weightAt(own, row, client, count);
}

export function lastWeight(own, client, count) {
  for (let row = own.weights ? own.weights.rounds.length - 1 : -1; row >= 0; row -= 1) {
    const value = weightAt(own, row, client, count);
    if (!Number.isNaN(value)) return value;
  }
  return NaN;
}
