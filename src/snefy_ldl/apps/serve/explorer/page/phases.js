// The exact cdf of a share, or of a sum of shares, where all labels are there and the law has a centre (Gil-Pelaez), as in
// Python's square_rows:
//
//   P(share <= v) = 1/2 - 1/pi int Im[z' M z] dt/t,  z_i = e_i prod_rest (1 + i t c_s)^-a_is prod_in (1 - i t c_s e^-u)^-a_is,  u = logit v
//
// by the trapezoid rule in y = log t; good to 1e-7.

const PHASE_STEP = 0.3, PHASE_GROWTH = 2, PHASE_TAIL = 18, PHASE_LEAST = 1e-9, LOWEST_LOGIT = -60, HIGHEST_LOGIT = 36, PHASE_ROUNDS = 40;

class ExactShare {
  constructor({ halves, forms, features, centre, n }, inside, lowest, highest) {
    Object.assign(this, { halves, forms, features, centre, n, inside, lowest, highest });
    this.L = centre.length;
    this.outside = [...Array(this.L).keys()].filter(r => !inside.includes(r));
    this.makeNodes();
    const k = this.y.length;
    this.sizes = []; this.angles = [];
    halves.forEach((half, m) => {
      const size = new Float64Array(n * k), angle = new Float64Array(n * k);
      for (let i = 0; i < n; i++) size.fill(Math.log(features[m][i]), i * k, (i + 1) * k);
      for (const r of this.outside) this.add(half, r, k, q => centre[r] + this.y[q], size, angle, -1);
      this.sizes.push(size); this.angles.push(angle);
    });
    this.re = new Float64Array(n * k); this.im = new Float64Array(n * k); this.one = new Float64Array(k); this.two = new Float64Array(k);
  }

  // What label r does to the logarithm of every neuron's z: modulus and angle at phases whose logarithms are given.
  add(half, r, k, phase, size, angle, sign) {
    const log = new Float64Array(k), turn = new Float64Array(k);
    for (let q = 0; q < k; q++) { const s = phase(q); log[q] = 0.5 * softplus(2 * s); turn[q] = sign * Math.atan(Math.exp(s)); }
    for (let i = 0; i < this.n; i++) {
      const a = half[i * this.L + r];
      for (let q = 0; q < k; q++) { size[i * k + q] -= a * log[q]; angle[i * k + q] += a * turn[q]; }
    }
  }

  makeNodes() {
    const { halves, centre, n, L, inside, outside, lowest, highest } = this;
    const least = new Float64Array(L).fill(Infinity), most = new Float64Array(L);
    let sharpest = 0;
    for (const half of halves) for (let i = 0; i < n; i++) {
      let total = 0;
      for (let r = 0; r < L; r++) {
        const a = 2 * half[i * L + r];
        total += a; least[r] = Math.min(least[r], a); most[r] = Math.max(most[r], a);
      }
      sharpest = Math.max(sharpest, total);
    }
    let top = 0;
    for (let r = 0; r < L; r++) top += most[r] * Math.exp(centre[r]);
    const logs = inside.map(r => centre[r]), lowCentre = Math.min(...centre);
    const largest = Math.max(Math.log(top), Math.max(...logs) - lowest), smallest = Math.min(lowCentre, Math.min(...logs) - highest);
    const two = least.slice().sort(), slowest = Math.min(1, two[0] + two[1]), step = Math.min(PHASE_STEP, 1 / Math.sqrt(sharpest));
    const first = -largest - 1, last = 2 - smallest, y = [], weight = [];
    const stop = last + PHASE_GROWTH * (1 + Math.log(PHASE_TAIL / slowest));
    for (let x = first - PHASE_GROWTH * (1 + Math.log(PHASE_TAIL)); x < stop; x += step) {
      const up = Math.exp((x - last) / PHASE_GROWTH - 1), down = Math.exp((first - x) / PHASE_GROWTH - 1), node = x + up - down;
      const w = step * (1 + (up + down) / PHASE_GROWTH);
      let bound = Math.log(w);
      for (const r of inside) bound -= least[r] * 0.5 * softplus(2 * (centre[r] - highest + node));
      for (const r of outside) bound -= least[r] * 0.5 * softplus(2 * (centre[r] + node));
      if (bound > Math.log(PHASE_LEAST) && node > -largest - PHASE_TAIL - 4) { y.push(node); weight.push(w); }
    }
    this.y = Float64Array.from(y); this.weight = Float64Array.from(weight);
  }

