// The distribution of a row: a signed mixture of Dirichlets with concentrations half_i + half_j, a block a member.
//
//   p(l) = sum_ij c_ij Dirichlet(l; half_i + half_j),  sum c = 1
//
// The components do not depend on the row, so tables of them are made once (Components); a distribution is its
// components and the weights c of its row. Merging labels, leaving some out and knowing a share all lead to another such
// distribution, and every answer is a quadratic form.

const NEGLIGIBLE = 1e-11;       // neurons with less weight than this are left out of a row's sums
const MOST_EDGES = 1.2e7;       // numbers of tabulated probabilities; with more, densities are summed up a row at a time
const SMALLEST = 1e-13;         // a neuron's root density below this adds nothing
const KEPT = 24;                // derived components that are kept

class Components {
  constructor(halves, n, nLabels) {
    this.halves = halves; this.n = n; this.nLabels = nLabels;
    this.totals = halves.map(half => {
      const total = new Float64Array(n);
      for (let i = 0; i < n; i++) for (let r = 0; r < nLabels; r++) total[i] += half[i * nLabels + r];
      return total;
    });
    this.derived = new Map(); this.grids = new WeakMap();
  }

  // Something made of these components, made once.
  once(key, make) {
    if (!this.derived.has(key)) {
      // the oldest goes first, but never the tables of labels, which every row needs
      const others = [...this.derived.keys()].filter(name => !name.startsWith("share"));
      if (others.length > KEPT) this.derived.delete(others[0]);
      this.derived.set(key, make());
    }
    return this.derived.get(key);
  }

  mapped(key, count, value) {
    return this.once(key, () => new Components(this.halves.map(half => {
      const other = new Float64Array(this.n * count);
      for (let i = 0; i < this.n; i++) for (let g = 0; g < count; g++) other[i * count + g] = value(half, i * this.nLabels, g);
      return other;
    }), this.n, count));
  }

  merged(groups) {
    return this.mapped(`merged ${groups.join("|")}`, groups.length, (half, at, group) => {
      let sum = 0;
      for (const r of groups[group]) sum += half[at + r];
      return sum;
    });
  }

  among(labels) { return this.mapped(`among ${labels}`, labels.length, (half, at, place) => half[at + labels[place]]); }

  pairs(value) {
    return this.halves.map((_, k) => {
      const table = new Float64Array(this.n * this.n);
      for (let i = 0; i < this.n; i++) for (let j = 0; j <= i; j++) {
        table[i * this.n + j] = table[j * this.n + i] = value(k, i, j);
      }
      return table;
    });
  }

  // log B of every pair, and from it what turns weights into the quadratic form of a density:
  // u_i = prod l^half_i / sqrt(B_ii), and the inverse of R_ij = B_ij / sqrt(B_ii B_jj).
  get kernel() {
    return this.once("kernel", () => {
      const L = this.nLabels;
      const logs = this.pairs((k, i, j) => {
        let value = -logGamma(this.totals[k][i] + this.totals[k][j]);
        for (let r = 0; r < L; r++) value += logGamma(this.halves[k][i * L + r] + this.halves[k][j * L + r]);
        return value;
      });
      const roots = logs.map(table => Float64Array.from({ length: this.n }, (_, i) => 0.5 * table[i * this.n + i]));
      const inverse = this.pairs((k, i, j) => {
        const value = roots[k][i] + roots[k][j] - logs[k][i * this.n + j];
        return value < 460 ? Math.exp(value) : 0;  // a pair so far apart has no weight
      });
      return { logs, roots, inverse };
    });
  }

  // u at points given by the logarithms of their shares (S * L): (S * n) a member.
  at(points) {
    if (!this.grids.has(points)) {
      const L = this.nLabels, S = points.length / L, { roots } = this.kernel;
      this.grids.set(points, this.halves.map((half, k) => {
        const table = new Float64Array(S * this.n);
        for (let s = 0; s < S; s++) {
          let jacobian = 0;
          for (let r = 0; r < L; r++) jacobian += points[s * L + r];
          for (let i = 0; i < this.n; i++) {
            let power = -roots[k][i] - 0.5 * jacobian;
            for (let r = 0; r < L; r++) power += half[i * L + r] * points[s * L + r];
            table[s * this.n + i] = Math.exp(power);
          }
        }
        return table;
      }));
    }
    return this.grids.get(points);
  }

