// Small statistics over clients.

export function known(values) {
  return values.filter((value) => value !== null && !Number.isNaN(value));
}

export function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN;
}

export function deviation(values) {
  const centre = mean(values);
  return values.length ? Math.sqrt(mean(values.map((value) => (value - centre) ** 2))) : NaN;
}

function ranks(values) {
  const order = values.map((value, i) => [value, i]).sort((a, b) => a[0] - b[0]);
  const found = new Array(values.length);
  for (let start = 0; start < order.length; ) {
    let stop = start;
    while (stop < order.length && order[stop][0] === order[start][0]) stop += 1;
    for (let k = start; k < stop; k += 1) found[order[k][1]] = (start + stop - 1) / 2;
    start = stop;
  }
  return found;
}

export function rankCorrelation(one, other) {
  // Spearman's, with Fisher's interval of 95 %; null where it is not defined.
  const [a, b] = [ranks(one), ranks(other)];
  const [ma, mb] = [mean(a), mean(b)];
  let [top, left, right] = [0, 0, 0];
  for (let i = 0; i < a.length; i += 1) {
    top += (a[i] - ma) * (b[i] - mb);
    left += (a[i] - ma) ** 2;
    right += (b[i] - mb) ** 2;
  }
  if (a.length < 5 || left === 0 || right === 0) return null;
  const value = top / Math.sqrt(left * right);
  const half = (1.96 * 1.03) / Math.sqrt(a.length - 3);
  const turned = Math.atanh(Math.max(-0.9999, Math.min(0.9999, value)));
  return { value, low: Math.tanh(turned - half), high: Math.tanh(turned + half) };
}

export function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const base = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * base).find((own) => own >= rough) || base;
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step)
    found.push(Number(tick.toFixed(10)));
  return found;
}
