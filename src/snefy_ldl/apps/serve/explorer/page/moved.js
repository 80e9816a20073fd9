// Laws with a centre, laws that move with the features, and laws in which labels may be absent.
//
// MovedLaw and DrawnLaw answer the questions that Law answers. MovedLaw has exact means, covariances and, where all labels
// are there, exact intervals, comparisons and densities of three labels; for the rest it draws. DrawnLaw has draws alone:
// what follows from votes and from a known share.

const DRAWS = 4000, QUICK_DRAWS = 1000;
const BAND_WORK = 1000;          // pairs of neurons up to which bands along a feature are integrals too

class MovedLaw {
  constructor(model, place, groups = null) {
    this.model = model; this.place = place;
    this.groups = groups || model.labels.map((_, r) => [r]);
    this.quick = false;
  }

  get nLabels() { return this.groups.length; }
  get single() { return this.groups.every(group => group.length === 1); }

  once(name, make) {
    if (!(name in this)) this[name] = make();
    return this[name];
  }

  get weights() { return this.once("kept", () => this.model.weights(this.place)); }

  // The neurons that have a part in this law, as many for each member.
  get active() {
    return this.once("lively", () => {
      const { model, place, weights } = this, N = model.neurons, L = model.nLabels, features = model.features(place);
      const lists = weights.map(weight => [...Array(N).keys()].filter(i => {
        let size = 0;
        for (let j = 0; j < N; j++) size += Math.abs(weight[i * N + j]);
        return size > NEGLIGIBLE;
      }));
      const n = Math.max(...lists.map(list => list.length));
      // members with fewer of them repeat one without a weight
      for (const list of lists) while (list.length < n) list.push(-1 - list[0]);
      const number = i => i < 0 ? -1 - i : i;
      return {
        n, features: lists.map((list, k) => Float64Array.from(list, i => i < 0 ? 0 : features[k][i])),
        halves: lists.map((list, k) => Float64Array.from(list.flatMap(i => Array.from(model.half[k].subarray(number(i) * L, (number(i) + 1) * L))))),
        forms: lists.map((list, k) => Float64Array.from(list.flatMap(i => list.map(j => place.forms[k][number(i) * N + number(j)])))),
      };
    });
  }

  // All raw moments of single labels: first, products, and chances of zero where there are any.
  get moments() {
    return this.once("integrals", () => {
      const { model, place } = this, L = model.nLabels;
      if (!model.presence) {
        const { halves, forms, features, n } = this.active;
        return new SquareMoments(halves, forms, features, place.centre, n);
      }
      if (place.shift) {
        const { odds, weights } = listedPairs(model, place, this.weights);
        return new PresentMoments(model.half, odds, weights, place.centre, model.neurons);
      }
      return {
        first: () => model.tabulated(this.weights, "first"), zero: model.tabulated(this.weights, "zero"),
        products: () => {
          const list = model.tabulated(this.weights, "products"), table = list && new Float64Array(L * L);
          if (list) for (let r = 0, at = 0; r < L; r++) for (let s = r; s < L; s++, at++) table[r * L + s] = table[s * L + r] = list[at];
          return table;
        },
      };
    });
  }

  get first() { return this.once("raw", () => this.moments.first()); }

  mean() {
    const mean = this.first.map(value => Math.max(value, 0)), sum = mean.reduce((a, b) => a + b, 0);
    return Float64Array.from(this.groups, group => group.reduce((total, r) => total + mean[r] / sum, 0));
  }

  covariance() {
    const products = this.moments.products(), { groups, first } = this, L = first.length, G = groups.length;
    if (!products) return this.drawn.covariance();
    const table = new Float64Array(G * G);
    groups.forEach((one, a) => groups.forEach((other, b) => {
      for (const r of one) for (const s of other) table[a * G + b] += products[r * L + s] - first[r] * first[s];
    }));
    return table;
  }

  // Chances that parts are exactly zero; null where they cannot be.
  zero() {
    if (!this.model.presence) return null;
    return this.single ? this.moments.zero.map(chance => Math.min(1, Math.max(0, chance))) : this.drawn.zero();
  }

  get drawn() {
    return this.once("draws", () => this.fromDraws(this.quick ? QUICK_DRAWS : DRAWS).merged(this.groups));
  }

  fromDraws(wanted) {
    const { model } = this, labels = model.labels.map((_, r) => [r]);
    return new DrawnLaw(model.pools.draw(this.place, wanted), model.nLabels, null, { law: this, votes: null, groups: labels });
  }

  merged(groups) {
    const law = new MovedLaw(this.model, this.place, groups.map(group => group.flatMap(part => this.groups[part])));
    Object.assign(law, { quick: this.quick, raw: this.first, integrals: this.moments, kept: this.weights });
    return law;
  }

  // After votes; null where no draw is left that could have them.
  posterior(votes) {
    const { shares, logs } = votedDraws(this, votes).draw(this.quick ? QUICK_DRAWS / 2 : DRAWS), weights = relative(logs);
    return weights && new DrawnLaw(shares, this.model.nLabels, weights, { law: this, votes, groups: this.model.labels.map((_, r) => [r]) });
  }

