// Moments of shares l = g / sum g, g_r = c_r Gamma(a_r): integrals over t by the trapezoid rule in y = log t, as in Python.
//
//   E[l_r] = int c_r a_r / (1 + c_r t) prod_s (1 + c_s t)^-a_s dt
//
// The sum over components stands inside the integral. Where all labels are there every factor belongs to one neuron, so
// that sum is a quadratic form; where labels may be absent it runs over the pairs of neurons.

const NODE_STEP = 0.3, NODE_GROWTH = 10, NODE_TAIL = 30, LEAST_NODE = Math.log(1e-9) - 6, NEGLIGIBLE_PAIR = 1e-11;

const softplus = z => z > 0 ? z + Math.log1p(Math.exp(-z)) : Math.log1p(Math.exp(z));
const logExpm1 = x => x + Math.log(-Math.expm1(-x));

// Nodes and steps for concentrations 2 half (one row a neuron) and the logarithms of a centre.
function integralNodes(halves, centre, n) {
  const L = centre.length;
  let low = -Infinity, slowest = Infinity, least = Infinity;
  for (const half of halves) for (let i = 0; i < n; i++) {
    let sum = 0, first = Infinity, second = Infinity;
    for (let r = 0; r < L; r++) {
      const a = 2 * half[i * L + r];
      sum += a * Math.exp(centre[r]);
      if (a < first) { second = first; first = a; } else if (a < second) second = a;
    }
    low = Math.max(low, Math.log(sum));
    slowest = Math.min(slowest, first + (second === Infinity ? 0 : second));
  }
  for (let r = 0; r < L; r++) least = Math.min(least, centre[r]);
  const start = -low - NODE_TAIL, bend = 3 - least, high = bend + NODE_TAIL / slowest, nodes = [], steps = [];
  for (let x = start; x < bend + 12 * NODE_GROWTH; x += NODE_STEP) {
    const growth = Math.exp((x - bend - NODE_GROWTH) / NODE_GROWTH);
    if (x + growth <= high) { nodes.push(x + growth); steps.push(NODE_STEP * (1 + growth / NODE_GROWTH)); }
  }
  return { nodes, steps };
}

// log(1 + c t) and c t / (1 + c t) of every label at the nodes, (L * k).
function nodeTables(centre, nodes) {
  const L = centre.length, k = nodes.length, log1p = new Float64Array(L * k), share = new Float64Array(L * k);
  for (let r = 0; r < L; r++) for (let q = 0; q < k; q++) {
    log1p[r * k + q] = softplus(centre[r] + nodes[q]);
    share[r * k + q] = logistic(centre[r] + nodes[q]);
  }
  return { log1p, share };
}

// Every label is there. features: e of every neuron, a list a member, with sum e' form e = 1 over all members.
class SquareMoments {
  constructor(halves, forms, features, centre, n) {
    this.halves = halves; this.forms = forms; this.n = n; this.L = centre.length;
    const all = integralNodes(halves, centre, n), smallest = new Float64Array(this.L).fill(Infinity);
    for (const half of halves) for (let at = 0; at < half.length; at++) {
      smallest[at % this.L] = Math.min(smallest[at % this.L], half[at]);
    }
    // nodes at which every product has died out are left out
    const kept = all.nodes.map((_, q) => q).filter(q => {
      let bound = 0;
      for (let r = 0; r < this.L; r++) bound -= 2 * smallest[r] * softplus(centre[r] + all.nodes[q]);
      return bound > LEAST_NODE;
    });
    const nodes = kept.map(q => all.nodes[q]), k = this.k = nodes.length;
    this.steps = Float64Array.from(kept, q => all.steps[q]);
    const { log1p, share } = nodeTables(centre, nodes);
    this.share = share;
    this.phi = halves.map((half, m) => {
      const phi = new Float64Array(n * k);
      for (let i = 0; i < n; i++) {
        if (features[m][i] === 0) continue;
        for (let r = 0; r < this.L; r++) {
          const a = half[i * this.L + r];
          for (let q = 0; q < k; q++) phi[i * k + q] -= a * log1p[r * k + q];
        }
        for (let q = 0; q < k; q++) phi[i * k + q] = features[m][i] * Math.exp(phi[i * k + q]);
      }
      return phi;
    });
    this.turned = this.phi.map((phi, m) => this.turn(phi, m));
  }

