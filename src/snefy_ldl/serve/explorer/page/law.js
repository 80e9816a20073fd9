// The law of a row: a signed mixture of Dirichlets with concentrations half_i + half_j, a block a member.
//
//   p(l) = sum_ij c_ij Dirichlet(l; half_i + half_j),  sum c = 1
//
// A block is { n, half: Float64Array(n * L), weight: Float64Array(n * n) }. Merging labels, leaving some out, adding
// votes and knowing shares all lead to another such law, and every answer is a quadratic form of n numbers.

const NEGLIGIBLE = 1e-12;

class Law {
  constructor(blocks, nLabels, left = 1) {
    this.blocks = blocks; this.nLabels = nLabels;
    this.left = left;  // what the labels share out: less than one where some shares are known
  }

  // Neurons that carry no weight in this row are left out.
  static from(blocks, nLabels) {
    return new Law(blocks.map(block => pruned(block, nLabels)), nLabels);
  }

  total(block) {
    if (!block.total) {
      block.total = new Float64Array(block.n);
      for (let i = 0; i < block.n; i++) {
        let sum = 0;
        for (let r = 0; r < this.nLabels; r++) sum += block.half[i * this.nLabels + r];
        block.total[i] = sum;
      }
    }
    return block.total;
  }

  mean() {
    const mean = new Float64Array(this.nLabels);
    for (const block of this.blocks) {
      const { n, half, weight } = block, total = this.total(block);
      for (let i = 0; i < n; i++) {
        let sum = 0;
        for (let j = 0; j < n; j++) sum += weight[i * n + j] / (total[i] + total[j]);
        for (let r = 0; r < this.nLabels; r++) mean[r] += 2 * sum * half[i * this.nLabels + r];
      }
    }
    let all = 0;
    for (let r = 0; r < this.nLabels; r++) { mean[r] = Math.max(mean[r], 0); all += mean[r]; }
    return mean.map(value => this.left * value / all);
  }

  // E[l_r l_s] less the product of the means, (L * L).
  covariance() {
    const L = this.nLabels, products = new Float64Array(L * L), first = new Float64Array(L);
    for (const block of this.blocks) {
      const { n, half, weight } = block, total = this.total(block), mixed = new Float64Array(n * L);
      for (let i = 0; i < n; i++) {
        let sum = 0, plain = 0;
        for (let j = 0; j < n; j++) {
          const a0 = total[i] + total[j], q = weight[i * n + j] / (a0 * (a0 + 1));
          sum += q; plain += weight[i * n + j] / a0;
          if (q !== 0) for (let s = 0; s < L; s++) mixed[i * L + s] += q * half[j * L + s];
        }
        for (let r = 0; r < L; r++) {
          const h = half[i * L + r];
          first[r] += 2 * plain * h;
          products[r * L + r] += 2 * sum * h;
          for (let s = 0; s < L; s++) products[r * L + s] += 2 * h * (sum * half[i * L + s] + mixed[i * L + s]);
        }
      }
    }
    const square = this.left * this.left;
    for (let r = 0; r < L; r++) for (let s = 0; s < L; s++) {
      products[r * L + s] = square * (products[r * L + s] - first[r] * first[s]);
    }
    return products;
  }

  // Sums of labels: one column a group.
  merged(groups) {
    return this.mapped(groups.length, (half, at, group) => {
      let sum = 0;
      for (const r of groups[group]) sum += half[at + r];
      return sum;
    });
  }

  // Proportions among some labels.
  among(labels) {
    const law = this.mapped(labels.length, (half, at, place) => half[at + labels[place]]);
    law.left = 1;
    return law;
  }

  mapped(count, value) {
    const L = this.nLabels;
    return new Law(this.blocks.map(({ n, half, weight }) => {
      const other = new Float64Array(n * count);
      for (let i = 0; i < n; i++) for (let g = 0; g < count; g++) other[i * count + g] = value(half, i * L, g);
      return { n, half: other, weight };
    }), count, this.left);
  }

  // Every weight times the exponential of something of its pair; then they sum to one again.
  reweighted(logFactor) {
    let top = -Infinity, sum = 0;
    const logs = this.blocks.map(block => {
      const table = new Float64Array(block.n * block.n);
      for (let i = 0; i < block.n; i++) for (let j = i; j < block.n; j++) {
        const value = block.weight[i * block.n + j] === 0 ? -Infinity : logFactor(block, i, j);
        table[i * block.n + j] = table[j * block.n + i] = value;
        if (value > top) top = value;
      }
      return table;
    });
    const weights = this.blocks.map((block, k) => block.weight.map((w, at) => {
      const value = w === 0 ? 0 : w * Math.exp(logs[k][at] - top);
      sum += value;
      return value;
    }));
    if (!(sum > 0)) return null;
    return weights.map(table => table.map(w => w / sum));
  }

