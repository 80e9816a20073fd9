// Draws after votes: from a mixture close to that law, with weights that make up for the rest.
//
// With shares l = c g / R the votes' likelihood is prod (c g)^k R^-|k|, and R^-|k| is an integral of t^(|k|-1) e^(-tR). At a
// fixed t the gammas have concentrations a + k and scales 1 / (1 + c t): a mixture over some t and the pairs with positive
// weights is proposed, and its density is known. Where labels may be absent, those with votes are there, and the others each
// by itself with odds that fall with t.

const MOST_TIMES = 6, TIME_RANGE = Math.log(1e-3);
const UNCHANGED = 0.1;           // part of the proposals that does not depend on the known share
const PILOT = 300;               // draws that tell what to expect of the others

// What draws after votes have in common: a class says what it proposes, and both log densities at log shares (-Infinity
// for absent labels), with the product of the shares left out.
class Weighted {
  // Proposals (S * L), and the logarithms of their weights.
  draw(wanted) {
    const { L } = this, shares = this.propose(wanted), groups = [[...Array(L).keys()]];
    const logs = Float64Array.from({ length: shares.length / L }, (_, s) => {
      const made = shares.slice(s * L, (s + 1) * L).map(Math.log);
      return this.target(made) - this.proposal(made, groups);
    });
    return { shares, logs };
  }

  // The same when the share of some labels is known: proposals keep their proportions inside and outside of them.
  drawKnowing(wanted, inside, share) {
    const { L } = this, shares = this.propose(wanted), all = [...Array(L).keys()];
    const groups = [all.filter(r => inside.has(r)), all.filter(r => !inside.has(r))];
    const logs = Float64Array.from({ length: shares.length / L }, (_, s) => {
      const made = shares.subarray(s * L, (s + 1) * L), sums = groups.map(group => group.reduce((total, r) => total + made[r], 0));
      if (!(sums[0] > 0 && sums[1] > 0)) return -Infinity;
      const before = this.proposal(made.map(Math.log), groups);
      groups.forEach((group, g) => { for (const r of group) made[r] *= (g ? 1 - share : share) / sums[g]; });
      // with the products left out, the measures of all shares and of the proportions differ by one factor for all draws
      return this.target(made.map(Math.log)) - before;
    });
    return { shares, logs };
  }

  votesLog(made) {
    let log = 0;
    for (let r = 0; r < this.L; r++) if (this.votes[r]) log += this.votes[r] * made[r];
    return log;
  }
}

class VotedDraws extends Weighted {
  constructor(law, votes) {
    super();
    const { model, place } = law, n = model.neurons, L = model.nLabels;
    Object.assign(this, { law, model, place, votes, n, L });
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
    const { model, n, L } = this, key = groups.join("|");
    if (this.made && this.made.key === key) return this.made.tables;
    const tables = model.gram.map((gram, k) => {
      const sums = groups.map(group => {
        const sum = new Float64Array(n);
        for (let i = 0; i < n; i++) for (const r of group) sum[i] += this.half[k][i * L + r];
        return sum;
      });
      const whole = model.components.totals[k];
      return this.table(gram, (i, j) => sums.reduce((log, sum) => log + logGamma(sum[i] + sum[j]), -logGamma(whole[i] + whole[j])));
    });
    this.made = { key, tables };
    return tables;
  }