  share(label) { return this.once(`share ${label}`, () => new ShareTable(this, label)); }
}

class Square {
  constructor(components, weights, left = 1) {
    this.components = components; this.weights = weights;
    this.left = left;  // what the labels share out: less than one if some shares are known
    const n = components.n;
    this.active = weights.map(weight => {
      const keep = [];
      for (let i = 0; i < n; i++) {
        let size = 0;
        for (let j = 0; j < n; j++) size += Math.abs(weight[i * n + j]);
        if (size > NEGLIGIBLE) keep.push(i);
      }
      return Int32Array.from(keep);
    });
  }

  get nLabels() { return this.components.nLabels; }

  eachPair(use) {
    const n = this.components.n;
    this.weights.forEach((weight, k) => {
      for (const i of this.active[k]) for (const j of this.active[k]) use(k, i, j, weight[i * n + j]);
    });
  }

  mean() {
    const L = this.nLabels, n = this.components.n, mean = new Float64Array(L);
    this.weights.forEach((weight, k) => {
      const half = this.components.halves[k], total = this.components.totals[k], active = this.active[k];
      for (const i of active) {
        let sum = 0;
        for (const j of active) sum += weight[i * n + j] / (total[i] + total[j]);
        for (let r = 0; r < L; r++) mean[r] += 2 * sum * half[i * L + r];
      }
    });
    let all = 0;
    for (let r = 0; r < L; r++) { mean[r] = Math.max(mean[r], 0); all += mean[r]; }
    return mean.map(value => this.left * value / all);
  }

  // E[l_r l_s] less the product of the means, (L * L).
  covariance() {
    const L = this.nLabels, n = this.components.n, products = new Float64Array(L * L), first = new Float64Array(L);
    this.weights.forEach((weight, k) => {
      const half = this.components.halves[k], total = this.components.totals[k], active = this.active[k];
      const mixed = new Float64Array(L);
      for (const i of active) {
        let sum = 0, plain = 0;
        mixed.fill(0);
        for (const j of active) {
          const a0 = total[i] + total[j], q = weight[i * n + j] / (a0 * (a0 + 1));
          sum += q; plain += weight[i * n + j] / a0;
          for (let s = 0; s < L; s++) mixed[s] += q * half[j * L + s];
        }
        for (let r = 0; r < L; r++) {
          const h = half[i * L + r];
          first[r] += 2 * plain * h;
          products[r * L + r] += 2 * sum * h;
          for (let s = 0; s < L; s++) products[r * L + s] += 2 * h * (sum * half[i * L + s] + mixed[s]);
        }
      }
    });
    const square = this.left * this.left;
    for (let r = 0; r < L; r++) for (let s = 0; s < L; s++) {
      products[r * L + s] = square * (products[r * L + s] - first[r] * first[s]);
    }
    return products;
  }

  // Sums of labels, and proportions among some labels.
  merged(groups) { return new Square(this.components.merged(groups), this.weights, this.left); }
  among(labels) { return new Square(this.components.among(labels), this.weights); }

  // Every weight times the exponential of something of its pair; then they sum to one again.
  reweighted(logFactor) {
    const n = this.components.n;
    let top = -Infinity, sum = 0;
    this.eachPair((k, i, j, w) => { if (w !== 0) top = Math.max(top, logFactor(k, i * n + j)); });
    const weights = this.weights.map(() => new Float64Array(n * n));
    this.eachPair((k, i, j, w) => {
      if (w === 0) return;
      const value = w * Math.exp(logFactor(k, i * n + j) - top);
      weights[k][i * n + j] = value;
      sum += value;
    });
    if (!(sum > 0)) return null;
    for (const weight of weights) for (let at = 0; at < weight.length; at++) weight[at] /= sum;
    return weights;
  }