  // After votes: every concentration grows by them.
  posterior(votes) {
    const L = this.nLabels;
    let all = 0;
    for (const count of votes) all += count;
    if (all === 0) return this;
    const weights = this.reweighted((block, i, j) => {
      const total = this.total(block), a0 = total[i] + total[j];
      let value = logGamma(a0) - logGamma(a0 + all);
      for (let r = 0; r < L; r++) if (votes[r]) {
        const a = block.half[i * L + r] + block.half[j * L + r];
        value += logGamma(a + votes[r]) - logGamma(a);
      }
      return value;
    });
    if (!weights) return null;
    return Law.from(this.blocks.map(({ n, half }, k) => ({
      n, weight: weights[k], half: half.map((h, at) => h + votes[at % L] / 2),
    })), L);
  }

  // The law of the other labels when the share of one is known; null where the law has no density there.
  knowing(label, share) {
    const L = this.nLabels, logShare = Math.log(share), logRest = Math.log1p(-share);
    const weights = this.reweighted((block, i, j) => {
      const total = this.total(block), a = block.half[i * L + label] + block.half[j * L + label];
      const b = total[i] + total[j] - a;
      return (a - 1) * logShare + (b - 1) * logRest - logBeta(a, b);
    });
    if (!weights) return null;
    const others = [...Array(L).keys()].filter(r => r !== label);
    const law = new Law(this.blocks.map(({ n, half }, k) => ({ n, half, weight: weights[k] })), L).among(others);
    const kept = Law.from(law.blocks, L - 1);
    kept.left = 1 - share;
    return kept;
  }

  // The law of one share.
  share(label) {
    const L = this.nLabels;
    const pair = this.mapped(2, (half, at, side) => {
      if (side === 0) return half[at + label];
      let rest = 0;
      for (let r = 0; r < L; r++) if (r !== label) rest += half[at + r];
      return rest;
    });
    return new Share(pair.blocks, this.left);
  }

  // P(one share is larger than another).
  greater(first, second) { return 1 - new Share(this.among([first, second]).blocks, 1).below(0.5); }

  // Densities at points given by the logarithms of their shares (S * L).
  densities(logs) {
    const L = this.nLabels, S = logs.length / L, answer = new Float64Array(S);
    for (const block of this.blocks) {
      const { n, half } = block, form = squareForm(block, L, this.total(block));
      const neuron = new Float64Array(n);
      for (let s = 0; s < S; s++) {
        let jacobian = 0;
        for (let r = 0; r < L; r++) jacobian += logs[s * L + r];
        for (let i = 0; i < n; i++) {
          let power = -form.root[i] - 0.5 * jacobian;
          for (let r = 0; r < L; r++) power += half[i * L + r] * logs[s * L + r];
          neuron[i] = Math.exp(power);
        }
        answer[s] += quadratic(form.matrix, neuron, n);
      }
    }
    return answer;
  }
}

// c_ij over the kernel R_ij, so that the density is sum C_ij u_i u_j with u_i = prod l^half_i / sqrt(B(2 half_i)).
function squareForm({ n, half, weight }, L, total) {
  const logB = (i, j) => {
    let value = -logGamma(total[i] + total[j]);
    for (let r = 0; r < L; r++) value += logGamma(half[i * L + r] + half[j * L + r]);
    return value;
  };
  const root = new Float64Array(n), matrix = new Float64Array(n * n);
  for (let i = 0; i < n; i++) root[i] = 0.5 * logB(i, i);
  for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
    const w = weight[i * n + j];
    // the lower half alone, off-diagonal entries twice
    if (w !== 0) matrix[i * n + j] = (i === j ? 1 : 2) * w * Math.exp(root[i] + root[j] - logB(i, j));
  }
  return { root, matrix };
}

function quadratic(matrix, u, n) {
  let total = 0;
  for (let i = 0; i < n; i++) {
    let sum = 0;
    const row = i * n;
    for (let j = 0; j <= i; j++) sum += matrix[row + j] * u[j];
    total += sum * u[i];
  }
  return total;
}

function pruned({ n, half, weight }, L) {
  const keep = [];
  for (let i = 0; i < n; i++) {
    let size = 0;
    for (let j = 0; j < n; j++) size += Math.abs(weight[i * n + j]);
    if (size > NEGLIGIBLE) keep.push(i);
  }
  if (keep.length === n) return { n, half, weight };
  const m = keep.length, smaller = new Float64Array(m * m), rows = new Float64Array(m * L);
  keep.forEach((i, a) => {
    for (let r = 0; r < L; r++) rows[a * L + r] = half[i * L + r];
    keep.forEach((j, b) => { smaller[a * m + b] = weight[i * n + j]; });
  });
  return { n: m, half: rows, weight: smaller };
}