  knowing(part, share) { return known(this, this.groups, part, share, null); }
  get pairWork() { return this.model.presence ? Infinity : this.model.members * this.model.neurons ** 2; }
  get exactShares() { return !this.quick && this.model.content.exact; }  // integrals wait until nothing moves

  share(part) { return this.exactShares ? this.exactShare(part) : this.drawn.share(part); }

  exactShare(part) {
    return new ShareByPhases({ ...this.active, centre: this.place.centre }, this.groups[part], this.drawn.share(part));
  }

  // The same for one of many laws along a feature.
  bandShare(part) { return this.pairWork <= BAND_WORK ? this.exactShare(part) : this.drawn.share(part); }

  exactlyGreater() { return !this.model.presence && this.single; }

  greater(first, second) {
    if (!this.exactlyGreater()) return this.drawn.greater(first, second);
    const [a, b] = [first, second].map(part => this.groups[part][0]), { centre } = this.place;
    return new Law(this.model.components, this.weights).greater(a, b, logistic(centre[b] - centre[a]));
  }

  // Densities of the proportions among three parts, on the points of a triangle.
  ternary(corners) {
    const labels = corners.map(part => this.groups[part][0]);
    if (this.model.presence || !corners.every(part => this.groups[part].length === 1)) return this.drawn.ternary(corners);
    const law = new Law(this.model.components, this.weights).among(labels), centre = labels.map(r => this.place.centre[r]);
    return {
      exact: true, densities: points => {
        const { logs, factor } = movedTriangle(centre, points);
        return law.densities(logs).map((value, s) => value * factor[s]);
      },
    };
  }
}

// Odds of presence and weights of all pairs i <= j, members one after the other.
function listedPairs(model, place, weights) {
  const n = model.neurons, L = model.nLabels, pairs = n * (n + 1) / 2, odds = new Float64Array(model.members * pairs * L);
  const list = new Float64Array(model.members * pairs);
  weights.forEach((weight, k) => {
    for (let at = 0; at < pairs * L; at++) odds[k * pairs * L + at] = withinLimit(model.pairOdds[k][at] + place.shift[at % L]);
    let pair = k * pairs;
    for (let i = 0; i < n; i++) for (let j = i; j < n; j++, pair++) list[pair] = (i === j ? 1 : 2) * weight[i * n + j];
  });
  return { odds, weights: list };
}

// Weights from their logarithms, the largest one; null where all are zero.
function relative(logs) {
  let top = -Infinity;
  for (const log of logs) if (log > top) top = log;
  return top === -Infinity ? null : logs.map(log => Math.exp(log - top));
}

class DrawnLaw {
  constructor(shares, L, weights, source) {
    this.shares = shares; this.nLabels = L; this.count = shares.length / L; this.weights = weights; this.source = source;
    let sum = 0, squares = 0;
    if (weights) for (const weight of weights) { sum += weight; squares += weight * weight; }
    this.total = weights ? sum : this.count;
    this.effective = weights ? sum * sum / squares : this.count;  // as many equal draws would be as good
  }

  average(value) {
    const { count, weights, nLabels } = this;
    let sum = 0;
    for (let s = 0; s < count; s++) { const of = value(s * nLabels, s); sum += weights ? weights[s] * of : of; }
    return sum / this.total;
  }

  mean() { return Float64Array.from({ length: this.nLabels }, (_, r) => this.average(at => this.shares[at + r])); }

  // Standard errors of the means.
  meanErrors() {
    return this.mean().map((mean, r) => Math.sqrt(this.average(at => (this.shares[at + r] - mean) ** 2) / this.effective));
  }

  covariance() {
    const L = this.nLabels, mean = this.mean(), table = new Float64Array(L * L), { shares } = this;
    for (let r = 0; r < L; r++) for (let s = 0; s <= r; s++) {
      table[r * L + s] = table[s * L + r] = this.average(at => (shares[at + r] - mean[r]) * (shares[at + s] - mean[s]));
    }
    return table;
  }

  zero() {
    if (!this.source.law.model.presence) return null;
    return Float64Array.from({ length: this.nLabels }, (_, r) => this.average(at => this.shares[at + r] === 0 ? 1 : 0));
  }

  merged(groups) {
    const { count, nLabels, shares } = this, G = groups.length;
    if (groups.every((group, g) => group.length === 1 && group[0] === g) && G === nLabels) return this;
    const sums = new Float64Array(count * G);
    for (let s = 0; s < count; s++) groups.forEach((group, g) => { for (const r of group) sums[s * G + g] += shares[s * nLabels + r]; });
    return new DrawnLaw(sums, G, this.weights, { ...this.source, groups: groups.map(group => group.flatMap(part => this.source.groups[part])) });
  }

  knowing(part, share) { return known(this.source.law, this.source.groups, part, share, this.source.votes); }