  // The cdf at a logit, and the density of the logit there.
  at(u) {
    const { n, L, y, weight, inside, re, im, one, two } = this, k = y.length;
    let cdf = 0, density = 0;
    this.halves.forEach((half, m) => {
      const size = this.sizes[m].slice(), angle = this.angles[m].slice(), form = this.forms[m];
      for (const r of inside) this.add(half, r, k, q => this.centre[r] - u + y[q], size, angle, 1);
      for (let at = 0; at < n * k; at++) {
        const modulus = Math.exp(size[at]);
        re[at] = modulus * Math.cos(angle[at]); im[at] = modulus * Math.sin(angle[at]);
      }
      const rising = inside.map(() => new Float64Array(k)), falling = inside.map(() => new Float64Array(k));
      for (let i = 0; i < n; i++) {
        one.fill(0); two.fill(0);
        for (let j = 0; j < n; j++) {
          const f = form[i * n + j];
          if (f !== 0) for (let q = 0; q < k; q++) { one[q] += f * re[j * k + q]; two[q] += f * im[j * k + q]; }
        }
        inside.forEach((r, g) => {
          const a = half[i * L + r];
          for (let q = 0; q < k; q++) {
            rising[g][q] += a * (re[i * k + q] * one[q] - im[i * k + q] * two[q]);
            falling[g][q] += a * (re[i * k + q] * two[q] + im[i * k + q] * one[q]);
          }
        });
        for (let q = 0; q < k; q++) cdf += weight[q] * (re[i * k + q] * two[q] + im[i * k + q] * one[q]);
      }
      inside.forEach((r, g) => {
        for (let q = 0; q < k; q++) {
          const s = Math.exp(this.centre[r] - u + y[q]);
          density += 2 * weight[q] * (rising[g][q] - falling[g][q] * s) / (s + 1 / s);
        }
      });
    });
    return [Math.min(1, Math.max(0, 0.5 - cdf / Math.PI)), Math.max(density / Math.PI, 0)];
  }

  // The share below which a probability lies, from a guess: Newton's method on the log odds; null outside the range.
  quantile(level, guess) {
    const goal = Math.log(level) - Math.log1p(-level);
    let low = this.lowest, high = this.highest, u = Math.min(high, Math.max(low, guess));
    for (let round = 0; round < PHASE_ROUNDS; round++) {
      const [value, density] = this.at(u), error = Math.log(Math.max(value, 1e-300)) - Math.log(Math.max(1 - value, 1e-300)) - goal;
      if (Math.abs(error) < 1e-7) return logistic(u);
      if (error < 0) low = u; else high = u;
      if (high - low < 1e-10) return high < this.highest && low > this.lowest ? logistic(u) : null;
      const next = u - error * value * (1 - value) / Math.max(density, 1e-300), inner = next > low && next < high;
      u = inner ? next : 0.5 * (low + high);
      // close by, the error that a step leaves is about the square of the one before
      if (inner && Math.abs(error) < 2e-3) return logistic(u);
    }
    return null;
  }
}

// Exact quantiles and probabilities of one part; curves are those of draws.
class ShareByPhases {
  constructor(setting, inside, drawn) { this.setting = setting; this.inside = inside; this.drawn = drawn; this.near = null; }

  // Nodes serve a range of logits; it is widened where a quantile lies outside.
  quantile(level) {
    const z = share => Math.min(HIGHEST_LOGIT, Math.max(LOWEST_LOGIT, Math.log(share) - Math.log1p(-share))), guess = z(this.drawn.quantile(level));
    for (let width = 1; ; width *= 4) {
      if (!this.near || guess - width / 2 < this.near.lowest || guess + width / 2 > this.near.highest || width > 1) {
        const ends = [this.drawn.quantile(0.02), this.drawn.quantile(0.98)].map(z);
        const low = Math.max(Math.min(ends[0], guess) - width, LOWEST_LOGIT), high = Math.min(Math.max(ends[1], guess) + width, HIGHEST_LOGIT);
        this.near = new ExactShare(this.setting, this.inside, low, high);
      }
      const answer = this.near.quantile(level, guess);
      if (answer !== null) return answer;
      if (width > HIGHEST_LOGIT - LOWEST_LOGIT) return logistic(guess);
    }
  }

  below(share) {
    if (share <= 0) return 0;
    if (share >= 1) return 1;
    const u = Math.log(share) - Math.log1p(-share);
    return new ExactShare(this.setting, this.inside, u, u).at(u)[0];
  }

  error() { return 0; }
  curve() { return this.drawn.curve(); }
}
