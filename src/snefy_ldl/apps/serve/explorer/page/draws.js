// A distribution that is known by draws: it answers as Square does, by averages over them.

const FEWEST = 25;         // equal draws that a known share must leave
const CURVE_POINTS = 140;

// The bandwidth of a normal kernel for weighted values (Scott's rule).
function bandwidth(values, weights, effective) {
  let mean = 0, square = 0;
  values.forEach((value, s) => { mean += weights[s] * value; });
  values.forEach((value, s) => { square += weights[s] * (value - mean) ** 2; });
  return Math.max(1.06 * Math.sqrt(square) * Math.max(effective, 2) ** -0.2, 1e-6);
}

const logit = share => Math.log(share) - Math.log1p(-share);

class Drawn {
  constructor(shares, nLabels, weights = null, left = 1) {
    this.shares = shares; this.nLabels = nLabels; this.left = left;  // what the labels share out
    this.count = shares.length / nLabels;
    this.weights = weights || new Float64Array(this.count).fill(1 / this.count);
    this.effective = 1 / this.weights.reduce((sum, w) => sum + w * w, 0);
  }

  values(label) { return Float64Array.from({ length: this.count }, (_, s) => this.shares[s * this.nLabels + label]); }
  average(value) { return this.weights.reduce((sum, w, s) => sum + w * value(s), 0); }

  mean() { return Float64Array.from({ length: this.nLabels }, (_, r) => this.left * this.average(s => this.shares[s * this.nLabels + r])); }
  zero() { return Float64Array.from({ length: this.nLabels }, (_, r) => this.average(s => this.shares[s * this.nLabels + r] === 0)); }

  covariance() {
    const L = this.nLabels, mean = this.mean(), table = new Float64Array(L * L);
    for (let s = 0; s < this.count; s++) for (let r = 0; r < L; r++) {
      const apart = this.weights[s] * (this.left * this.shares[s * L + r] - mean[r]);
      for (let q = 0; q < L; q++) table[r * L + q] += apart * (this.left * this.shares[s * L + q] - mean[q]);
    }
    return table;
  }

  greater(first, second) { return this.average(s => this.shares[s * this.nLabels + first] > this.shares[s * this.nLabels + second]); }

  mapped(count, value, weights = this.weights, left = this.left) {
    const shares = new Float64Array(this.count * count);
    for (let s = 0; s < this.count; s++) for (let g = 0; g < count; g++) shares[s * count + g] = value(s * this.nLabels, g);
    return new Drawn(shares, count, weights, left);
  }

  merged(groups) { return this.mapped(groups.length, (at, g) => groups[g].reduce((sum, r) => sum + this.shares[at + r], 0)); }

  // The other labels when the share of one is known: draws near it count more; null if too few are near.
  knowing(label, share) {
    const own = this.values(label), inside = own.map(value => value > 0 && value < 1);
    const z = own.map((value, s) => inside[s] ? logit(value) : 0), total = this.weights.reduce((sum, w, s) => sum + w * inside[s], 0);
    const width = bandwidth(z.filter((_, s) => inside[s]), this.weights.filter((_, s) => inside[s]).map(w => w / total), this.effective * total);
    const near = this.weights.map((w, s) => inside[s] ? w * Math.exp(-0.5 * ((z[s] - logit(share)) / width) ** 2) : 0);
    const sum = near.reduce((a, b) => a + b, 0);
    if (!(sum > 0)) return null;
    const others = [...Array(this.nLabels).keys()].filter(r => r !== label);
    const rest = this.mapped(others.length, (at, g) => this.shares[at + others[g]] / Math.max(1 - this.shares[at + label], 1e-12), near.map(w => w / sum), 1 - share);
    return rest.effective < FEWEST ? null : rest;
  }

  share(label) { return new DrawnShare(this.values(label), this.weights, this.effective, this.left); }

  ternary(corners) {
    const totals = this.mapped(1, at => corners.reduce((sum, r) => sum + this.shares[at + r], 0)).shares;
    const three = this.mapped(3, (at, k) => this.shares[at + corners[k]] / Math.max(totals[at / this.nLabels], 1e-300));
    return points => smoothTriangle(three, points);
  }
}

// One share in draws; it may be exactly zero, or all there is.
class DrawnShare {
  constructor(values, weights, effective, left) {
    this.values = values; this.weights = weights; this.effective = effective; this.left = left;
    this.order = Array.from(values.keys()).sort((a, b) => values[a] - values[b]);
  }

  quantile(level) {
    let sum = 0;
    const place = this.order.find(s => (sum += this.weights[s]) >= level - 1e-9);
    return this.left * this.values[place ?? this.order[this.order.length - 1]];
  }

  below(share) { return this.weights.reduce((sum, w, s) => sum + w * (this.left * this.values[s] <= share), 0); }

  // Points of the density between zero and one, smoothed on the scale of logits.
  curve() {
    const inside = this.order.filter(s => this.values[s] > 1e-9 && this.values[s] < 1 - 1e-6);
    const total = inside.reduce((sum, s) => sum + this.weights[s], 0);
    if (inside.length < 2 || !(total > 1e-3)) return [];
    const z = inside.map(s => logit(this.values[s])), weights = inside.map(s => this.weights[s] / total);
    const width = bandwidth(z, weights, this.effective * total), low = z[0] - 3 * width, high = z[z.length - 1] + 3 * width;
    return Array.from({ length: CURVE_POINTS + 1 }, (_, p) => {
      const at = low + (high - low) * p / CURVE_POINTS, t = logistic(at);
      const height = z.reduce((sum, one, k) => sum + weights[k] * Math.exp(-0.5 * ((at - one) / width) ** 2), 0);
      return [this.left * t, total * height / (width * Math.sqrt(2 * Math.PI)) / (t * (1 - t)) / this.left];
    }).filter(([t]) => t > 1e-7 * this.left && t < (1 - 1e-7) * this.left);
  }
}

// Densities on a triangle's points from draws of three proportions: a smoothed count over its grid, with what smoothing
// loses at the border given back.
function smoothTriangle(three, { grid, logs, number }) {
  const size = grid + 1, counts = new Float64Array(size * size), area = new Float64Array(size * size), cov = three.covariance();
  for (let s = 0; s < three.count; s++) {
    const x = three.shares[3 * s] * grid, y = three.shares[3 * s + 1] * grid, i = Math.min(Math.floor(x), grid - 1), j = Math.min(Math.floor(y), grid - 1);
    const fx = x - i, fy = y - j, weight = three.weights[s];
    counts[i * size + j] += weight * (1 - fx) * (1 - fy); counts[(i + 1) * size + j] += weight * fx * (1 - fy);
    counts[i * size + j + 1] += weight * (1 - fx) * fy; counts[(i + 1) * size + j + 1] += weight * fx * fy;
  }
  for (let i = 0; i <= grid; i++) for (let j = 0; i + j <= grid; j++) area[i * size + j] = i + j === grid || i === 0 || j === 0 ? 0.5 : 1;
  const widths = [0, 1].map(k => Math.max(0.7, 0.8 * grid * Math.sqrt(Math.max(cov[4 * k], 0)) * Math.max(three.effective, 2) ** (-1 / 6)));
  blur(counts, size, widths); blur(area, size, widths);
  const answer = new Float64Array(logs.length / 3);
  for (let i = 0; i <= grid; i++) for (let j = 0; i + j <= grid; j++) answer[number.get(i * size + j)] = counts[i * size + j] / area[i * size + j];
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