  // Times with most of the evidence: y = log t, what 1 + c t does to every neuron, and the logarithm of the weight.
  chooseTimes() {
    const { n, L, place } = this, all = [];
    // without votes there is nothing to integrate over
    const { nodes, steps } = this.total ? integralNodes(this.half, place.centre, n) : { nodes: [-Infinity], steps: [1] };
    nodes.forEach((y, q) => {
      const log1p = Float64Array.from(place.centre, c => softplus(c + y)), less = this.half.map(half => {
        const sum = new Float64Array(n);
        for (let i = 0; i < n; i++) for (let r = 0; r < L; r++) sum[i] -= half[i * L + r] * log1p[r];
        return sum;
      });
      const base = this.total ? this.total * y + Math.log(steps[q]) : 0;
      const logs = this.logs.map((_, k) => {
        const v = this.logs[k].map((log, i) => log + this.masses[k].root[i] + less[k][i]);
        return base + logForm(this.masses[k].table, v, n);
      });
      all.push({ log1p, less, base, logs, log: logSum(logs) });
    });
    const chosen = bestTimes(all);
    this.log = logSum(chosen.map(one => one.log));
    return chosen;
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

  // With a share known most proposals come from pairs weighted by its density, were the others at expected proportions;
  // some from all pairs as they were, so that no part of the law is left out. What is expected comes from a few draws.
  drawKnowing(wanted, inside, share) {
    const { L } = this, all = [...Array(L).keys()], groups = [all.filter(r => inside.has(r)), all.filter(r => !inside.has(r))];
    let expected = this.law.first;
    for (const count of [PILOT, wanted]) {
      const anchors = this.anchors(groups, share, expected), shares = this.proposeKnowing(count, groups, share, anchors);
      const whole = [all], heights = this.heights(whole), logs = Float64Array.from({ length: shares.length / L }, (_, s) => {
        const made = shares.slice(s * L, (s + 1) * L).map(Math.log);
        const near = logSum(this.times.map((time, q) => this.timeLog(made, groups, time, heights, anchors.logits[q]))) - anchors.log;
        const far = this.proposal(made, groups);
        return this.target(made) - logSum([near + Math.log(1 - UNCHANGED), far + Math.log(UNCHANGED)]);
      });
      if (count === wanted) return { shares, logs };
      const weights = relative(logs);
      if (weights) expected = new DrawnLaw(shares, L, weights, null).mean();
    }
  }

  // For every time the logit of the known share among gammas, and the pairs' weights there, (pairs) a member.
  anchors(groups, share, expected) {
    const { n, L, model, place } = this, sums = this.half.map(half => groups.map(group => Float64Array.from({ length: n }, (_, i) =>
      group.reduce((sum, r) => sum + half[i * L + r], 0))));
    const tables = model.gram.map((gram, k) => this.table(gram, (i, j) => {
      let log = -logGamma(model.components.totals[k][i] + model.components.totals[k][j]), all = 0;
      groups.forEach((group, g) => {
        const total = sums[k][g][i] + sums[k][g][j];
        for (const r of group) log += logGamma(this.half[k][i * L + r] + this.half[k][j * L + r]);
        log -= logGamma(total);
        all += total;
      });
      return log + logGamma(all);
    }));
    const logits = this.times.map(time => {
      const parts = groups.map(group => {
        const total = group.reduce((sum, r) => sum + expected[r], 0);
        return logSum(group.map(r => Math.log(expected[r] / total) - place.centre[r] + time.log1p[r]));
      });
      return Math.log(share) - Math.log1p(-share) + parts[0] - parts[1];
    });
    const terms = this.times.map((time, q) => this.base.map((base, k) => base.map((value, i) => value + tables[k].root[i] + time.less[k][i]
      + sums[k][0][i] * logLogistic(logits[q]) + sums[k][1][i] * logLogistic(-logits[q]) + 0.5 * time.base)));
    const log = logSum(terms.flatMap(members => members.map((v, k) => logForm(tables[k].table, v.slice(), n))));
    return { logits, tables, terms, log };
  }

  proposeKnowing(wanted, groups, share, { tables, terms, log }) {
    const { n, L } = this, shares = new Float64Array(wanted * L), near = Math.ceil((1 - UNCHANGED) * wanted), randoms = new Map(), made = new Float64Array(L);
    const places = this.model.pools.places, goals = [share, 1 - share];
    let done = 0, mass = 0;
    const draws = (time, k, i, j, weight, first, count) => {
      mass += weight;
      while (done < first + count && done - first + places[done] < mass * count) {
        const key = (k * n + i) * n + j;
        if (!randoms.has(key)) randoms.set(key, new Random(301 + k, 1 + i, 1 + j));
        for (let r = 0; r < L; r++) made[r] = randoms.get(key).logGamma(this.half[k][i * L + r] + this.half[k][j * L + r]) + this.place.centre[r] - time.log1p[r];
        groups.forEach((group, g) => {
          const total = logSum(group.map(r => made[r]));
          for (const r of group) shares[done * L + r] = Math.max(goals[g] * Math.exp(made[r] - total), LEAST_SHARE);
        });
        done += 1;
      }
    };
    const each = (use) => this.times.forEach((time, q) => this.base.forEach((_, k) => {
      for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) use(time, q, k, i, j, i === j ? 1 : 2);
    }));
    each((time, q, k, i, j, twice) => draws(time, k, i, j, twice * tables[k].table[i * n + j] * Math.exp(terms[q][k][i] + terms[q][k][j] - log), 0, near));
    const first = done;
    mass = 0;
    each((time, q, k, i, j, twice) => {
      const root = this.masses[k].root, v = at => this.logs[k][at] + root[at] + time.less[k][at] + 0.5 * (time.base - this.log);
      draws(time, k, i, j, twice * this.masses[k].table[i * n + j] * Math.exp(v(i) + v(j)), first, wanted - first);
    });
    return shares.subarray(0, done * L);
  }