  share(part) {
    const values = Float64Array.from({ length: this.count }, (_, s) => this.shares[s * this.nLabels + part]);
    return new DrawnShare(values, this.weights, this.effective, this.source.left || 1);
  }

  bandShare(part) { return this.share(part); }

  greater(first, second) { return Math.min(1, this.average(at => this.shares[at + first] > this.shares[at + second] ? 1 : 0)); }

  ternary(corners) {
    const three = new Float64Array(3 * this.count);
    let inside = 0, all = 0;
    for (let s = 0; s < this.count; s++) {
      const values = corners.map(part => this.shares[s * this.nLabels + part]), sum = values[0] + values[1] + values[2];
      const weight = this.weights ? this.weights[s] : 1;
      all += weight;
      if (values.every(value => value > 0)) { inside += weight; values.forEach((value, k) => { three[3 * s + k] = value / sum; }); }
    }
    return { exact: false, inside: inside / all, densities: points => smoothTriangle(three, this.weights, this.effective, points) };
  }
}

// The other parts when the share of one is known.
function known(law, groups, part, share, votes) {
  const { model } = law, inside = new Set(groups[part]), wanted = law.quick ? QUICK_DRAWS : DRAWS, labels = model.labels.map((_, r) => [r]);
  const { shares, logs } = votes || !model.presence ? votedDraws(law, votes || model.labels.map(() => 0)).drawKnowing(wanted, inside, share)
    : knownDraws(law, wanted, inside, share);
  const weights = relative(logs);
  if (!weights) return null;
  const others = groups.filter((_, other) => other !== part);
  return new DrawnLaw(shares, model.nLabels, weights, { law, votes, groups: labels, left: 1 - share }).merged(others);
}

const votedDraws = (law, votes) => law.model.presence ? new PresentVotes(law, votes) : new VotedDraws(law, votes);

// Where labels may be absent every draw keeps its proportions within that part and among the others, and is weighted by the
// density of the whole over that of those proportions.
function knownDraws(law, wanted, inside, share) {
  const { model, place } = law, L = model.nLabels, base = law.fromDraws(wanted), shares = base.shares.slice(), logs = new Float64Array(base.count);
  const ratio = new Ratio(model.pools, place, model.features(place), inside);
  for (let s = 0; s < base.count; s++) {
    let sum = 0;
    for (const r of inside) sum += shares[s * L + r];
    if (!(sum > 0 && sum < 1)) { logs[s] = -Infinity; continue; }
    logs[s] = -ratio.log(shares, s * L, true);
    for (let r = 0; r < L; r++) shares[s * L + r] *= inside.has(r) ? share / sum : (1 - share) / (1 - sum);
    logs[s] += ratio.log(shares, s * L, false);
  }
  return { shares, logs };
}

// Logarithms of densities at draws, up to what all draws of one call share: of all labels, or of the proportions within
// and outside a part.
class Ratio {
  constructor(pools, place, features, inside) {
    Object.assign(this, { pools, place, features, inside });
    this.model = pools.model;
    this.logs = new Float64Array(this.model.nLabels); this.v = new Float64Array(this.model.neurons);
    this.base = features.map((e, k) => e.map((value, i) => Math.log(value) - place.roots[k][i]));
  }

  log(shares, start, apart) {
    const { model, logs, inside } = this, L = model.nLabels, there = [], { centre } = this.place;
    let jacobian = 0;
    for (let r = 0; r < L; r++) {
      const share = shares[start + r];
      logs[r] = share > 0 ? Math.log(share) - (centre ? centre[r] : 0) : -Infinity;
      if (share > 0) there.push(r);
    }
    const within = there.filter(r => inside.has(r)), without = there.filter(r => !inside.has(r));
    for (const group of apart ? [within, without] : [there]) {
      let sum = 0, all = 0;
      for (const r of group) { sum += Math.exp(logs[r]); all += shares[start + r]; }
      for (const r of group) { logs[r] -= Math.log(sum); jacobian -= Math.log(shares[start + r] / all); }
    }
    // the totals' own part of the measure: (|G| - 1) log v + (|R| - 1) log(1 - v)
    if (!apart) {
      let total = 0;
      for (const r of within) total += shares[start + r];
      jacobian += (within.length - 1) * Math.log(total) + (without.length - 1) * Math.log1p(-total);
    }
    let answer = -Infinity;
    this.features.forEach((_, k) => {
      const kernel = apart ? this.pools.split(k, within, without) : this.pools.support(k, there);
      const one = this.form(k, there, kernel);
      answer = answer === -Infinity ? one : Math.max(one, answer) + Math.log1p(Math.exp(-Math.abs(one - answer)));
    });
    return answer + jacobian;
  }

  form(k, there, kernel) {
    const { model, v, logs } = this, n = model.neurons, L = model.nLabels, half = model.half[k], presence = model.presence[k];
    for (let i = 0; i < n; i++) {
      let term = this.base[k][i] + kernel.root[i];
      for (const r of there) term += half[i * L + r] * logs[r] + presence[i * L + r];
      v[i] = term;
    }
    return logForm(kernel.table, v, n);
  }
}