  // form times z, (n * k).
  turn(z, m) {
    const { n, k } = this, form = this.forms[m], out = new Float64Array(n * k);
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
      const f = form[i * n + j], to = i * k, from = j * k;
      if (f !== 0 && z[from + (k >> 1)] + z[from] + z[from + k - 1] !== 0) {
        for (let q = 0; q < k; q++) out[to + q] += f * z[from + q];
      }
    }
    return out;
  }

  // 2 sum_i half_ir phi_i (M phi)_i times the step, (L * k).
  get linear() {
    if (!this.line) {
      const { n, k, L } = this, line = this.line = new Float64Array(L * k), product = new Float64Array(k);
      this.phi.forEach((phi, m) => {
        for (let i = 0; i < n; i++) {
          for (let q = 0; q < k; q++) product[q] = 2 * phi[i * k + q] * this.turned[m][i * k + q] * this.steps[q];
          for (let r = 0; r < L; r++) {
            const a = this.halves[m][i * L + r];
            for (let q = 0; q < k; q++) line[r * k + q] += a * product[q];
          }
        }
      });
    }
    return this.line;
  }

  first() {
    const { k, L, share, linear } = this, answer = new Float64Array(L);
    for (let r = 0; r < L; r++) for (let q = 0; q < k; q++) answer[r] += linear[r * k + q] * share[r * k + q];
    return answer;
  }

  // E[l_r l_s], (L * L).
  products() {
    const { n, k, L, share, linear } = this, answer = new Float64Array(L * L), mixed = new Float64Array(k);
    const weighted = this.phi.map((phi, m) => Array.from({ length: L }, (_, r) => {
      const out = new Float64Array(n * k);
      for (let i = 0; i < n; i++) for (let q = 0; q < k; q++) out[i * k + q] = this.halves[m][i * L + r] * phi[i * k + q];
      return out;
    }));
    for (let r = 0; r < L; r++) {
      // (M a_r phi)_i + a_ir (M phi)_i, which serves every s
      const turned = weighted.map((tables, m) => {
        const out = this.turn(tables[r], m);
        for (let i = 0; i < n; i++) for (let q = 0; q < k; q++) out[i * k + q] += this.halves[m][i * L + r] * this.turned[m][i * k + q];
        return out;
      });
      for (let s = 0; s <= r; s++) {
        mixed.fill(0);
        weighted.forEach((tables, m) => {
          for (let i = 0; i < n; i++) for (let q = 0; q < k; q++) mixed[q] += tables[s][i * k + q] * turned[m][i * k + q];
        });
        let sum = 0;
        for (let q = 0; q < k; q++) sum += 2 * mixed[q] * this.steps[q] * share[r * k + q] * share[s * k + q];
        if (r === s) for (let q = 0; q < k; q++) sum += linear[r * k + q] * share[r * k + q] ** 2;
        answer[r * L + s] = answer[s * L + r] = sum;
      }
    }
    return answer;
  }
}