// One share: a signed mixture of Betas, tabulated on panels of z = logit(share) that are about one standard deviation
// of the sharpest component wide, eight points each; the same panels as in Python.
class Share {
  constructor(blocks, left) {
    this.left = left;
    const total = blocks.map(({ n, half }) => Float64Array.from({ length: n }, (_, i) => half[2 * i] + half[2 * i + 1]));
    this.edges = panelEdges(blocks, total);
    const panels = this.edges.length - 1;
    this.z = new Float64Array(8 * panels);
    this.density = new Float64Array(8 * panels);
    const logT = new Float64Array(8 * panels), logRest = new Float64Array(8 * panels);
    for (let g = 0; g < panels; g++) for (let k = 0; k < 8; k++) {
      const z = this.edges[g] + 0.5 * (this.edges[g + 1] - this.edges[g]) * (EIGHT.nodes[k] + 1);
      this.z[8 * g + k] = z;
      logT[8 * g + k] = logLogistic(z);
      logRest[8 * g + k] = logLogistic(-z);
    }
    blocks.forEach((block, b) => {
      const { n, half } = block, form = squareForm(block, 2, total[b]), neuron = new Float64Array(n);
      for (let at = 0; at < this.z.length; at++) {
        for (let i = 0; i < n; i++) {
          neuron[i] = Math.exp(half[2 * i] * logT[at] + half[2 * i + 1] * logRest[at] - form.root[i]);
        }
        this.density[at] += quadratic(form.matrix, neuron, n);
      }
    });
    this.cumulated = new Float64Array(panels + 1);
    for (let g = 0; g < panels; g++) {
      let mass = 0;
      for (let k = 0; k < 8; k++) mass += EIGHT.weights[k] * this.density[8 * g + k];
      this.cumulated[g + 1] = this.cumulated[g] + 0.5 * (this.edges[g + 1] - this.edges[g]) * mass;
    }
    const all = this.cumulated[panels];  // one, up to rounding and what lies beyond the panels
    for (let g = 0; g <= panels; g++) this.cumulated[g] /= all;
    this.scale = 1 / all;
  }

  below(share) {
    const t = share / this.left;
    if (t <= 0) return 0;
    if (t >= 1) return 1;
    const z = Math.log(t) - Math.log1p(-t), last = this.edges.length - 1;
    if (z <= this.edges[0]) return 0;
    if (z >= this.edges[last]) return 1;
    let g = 0;
    while (this.edges[g + 1] <= z) g++;
    const half = 0.5 * (this.edges[g + 1] - this.edges[g]);
    const inside = integrated(coefficients(this.density, 8 * g), (z - this.edges[g]) / half - 1);
    return Math.min(1, Math.max(0, this.cumulated[g] + this.scale * half * inside));
  }

  quantile(level) {
    const last = this.edges.length - 2;
    let g = 0;
    while (g < last && this.cumulated[g + 1] <= level) g++;
    const half = 0.5 * (this.edges[g + 1] - this.edges[g]);
    const a = coefficients(this.density, 8 * g), wanted = (level - this.cumulated[g]) / (this.scale * half);
    let low = -1, high = 1;
    for (let step = 0; step < 50; step++) {
      const middle = 0.5 * (low + high);
      if (integrated(a, middle) < wanted) low = middle; else high = middle;
    }
    return this.left * logistic(this.edges[g] + half * (0.5 * (low + high) + 1));
  }

  // Points of the density curve on the scale of the share itself.
  curve() {
    const points = [];
    for (let at = 0; at < this.z.length; at++) {
      const t = logistic(this.z[at]), rest = logistic(-this.z[at]);
      const height = this.scale * this.density[at] / (t * rest) / this.left;
      if (t > 1e-6 && rest > 1e-6) points.push([this.left * t, Math.max(height, 0)]);
    }
    return points;
  }
}

const LOGIT_LIMIT = 690, LOG_TAIL = Math.log(1e-13);

function panelEdges(blocks, totals) {
  let first = Infinity, last = -Infinity, sharpest = 0;
  blocks.forEach(({ n, half }, b) => {
    for (let i = 0; i < n; i++) {
      const a = 2 * half[2 * i], c = 2 * half[2 * i + 1], log = logBeta(a, c);
      // below x a Beta law has at most about x^a / (a B) of its mass
      first = Math.min(first, (LOG_TAIL + Math.log(a) + log) / a);
      last = Math.max(last, -(LOG_TAIL + Math.log(c) + log) / c);
      sharpest = Math.max(sharpest, 2 * totals[b][i]);
    }
  });
  first = Math.max(first, -LOGIT_LIMIT); last = Math.min(last, LOGIT_LIMIT);
  const edges = [first, last], angles = Math.max(16, Math.ceil(Math.PI * Math.sqrt(sharpest)));
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