  // Log density of the law times the votes' likelihood.
  target(made) {
    const { n, L, model, place } = this, logs = made.map((log, r) => log - place.centre[r]);
    close(logs, 0, L);
    return this.votesLog(made) + logSum(this.base.map((base, k) => {
      const v = new Float64Array(n), half = model.half[k];
      for (let i = 0; i < n; i++) {
        v[i] = base[i];
        for (let r = 0; r < L; r++) v[i] += half[i * L + r] * logs[r];
      }
      return logForm(model.gram[k], v, n);
    }));
  }

  // The same of what is proposed, as proportions within groups of labels.
  proposal(made, groups) {
    const heights = this.heights(groups);
    return logSum(this.times.map(time => this.timeLog(made, groups, time, heights, null))) - this.log;
  }

  // One time's part of it; where a logit is given the two groups' totals are those it stands for.
  timeLog(made, groups, time, heights, logit) {
    const { n, L, place } = this, logs = made.map((log, r) => log - place.centre[r] + time.log1p[r]);
    groups.forEach((group, g) => {
      const total = logSum(group.map(r => logs[r])) - (logit === null ? 0 : logLogistic(g ? -logit : logit));
      for (const r of group) logs[r] -= total;
    });
    return time.base + logSum(this.base.map((base, k) => {
      const v = new Float64Array(n), half = this.half[k], { root, table } = heights[k];
      for (let i = 0; i < n; i++) {
        v[i] = base[i] + root[i] + time.less[k][i];
        for (let r = 0; r < L; r++) v[i] += half[i * L + r] * logs[r];
      }
      return logForm(table, v, n);
    }));
  }
}

class PresentVotes extends Weighted {
  constructor(law, votes) {
    super();
    const { model, place } = law, n = model.neurons, L = model.nLabels;
    Object.assign(this, { model, place, votes, n, L });
    this.total = votes.reduce((a, b) => a + b, 0);
    this.half = model.half.map(half => half.map((value, at) => value + votes[at % L] / 2));
    this.base = model.features(place).map((e, k) => e.map((value, i) => Math.log(value) - place.roots[k][i]));
    this.pairs = [];
    model.gram.forEach((gram, k) => {
      let at = 0;
      for (let i = 0; i < n; i++) for (let j = i; j < n; j++, at += L) {
        if (gram[i * n + j] > 0) this.pairs.push(this.pair(k, i, j, at, Math.log((i === j ? 1 : 2) * gram[i * n + j])));
      }
    });
    this.chooseTimes();
  }

  // What belongs to a pair whatever the time: concentrations after the votes, and log odds of presence with the votes' part.
  pair(k, i, j, at, log) {
    const { L, model, place, votes } = this, alpha = new Float64Array(L), odds = new Float64Array(L);
    for (let r = 0; r < L; r++) {
      const before = model.half[k][i * L + r] + model.half[k][j * L + r];
      alpha[r] = before + votes[r];
      odds[r] = withinLimit(model.pairOdds[k][at + r] + (place.shift ? place.shift[r] : 0));
      if (votes[r]) odds[r] += logGamma(alpha[r]) - logGamma(before);
    }
    return { k, i, j, alpha, odds, log: log + this.base[k][i] + this.base[k][j] };
  }