  // The other labels when the share of one is known; null if there is no density at that share.
  knowing(label, share) {
    const logShare = Math.log(share), logRest = Math.log1p(-share), n = this.components.n;
    const pair = this.components.share(label).pair, { logs } = pair.kernel;
    const weights = this.reweighted((k, at) => {
      const i = Math.floor(at / n), j = at % n, half = pair.halves[k];
      return (half[2 * i] + half[2 * j] - 1) * logShare + (half[2 * i + 1] + half[2 * j + 1] - 1) * logRest - logs[k][at];
    });
    if (!weights) return null;
    const others = [...Array(this.nLabels).keys()].filter(r => r !== label);
    return new Square(this.components.among(others), weights, 1 - share);
  }

  share(label) { return new Share(this.components.share(label), this); }

  // P(one share is larger than another).
  greater(first, second) { return 1 - this.among([first, second]).share(0).below(0.5); }

  zero() { return null; }

  // Densities of the proportions among three labels, on the points of a triangle.
  ternary(corners) { return points => this.among(corners).densities(points.logs); }

  // Densities at points given by the logarithms of their shares (S * L).
  densities(points) {
    const { inverse } = this.components.kernel, tables = this.components.at(points);
    const answer = new Float64Array(points.length / this.nLabels);
    this.weights.forEach((weight, k) => {
      addForms(answer, tables[k], this.form(weight, inverse[k], k), this.active[k], this.components.n, 0, answer.length);
    });
    return answer;
  }

  // The quadratic form of a density among the active neurons: its lower half, off-diagonal entries twice.
  form(weight, inverse, k) {
    const active = this.active[k], m = active.length, n = this.components.n, matrix = new Float64Array(m * m);
    for (let a = 0; a < m; a++) for (let b = 0; b <= a; b++) {
      const at = active[a] * n + active[b];
      matrix[a * m + b] = (a === b ? 1 : 2) * weight[at] * inverse[at];
    }
    return matrix;
  }
}

const work = { neurons: new Float64Array(0) };

// answer[s] += u_s' C u_s for the points from first to last, u taken from a table (S * n).
function addForms(answer, table, matrix, active, n, first, last, step = 1) {
  const m = active.length;
  if (work.neurons.length < m) work.neurons = new Float64Array(m);
  const u = work.neurons;
  for (let s = first; s < last; s += step) {
    const start = s * n;
    for (let a = 0; a < m; a++) u[a] = table[start + active[a]];
    let total = 0;
    for (let a = 0; a < m; a++) {
      if (u[a] < SMALLEST) continue;
      const row = a * m, end = a - 3;
      let sum = 0, second = 0, third = 0, fourth = 0, b = 0;
      for (; b <= end; b += 4) {  // four sums at once do not wait for each other
        sum += matrix[row + b] * u[b];
        second += matrix[row + b + 1] * u[b + 1];
        third += matrix[row + b + 2] * u[b + 2];
        fourth += matrix[row + b + 3] * u[b + 3];
      }
      for (; b <= a; b++) sum += matrix[row + b] * u[b];
      total += (sum + second + third + fourth) * u[a];
    }
    answer[s] += total;
  }
}