// Labels may be absent: logOdds and weights of the pairs i <= j of every member, one after the other.
class PresentMoments {
  constructor(halves, logOdds, weights, centre, n) {
    const L = this.L = centre.length, all = integralNodes(halves, centre, n), k = this.k = all.nodes.length;
    this.steps = all.steps;
    const { log1p, share } = nodeTables(centre, all.nodes);
    this.share = share;
    const factors = halves.map(half => {
      const table = new Float64Array(n * L * k);
      for (let i = 0; i < n; i++) for (let r = 0; r < L; r++) {
        const a = half[i * L + r], at = (i * L + r) * k;
        for (let q = 0; q < k; q++) table[at + q] = Math.exp(-a * log1p[r * k + q]);
      }
      return table;
    });
    this.pairs = [];
    let at = 0;
    halves.forEach((half, m) => {
      for (let i = 0; i < n; i++) for (let j = i; j < n; j++, at++) {
        if (Math.abs(weights[at]) > NEGLIGIBLE_PAIR) {
          this.pairs.push({ weight: weights[at], factors: factors[m], i, j, half, odds: logOdds.subarray(at * L, (at + 1) * L) });
        }
      }
    });
    this.moments();
  }

  // Uses every pair: its weight over the chance that some label is there, concentrations, presence and what is left of it.
  each(use) {
    const { L, k } = this, present = new Float64Array(L * k), either = new Float64Array(L * k), product = new Float64Array(k);
    const alpha = new Float64Array(L), alone = new Float64Array(L);
    for (const { weight, factors, i, j, half, odds } of this.pairs) {
      let empty = 0;
      for (let r = 0; r < L; r++) empty -= softplus(odds[r]);
      product.fill(1);
      for (let r = 0; r < L; r++) {
        const there = logistic(odds[r]), absent = logistic(-odds[r]), a = (i * L + r) * k, b = (j * L + r) * k;
        alpha[r] = half[i * L + r] + half[j * L + r];
        alone[r] = Math.exp(empty + softplus(odds[r]));
        for (let q = 0; q < k; q++) {
          const value = there * factors[a + q] * factors[b + q];
          present[r * k + q] = value;
          product[q] *= either[r * k + q] = value + absent;
        }
      }
      use(weight / -Math.expm1(empty), alpha, alone, present, either, product, odds);
    }
  }

  moments() {
    const { L, k, share, steps } = this;
    this.one = new Float64Array(L); this.two = new Float64Array(L); this.zero = new Float64Array(L);
    this.each((weight, alpha, alone, present, either, product, odds) => {
      for (let r = 0; r < L; r++) {
        let first = 0, second = 0;
        for (let q = 0; q < k; q++) {
          const value = present[r * k + q] * (product[q] / either[r * k + q] - alone[r]) * share[r * k + q] * steps[q];
          first += value; second += value * share[r * k + q];
        }
        const byItself = logistic(odds[r]) * alone[r];
        this.one[r] += weight * (byItself + alpha[r] * first);
        this.two[r] += weight * (byItself + alpha[r] * (alpha[r] + 1) * second);
      }
      let total = 0;
      for (let r = 0; r < L; r++) total += softplus(odds[r]);
      for (let r = 0; r < L; r++) {
        const rest = Math.max(total - softplus(odds[r]), 0);
        // absent, and some other label is there; the weight is already over the chance that any is
        this.zero[r] += weight * (rest > 0 ? Math.exp(logExpm1(rest) - total) : 0);
      }
    });
  }

  first() { return this.one.slice(); }

  products() {
    const { L, k, share, steps } = this, answer = new Float64Array(L * L), left = new Float64Array(L * k), scaled = new Float64Array(k);
    this.each((weight, alpha, alone, present, either, product) => {
      for (let at = 0; at < L * k; at++) left[at] = present[at] / either[at] * share[at];
      for (let r = 0; r < L; r++) {
        for (let q = 0; q < k; q++) scaled[q] = weight * alpha[r] * left[r * k + q] * product[q] * steps[q];
        for (let s = 0; s < r; s++) {
          let sum = 0;
          for (let q = 0; q < k; q++) sum += scaled[q] * left[s * k + q];
          answer[r * L + s] += alpha[s] * sum;
        }
      }
    });
    for (let r = 0; r < L; r++) {
      for (let s = 0; s < r; s++) answer[s * L + r] = answer[r * L + s];
      answer[r * L + r] = this.two[r];
    }
    return answer;
  }
}