  pairLog({ alpha, odds, log }, log1p) {
    for (let r = 0; r < this.L; r++) {
      const value = odds[r] - alpha[r] * log1p[r];
      log += this.votes[r] ? value : softplus(value);
    }
    return log;
  }

  chooseTimes() {
    const { nodes, steps } = integralNodes(this.half, this.place.centre, this.n), all = [];
    for (let q = 0; q < nodes.length; q += 2) {
      const log1p = Float64Array.from(this.place.centre, c => softplus(c + nodes[q]));
      const base = this.total * nodes[q] + Math.log(steps[q]), logs = this.pairs.map(pair => base + this.pairLog(pair, log1p));
      all.push({ log1p, base, logs, log: logSum(logs) });
    }
    this.times = bestTimes(all);
    this.log = logSum(this.times.map(one => one.log));
  }

  propose(wanted) {
    const { L, place } = this, shares = new Float64Array(wanted * L), places = this.model.pools.places, made = new Float64Array(L), randoms = new Map();
    let done = 0, mass = 0;
    for (const time of this.times) this.pairs.forEach((pair, at) => {
      mass += Math.exp(time.logs[at] - this.log);
      while (done < wanted && done + places[done] < mass * wanted) {
        if (!randoms.has(pair)) randoms.set(pair, new Random(201 + pair.k, 1 + pair.i, 1 + pair.j));
        const random = randoms.get(pair);
        for (let r = 0; r < L; r++) {
          const there = random.uniform() < logistic(pair.odds[r] - pair.alpha[r] * time.log1p[r]) || this.votes[r] > 0;
          made[r] = there ? random.logGamma(pair.alpha[r]) + place.centre[r] - time.log1p[r] : -Infinity;
        }
        close(made, 0, L);
        for (let r = 0; r < L; r++) shares[done * L + r] = made[r] === -Infinity ? 0 : Math.max(Math.exp(made[r]), LEAST_SHARE);
        done += 1;
      }
    });
    return shares.subarray(0, done * L);
  }

  target(made) {
    const there = [], { pools } = this.model, logs = made.map((log, r) => { if (log > -Infinity) there.push(r); return log - this.place.centre[r]; });
    close(logs, 0, this.L);
    return this.votesLog(made) + logSum(this.base.map((base, k) => {
      const { root, table } = pools.support(k, there);
      return logForm(table, this.terms(base, root, this.model.half[k], k, logs, there, null), this.n);
    }));
  }

  proposal(made, groups) {
    const inside = groups.map(group => group.filter(r => made[r] > -Infinity)), there = inside.flat();
    const kernels = this.half.map((half, k) => this.model.pools.voted(k, inside, half, this.votes));
    return logSum(this.times.map(time => {
      const logs = made.map((log, r) => log - this.place.centre[r] + time.log1p[r]);
      for (const group of inside) {
        const total = logSum(group.map(r => logs[r]));
        for (const r of group) logs[r] -= total;
      }
      return time.base - this.log + logSum(this.base.map((base, k) => {
        const { root, table } = kernels[k];
        return logForm(table, this.terms(base, root, this.half[k], k, logs, there, time.log1p), this.n);
      }));
    }));
  }

  // Logarithms of every neuron's term at shares of the labels that are there.
  terms(base, root, half, k, logs, there, log1p) {
    const { n, L } = this, presence = this.model.presence[k], v = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      v[i] = base[i] + root[i];
      for (const r of there) v[i] += half[i * L + r] * (log1p ? logs[r] - log1p[r] : logs[r]) + presence[i * L + r];
    }
    return v;
  }
}

// Of all times those that hold most of the evidence, not too many.
function bestTimes(all) {
  const top = Math.max(...all.map(one => one.log)), good = all.filter(one => one.log > top + TIME_RANGE);
  return good.length <= MOST_TIMES ? good
    : Array.from({ length: MOST_TIMES }, (_, k) => good[Math.round(k * (good.length - 1) / (MOST_TIMES - 1))]);
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
