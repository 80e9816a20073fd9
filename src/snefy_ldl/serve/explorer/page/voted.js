// Draws after votes, where all labels are there: from a mixture close to that law, with weights that make up for the rest.
//
// With shares l = c g / R the votes' likelihood is prod (c g)^k R^-|k|, and R^-|k| is an integral of t^(|k|-1) e^(-tR). At a
// fixed t the gammas have concentrations a + k and scales 1 / (1 + c t): a mixture over some t and the pairs with positive
// weights is proposed, and its density is known.

const MOST_TIMES = 6, TIME_RANGE = Math.log(1e-3);

class VotedDraws {
  constructor(law, votes) {
    const { model, place } = law, n = model.neurons, L = model.nLabels;
    Object.assign(this, { model, place, votes, n, L });
    this.total = votes.reduce((a, b) => a + b, 0);
    this.half = model.half.map(half => half.map((value, at) => value + votes[at % L] / 2));
    this.features = model.features(place);
    this.logs = this.features.map(e => e.map(Math.log));
    this.base = this.logs.map((logs, k) => logs.map((log, i) => log - place.roots[k][i]));
    // what votes do to B of every pair, with the root of its diagonal taken off
    this.masses = place.forms.map((form, k) => this.table(form, (i, j) => {
      let log = 0;
      for (let r = 0; r < L; r++) if (votes[r]) {
        const a = model.half[k][i * L + r] + model.half[k][j * L + r];
        log += logGamma(a + votes[r]) - logGamma(a);
      }
      return log;
    }));
    this.times = this.chooseTimes();
  }

