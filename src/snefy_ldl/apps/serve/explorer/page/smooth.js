// Quantiles, densities and pictures out of weighted draws, and the triangle as a law with a centre sees it.

const BINS = 512, CURVE_POINTS = 140, WIDEST = 5;

// One share in draws; some may be exactly zero, or all there is.
class DrawnShare {
  constructor(values, weights, effective, left) {
    this.left = left; this.effective = effective; this.count = values.length;
    this.values = values; this.weights = weights;
    if (weights) {
      const order = Array.from(values.keys()).sort((a, b) => values[a] - values[b]);
      this.sorted = Float64Array.from(order, s => values[s]);
      this.ends = new Float64Array(this.count);
      let sum = 0;
      order.forEach((s, k) => { this.ends[k] = sum += weights[s]; });
      this.total = sum;
    } else {
      this.sorted = values.slice().sort();
      this.total = this.count;
    }
  }

  quantile(level) {
    const wanted = level * this.total;
    let low = 0, high = this.count - 1;
    if (!this.weights) return this.sorted[Math.min(high, Math.max(0, Math.ceil(wanted) - 1))];
    while (low < high) { const middle = (low + high) >> 1; if (this.ends[middle] < wanted) low = middle + 1; else high = middle; }
    return this.sorted[low];
  }

  // How far another set of draws would put a quantile, roughly: one standard error, by the draws on either side.
  error(level) {
    const by = Math.sqrt(level * (1 - level) / this.effective);
    return 0.5 * (this.quantile(Math.min(level + by, 1)) - this.quantile(Math.max(level - by, 0)));
  }

  below(share) {
    let sum = 0;
    for (let s = 0; s < this.count; s++) if (this.values[s] <= share) sum += this.weights ? this.weights[s] : 1;
    return sum / this.total;
  }

  // Points of the density between zero and one: draws' logits in bins, smoothed by a normal kernel.
  curve() {
    const z = [], w = [];
    for (let s = 0; s < this.count; s++) {
      const t = this.values[s] / this.left;
      if (t > 1e-9 && t < 1 - 1e-6) { z.push(Math.log(t) - Math.log1p(-t)); w.push(this.weights ? this.weights[s] : 1); }
    }
    const sum = w.reduce((a, b) => a + b, 0);
    if (!(sum > 1e-3 * this.total)) return [];
    let mean = 0, square = 0;
    for (let s = 0; s < z.length; s++) mean += w[s] * z[s] / sum;
    for (let s = 0; s < z.length; s++) square += w[s] * (z[s] - mean) ** 2 / sum;
    const width = Math.max(0.9 * Math.sqrt(square) * Math.max(this.effective * sum / this.total, 2) ** -0.2, 1e-6);
    const low = mean - 6 * Math.sqrt(square) - 3 * width, high = mean + 6 * Math.sqrt(square) + 3 * width, step = (high - low) / BINS;
    const bins = new Float64Array(BINS + 1);
    for (let s = 0; s < z.length; s++) {
      const at = Math.min(Math.max((z[s] - low) / step, 0), BINS - 1e-9), floor = Math.floor(at);
      bins[floor] += w[s] * (floor + 1 - at); bins[floor + 1] += w[s] * (at - floor);
    }
    // where draws are few the kernel is wider, so that single ones make no bumps
    const reach = Math.ceil(4 * width / step), root = Math.sqrt(2 * Math.PI), widths = new Float64Array(BINS + 1);
    const kernel = Float64Array.from({ length: reach + 1 }, (_, d) => Math.exp(-0.5 * (d * step / width) ** 2));
    let logs = 0;
    for (let at = 0; at <= BINS; at++) {
      for (let b = Math.max(0, at - reach); b <= Math.min(BINS, at + reach); b++) widths[at] += bins[b] * kernel[Math.abs(b - at)];
      if (bins[at] > 0) logs += bins[at] * Math.log(widths[at]) / sum;
    }
    for (let at = 0; at <= BINS; at++) widths[at] = width * Math.min(WIDEST, Math.max(1, Math.sqrt(Math.exp(logs) / widths[at])));
    const points = [];
    for (let p = 0; p <= CURVE_POINTS; p++) {
      const at = Math.round(p * BINS / CURVE_POINTS), t = logistic(low + at * step);
      let height = 0;
      for (let b = 0; b <= BINS; b++) if (bins[b] > 0) height += bins[b] * Math.exp(-0.5 * ((b - at) * step / widths[b]) ** 2) / (widths[b] * root);
      if (t > 1e-7 && t < 1 - 1e-7) points.push([this.left * t, height / this.total / (t * (1 - t)) / this.left]);
    }
    const least = 1e-3 * Math.max(...points.map(point => point[1])), seen = points.map(point => point[1] > least);
    return points.slice(seen.indexOf(true), seen.lastIndexOf(true) + 1);
  }
}