// One share under all components: Betas on panels of z = logit(share), eight points each, as in Python; for every pair
// the probability below each panel's edge.
class ShareTable {
  constructor(components, label) {
    const L = components.nLabels, n = components.n;
    this.pair = new Components(components.halves.map((half, k) => {
      const two = new Float64Array(2 * n);
      for (let i = 0; i < n; i++) {
        two[2 * i] = half[i * L + label];
        two[2 * i + 1] = components.totals[k][i] - half[i * L + label];
      }
      return two;
    }), n, 2);
    this.edges = panelEdges(this.pair);
    const panels = this.edges.length - 1;
    this.z = new Float64Array(8 * panels);
    const points = new Float64Array(16 * panels), jacobian = new Float64Array(8 * panels);
    for (let g = 0; g < panels; g++) for (let k = 0; k < 8; k++) {
      const at = 8 * g + k, z = this.edges[g] + 0.5 * (this.edges[g + 1] - this.edges[g]) * (EIGHT.nodes[k] + 1);
      this.z[at] = z;
      points[2 * at] = logLogistic(z); points[2 * at + 1] = logLogistic(-z);
      jacobian[at] = Math.exp(0.5 * (points[2 * at] + points[2 * at + 1]));  // of z, on each side of the square
    }
    this.neurons = this.pair.at(points);
    for (const table of this.neurons) for (let at = 0; at < jacobian.length; at++) {
      for (let i = 0; i < n; i++) table[at * n + i] *= jacobian[at];
    }
    const size = components.halves.length * n * (n + 1) / 2 * panels;
    this.below = size * L <= MOST_EDGES ? this.neurons.map((table, k) => this.edgeTable(table, k)) : null;
  }

  // Probability below every inner and the last edge, for the pairs i >= j in order: (pairs * panels).
  edgeTable(table, k) {
    const n = this.pair.n, panels = this.edges.length - 1, { inverse } = this.pair.kernel;
    const answer = new Float64Array(n * (n + 1) / 2 * panels);
    const byNeuron = new Float64Array(n * 8 * panels);
    for (let at = 0; at < 8 * panels; at++) for (let i = 0; i < n; i++) byNeuron[i * 8 * panels + at] = table[at * n + i];
    const weight = new Float64Array(8 * panels);
    for (let at = 0; at < weight.length; at++) {
      weight[at] = 0.5 * (this.edges[(at >> 3) + 1] - this.edges[at >> 3]) * EIGHT.weights[at & 7];
    }
    for (let i = 0, pair = 0; i < n; i++) for (let j = 0; j <= i; j++, pair++) {
      const first = i * 8 * panels, second = j * 8 * panels, start = pair * panels;
      let sum = 0;
      for (let g = 0; g < panels; g++) {
        for (let at = 8 * g; at < 8 * g + 8; at++) sum += weight[at] * byNeuron[first + at] * byNeuron[second + at];
        answer[start + g] = sum;
      }
      const scale = sum > 0 && inverse[k][i * n + j] > 0 ? 1 / sum : 0;
      for (let g = 0; g < panels; g++) answer[start + g] *= scale;
    }
    return answer;
  }
}

// One share in one row.
class Share {
  constructor(table, square) {
    this.table = table; this.square = square; this.left = square.left;
    const { inverse } = table.pair.kernel;
    this.forms = square.weights.map((weight, k) => square.form(weight, inverse[k], k));
    this.density = new Float64Array(table.z.length);
    this.known = new Uint8Array(table.edges.length - 1);  // panels whose densities are there
    this.cumulated = table.below ? this.fromEdges() : this.fromDensities();
  }

  fromEdges() {
    const panels = this.table.edges.length - 1, n = this.table.pair.n, sums = new Float64Array(panels + 1);
    this.square.weights.forEach((weight, k) => {
      const below = this.table.below[k], active = this.square.active[k];
      for (let a = 0; a < active.length; a++) for (let b = 0; b <= a; b++) {
        const i = active[a], j = active[b], c = (a === b ? 1 : 2) * weight[i * n + j], start = (i * (i + 1) / 2 + j) * panels;
        if (c !== 0) for (let g = 0; g < panels; g++) sums[g + 1] += c * below[start + g];
      }
    });
    this.scale = 1;
    return sums;
  }

  fromDensities() {
    const { edges } = this.table, panels = edges.length - 1, sums = new Float64Array(panels + 1);
    for (let g = 0; g < panels; g++) {
      this.fill(g);
      let mass = 0;
      for (let k = 0; k < 8; k++) mass += EIGHT.weights[k] * this.density[8 * g + k];
      sums[g + 1] = sums[g] + 0.5 * (edges[g + 1] - edges[g]) * mass;
    }
    this.scale = 1 / sums[panels];  // one, up to rounding and what lies beyond the panels
    return sums.map(value => value * this.scale);
  }