  table(signs, log) {
    const { n } = this, root = Float64Array.from({ length: n }, (_, i) => 0.5 * log(i, i)), table = new Float64Array(n * n);
    for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
      const sign = Math.max(signs[i * n + j], 0);
      table[i * n + j] = table[j * n + i] = sign && sign * Math.exp(log(i, j) - root[i] - root[j]);
    }
    return { root, table };
  }

  // What a proposal's density holds beside powers: the Gamma functions of the totals of some groups of labels after the
  // votes, over that of all labels before them.
  heights(groups) {
    const { model, n, L } = this;
    return model.gram.map((gram, k) => {
      const sums = groups.map(group => {
        const sum = new Float64Array(n);
        for (let i = 0; i < n; i++) for (const r of group) sum[i] += this.half[k][i * L + r];
        return sum;
      });
      const whole = model.components.totals[k];
      return this.table(gram, (i, j) => sums.reduce((log, sum) => log + logGamma(sum[i] + sum[j]), -logGamma(whole[i] + whole[j])));
    });
  }

  // Times with most of the evidence: y = log t, what 1 + c t does to every neuron, and the logarithm of the weight.
  chooseTimes() {
    const { n, L, place } = this, { nodes, steps } = integralNodes(this.half, place.centre, n), all = [];
    nodes.forEach((y, q) => {
      const log1p = Float64Array.from(place.centre, c => softplus(c + y)), less = this.half.map(half => {
        const sum = new Float64Array(n);
        for (let i = 0; i < n; i++) for (let r = 0; r < L; r++) sum[i] -= half[i * L + r] * log1p[r];
        return sum;
      });
      const base = this.total * y + Math.log(steps[q]);
      const logs = this.logs.map((_, k) => {
        const v = this.logs[k].map((log, i) => log + this.masses[k].root[i] + less[k][i]);
        return base + logForm(this.masses[k].table, v, n);
      });
      all.push({ log1p, less, base, logs, log: logSum(logs) });
    });
    const top = Math.max(...all.map(one => one.log)), good = all.filter(one => one.log > top + TIME_RANGE);
    const chosen = good.length <= MOST_TIMES ? good
      : Array.from({ length: MOST_TIMES }, (_, k) => good[Math.round(k * (good.length - 1) / (MOST_TIMES - 1))]);
    this.log = logSum(chosen.map(one => one.log));
    return chosen;
  }

  // Proposals (S * L), and the logarithms of their weights.
  draw(wanted) {
    const { L } = this, shares = this.propose(wanted), groups = [[...Array(L).keys()]], heights = this.heights(groups);
    const logs = Float64Array.from({ length: shares.length / L }, (_, s) => {
      const made = shares.slice(s * L, (s + 1) * L).map(Math.log);
      return this.target(made) - this.proposal(made, groups, heights);
    });
    return { shares, logs };
  }

  // The same when the share of some labels is known: proposals keep their proportions inside and outside of them.
  drawKnowing(wanted, inside, share) {
    const { L } = this, shares = this.propose(wanted), all = [...Array(L).keys()];
    const groups = [all.filter(r => inside.has(r)), all.filter(r => !inside.has(r))], heights = this.heights(groups);
    const logs = Float64Array.from({ length: shares.length / L }, (_, s) => {
      const made = shares.subarray(s * L, (s + 1) * L), before = this.proposal(made.map(Math.log), groups, heights);
      groups.forEach((group, g) => {
        const sum = group.reduce((total, r) => total + made[r], 0);
        for (const r of group) made[r] *= (g ? 1 - share : share) / sum;
      });
      return this.target(made.map(Math.log)) - before;
    });
    return { shares, logs };
  }

  propose(wanted) {
    const { n, L, place } = this, shares = new Float64Array(wanted * L), pools = new Map();
    const places = this.model.pools.places, made = new Float64Array(L);
    let done = 0, mass = 0;
    this.times.forEach(time => this.logs.forEach((base, k) => {
      const v = base.map((log, i) => log + this.masses[k].root[i] + time.less[k][i] + 0.5 * (time.base - this.log));
      const { table } = this.masses[k];
      for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
        mass += (i === j ? 1 : 2) * table[i * n + j] * Math.exp(v[i] + v[j]);
        const key = (k * n + i) * n + j;
        while (done < wanted && (done + places[done]) < mass * wanted) {
          if (!pools.has(key)) pools.set(key, new Random(101 + k, 1 + i, 1 + j));
          const random = pools.get(key), half = this.half[k];
          for (let r = 0; r < L; r++) made[r] = random.logGamma(half[i * L + r] + half[j * L + r]) + place.centre[r] - time.log1p[r];
          close(made, 0, L);
          for (let r = 0; r < L; r++) shares[done * L + r] = Math.max(Math.exp(made[r]), LEAST_SHARE);
          done += 1;
        }
      }
    }));
    return shares.subarray(0, done * L);
  }

  // Log density of the law times the votes' likelihood, at log shares; the product of shares is left out here and below.
  target(made) {
    const { n, L, model, place } = this, logs = made.map((log, r) => log - place.centre[r]);
    close(logs, 0, L);
    let answer = 0;
    for (let r = 0; r < L; r++) if (this.votes[r]) answer += this.votes[r] * made[r];
    return answer + logSum(this.base.map((base, k) => {
      const v = new Float64Array(n), half = model.half[k];
      for (let i = 0; i < n; i++) {
        v[i] = base[i];
        for (let r = 0; r < L; r++) v[i] += half[i * L + r] * logs[r];
      }
      return logForm(model.gram[k], v, n);
    }));
  }

  // The same of what is proposed, as proportions within groups of labels.
  proposal(made, groups, heights) {
    const { n, L, place } = this;
    return logSum(this.times.map(time => {
      const logs = made.map((log, r) => log - place.centre[r] + time.log1p[r]);
      for (const group of groups) {
        const total = logSum(group.map(r => logs[r]));
        for (const r of group) logs[r] -= total;
      }
      return time.base - this.log + logSum(this.base.map((base, k) => {
        const v = new Float64Array(n), half = this.half[k], { root, table } = heights[k];
        for (let i = 0; i < n; i++) {
          v[i] = base[i] + root[i] + time.less[k][i];
          for (let r = 0; r < L; r++) v[i] += half[i * L + r] * logs[r];
        }
        return logForm(table, v, n);
      }));
    }));
  }
}

function logSum(logs) {
  const top = Math.max(...logs);
  if (top === -Infinity) return top;
  let sum = 0;
  for (const log of logs) sum += Math.exp(log - top);
  return top + Math.log(sum);
}

// log of sum_ij table_ij exp(v_i + v_j); v is used up.
function logForm(table, v, n) {
  let top = -Infinity, sum = 0;
  for (let i = 0; i < n; i++) if (v[i] > top) top = v[i];
  for (let i = 0; i < n; i++) v[i] = Math.exp(v[i] - top);
  for (let i = 0; i < n; i++) {
    let row = 0.5 * table[i * n + i] * v[i];
    for (let j = 0; j < i; j++) row += table[i * n + j] * v[j];
    sum += 2 * row * v[i];
  }
  return 2 * top + Math.log(Math.max(sum, 0));
}