// Densities on a triangle's points from draws of three proportions: a smoothed count over its grid, with what smoothing
// loses at the border given back. Draws that are all zeros stand for nothing.
function smoothTriangle(three, weights, effective, { grid, logs, number }) {
  const size = grid + 1, counts = new Float64Array(size * size), area = new Float64Array(size * size);
  const mean = [0, 0], square = [0, 0];
  let sum = 0;
  for (let s = 0; 3 * s < three.length; s++) {
    const weight = weights ? weights[s] : 1, a = three[3 * s], b = three[3 * s + 1];
    if (a === 0 || weight === 0) continue;
    const x = a * grid, y = b * grid, i = Math.min(Math.floor(x), grid - 1), j = Math.min(Math.floor(y), grid - 1), fx = x - i, fy = y - j;
    counts[i * size + j] += weight * (1 - fx) * (1 - fy); counts[(i + 1) * size + j] += weight * fx * (1 - fy);
    counts[i * size + j + 1] += weight * (1 - fx) * fy; counts[(i + 1) * size + j + 1] += weight * fx * fy;
    sum += weight;
    [a, b].forEach((value, k) => { mean[k] += weight * value; square[k] += weight * value * value; });
  }
  const answer = new Float64Array(logs.length / 3);
  if (!(sum > 0)) return answer;
  for (let i = 0; i <= grid; i++) for (let j = 0; i + j <= grid; j++) area[i * size + j] = i + j === grid || i === 0 || j === 0 ? 0.5 : 1;
  const widths = [0, 1].map(k => Math.max(0.7, 0.8 * grid * Math.sqrt(Math.max(square[k] / sum - (mean[k] / sum) ** 2, 0)) * Math.max(effective, 2) ** (-1 / 6)));
  blur(counts, size, widths); blur(area, size, widths);
  for (let i = 0; i <= grid; i++) for (let j = 0; i + j <= grid; j++) {
    answer[number.get(i * size + j)] = counts[i * size + j] / area[i * size + j];
  }
  return answer;
}

// A table smoothed along both of its directions by normal kernels.
function blur(table, size, widths) {
  widths.forEach((width, direction) => {
    const reach = Math.min(Math.ceil(3.5 * width), size - 1), along = direction === 0 ? size : 1, across = direction === 0 ? 1 : size;
    const kernel = Float64Array.from({ length: reach + 1 }, (_, d) => Math.exp(-0.5 * (d / width) ** 2)), line = new Float64Array(size);
    for (let c = 0; c < size; c++) {
      for (let i = 0; i < size; i++) line[i] = table[c * across + i * along];
      for (let i = 0; i < size; i++) {
        let sum = 0;
        for (let j = Math.max(0, i - reach); j <= Math.min(size - 1, i + reach); j++) sum += line[j] * kernel[Math.abs(i - j)];
        table[c * across + i * along] = sum;
      }
    }
  });
}

// The triangle's points as a law with a centre sees them, and what that does to densities.
function movedTriangle(centre, points) {
  const key = centre.join(" ");
  if (!points.moved || points.moved.key !== key) {
    const from = points.logs, logs = new Float64Array(from.length), factor = new Float64Array(from.length / 3);
    for (let s = 0; s < factor.length; s++) {
      let sum = 0, change = 0;
      for (let k = 0; k < 3; k++) sum += Math.exp(from[3 * s + k] - centre[k]);
      for (let k = 0; k < 3; k++) {
        logs[3 * s + k] = from[3 * s + k] - centre[k] - Math.log(sum);
        change += logs[3 * s + k] - from[3 * s + k];
      }
      factor[s] = Math.exp(change);
    }
    points.moved = { key, logs, factor };
  }
  return points.moved;
}