  fill(g) {
    if (this.known[g]) return;
    this.known[g] = 1;
    this.forms.forEach((form, k) => {
      addForms(this.density, this.table.neurons[k], form, this.square.active[k], this.table.pair.n, 8 * g, 8 * g + 8);
    });
  }

  below(share) {
    const t = share / this.left, { edges } = this.table, last = edges.length - 1;
    if (t <= 0) return 0;
    if (t >= 1) return 1;
    const z = Math.log(t) - Math.log1p(-t);
    if (z <= edges[0]) return 0;
    if (z >= edges[last]) return 1;
    let g = 0;
    while (edges[g + 1] <= z) g++;
    this.fill(g);
    const half = 0.5 * (edges[g + 1] - edges[g]);
    const inside = integrated(coefficients(this.density, 8 * g), (z - edges[g]) / half - 1);
    return Math.min(1, Math.max(0, this.cumulated[g] + this.scale * half * inside));
  }

  quantile(level) {
    const { edges } = this.table, last = edges.length - 2;
    let g = 0;
    while (g < last && this.cumulated[g + 1] <= level) g++;
    this.fill(g);
    const half = 0.5 * (edges[g + 1] - edges[g]);
    const a = coefficients(this.density, 8 * g), wanted = (level - this.cumulated[g]) / (this.scale * half);
    let low = -1, high = 1;
    for (let step = 0; step < 45; step++) {
      const middle = 0.5 * (low + high);
      if (integrated(a, middle) < wanted) low = middle; else high = middle;
    }
    return this.left * logistic(edges[g] + half * (0.5 * (low + high) + 1));
  }

  // Points of the density curve on the scale of the share itself: eight per panel, or one while something moves.
  curve(quick) {
    const step = quick ? 8 : 1;
    const { z } = this.table, heights = new Float64Array(z.length), points = [];
    this.forms.forEach((form, k) => {
      const table = this.table.neurons[k], active = this.square.active[k];
      addForms(heights, table, form, active, this.table.pair.n, quick ? 3 : 0, heights.length, step);
    });
    for (let at = quick ? 3 : 0; at < z.length; at += step) {
      const t = logistic(z[at]), rest = logistic(-z[at]);
      if (t > 1e-7 && rest > 1e-7) points.push([this.left * t, Math.max(this.scale * heights[at] / (t * rest) / this.left, 0)]);
    }
    return points;
  }
}

const LOGIT_LIMIT = 690, LOG_TAIL = Math.log(1e-13), PANEL_DEVIATIONS = 1.5;

function panelEdges({ halves, n }) {
  let first = Infinity, last = -Infinity, sharpest = 0;
  for (const half of halves) for (let i = 0; i < n; i++) {
    const a = 2 * half[2 * i], c = 2 * half[2 * i + 1], log = logBeta(a, c);
    // below x a Beta has at most about x^a / (a B) of its mass
    first = Math.min(first, (LOG_TAIL + Math.log(a) + log) / a);
    last = Math.max(last, -(LOG_TAIL + Math.log(c) + log) / c);
    sharpest = Math.max(sharpest, a + c);
  }
  first = Math.max(first, -LOGIT_LIMIT); last = Math.min(last, LOGIT_LIMIT);
  const edges = [first, last], angles = Math.max(16, Math.ceil(Math.PI * Math.sqrt(sharpest) / PANEL_DEVIATIONS));
  for (let k = 1; k < angles; k++) {
    const t = Math.sin(0.5 * Math.PI * k / angles) ** 2, z = Math.log(t) - Math.log1p(-t);
    if (z > first && z < last) edges.push(z);
  }
  for (let step = 0; step < LOGIT_LIMIT; step += Math.max(1, 0.15 * step)) {
    for (const z of step ? [step, -step] : [0]) if (z > first && z < last) edges.push(z);
  }
  edges.sort((a, b) => a - b);
  return Float64Array.from(edges.filter((z, k) => k === 0 || z - edges[k - 1] > 1e-9));
}
