// Exact draws of shares, and a law that answers from draws with the same methods as one that computes.
//
// A draw takes a pair of neurons by its positive weight, gammas of that pair's concentrations, and is kept with the
// probability p / p+ (p+ without the negative weights). Pairs' concentrations do not depend on the row, so their gammas
// are drawn once, seeded by the pair: the same features always give the same draws, and draws move little with features.

const POOL_NUMBERS = 6e6;        // numbers kept in pools; with more they are made again
const MOST_PROPOSALS = 60000;    // proposals a law, however few are kept
const LEAST_SHARE = 1e-300;      // a share that is there is above zero
const MOST_SUPPORTS = 3e6;       // numbers kept in tables of supports

// Small fast counter generator (sfc32) with normal and gamma numbers.
class Random {
  constructor(...seeds) {
    this.state = Uint32Array.from([seeds[0] || 0, seeds[1] || 0, seeds[2] || 0, 1]);
    this.spare = null;
    for (let k = 0; k < 15; k++) this.bits();
  }

  bits() {
    const s = this.state, t = (s[0] + s[1] + s[3]) >>> 0;
    s[3] += 1;
    s[0] = s[1] ^ (s[1] >>> 9);
    s[1] = s[2] + (s[2] << 3);
    s[2] = ((s[2] << 21) | (s[2] >>> 11)) + t;
    return t;
  }

  uniform() { return (this.bits() + 0.5) / 4294967296; }

  normal() {
    if (this.spare !== null) { const value = this.spare; this.spare = null; return value; }
    let a, b, s;
    do { a = 2 * this.uniform() - 1; b = 2 * this.uniform() - 1; s = a * a + b * b; } while (s >= 1 || s === 0);
    const size = Math.sqrt(-2 * Math.log(s) / s);
    this.spare = b * size;
    return a * size;
  }

  // Logarithm of a gamma number (Marsaglia and Tsang); below one by the power of a uniform number.
  logGamma(shape) {
    const d = (shape < 1 ? shape + 1 : shape) - 1 / 3, c = 1 / Math.sqrt(9 * d);
    const less = shape < 1 ? Math.log(this.uniform()) / shape : 0;
    for (;;) {
      const z = this.normal(), root = 1 + c * z;
      if (root <= 0) continue;
      const v = root * root * root, log = Math.log(v);
      if (Math.log(this.uniform()) < 0.5 * z * z + d - d * v + d * log) return Math.log(d) + log + less;
    }
  }
}

// What draws of one pair of neurons need: logarithms of gammas, uniform numbers, and the neurons' terms.
class Pool {
  constructor(pools, k, i, j) {
    this.pools = pools; this.k = k; this.i = i; this.j = j; this.count = 0;
    this.random = new Random(1 + k, 1 + i, 1 + j);
    this.logs = new Float64Array(0); this.level = new Float64Array(0); this.terms = new Float64Array(0); this.chance = new Float32Array(0);
  }

  // At least so many draws.
  grow(wanted) {
    if (wanted <= this.count) return;
    const { model } = this.pools, L = model.nLabels, n = model.neurons, half = model.half[this.k], absent = Boolean(model.presence);
    const size = Math.max(16, Math.ceil(1.5 * wanted)), bigger = (old, width) => { const next = new old.constructor(size * width); next.set(old); return next; };
    this.logs = bigger(this.logs, L); this.level = bigger(this.level, 1);
    if (absent) this.chance = bigger(this.chance, 2 * L + 1); else this.terms = bigger(this.terms, n);
    for (let s = this.count; s < size; s++) {
      for (let r = 0; r < L; r++) this.logs[s * L + r] = this.random.logGamma(half[this.i * L + r] + half[this.j * L + r]);
      this.level[s] = this.random.uniform();
      if (absent) for (let c = 0; c < 2 * L + 1; c++) this.chance[s * (2 * L + 1) + c] = this.random.uniform();
      else this.fill(s, half, L, n);
    }
    this.pools.numbers += (size - this.count) * (L + 1 + (absent ? L : n));
    this.count = size;
  }

  // Closed shares, and exp of every neuron's term over the largest one.
  fill(s, half, L, n) {
    const root = this.pools.model.root[this.k];
    close(this.logs, s * L, L);
    let top = -Infinity;
    for (let i = 0; i < n; i++) {
      let term = -root[i];
      for (let r = 0; r < L; r++) term += (half[i * L + r] - 0.5) * this.logs[s * L + r];
      this.terms[s * n + i] = term;
      if (term > top) top = term;
    }
    for (let i = 0; i < n; i++) this.terms[s * n + i] = Math.exp(this.terms[s * n + i] - top);
  }
}

// Logarithms less that of the sum of their exponentials; -Infinity stays.
function close(logs, start, L) {
  let top = -Infinity, sum = 0;
  for (let r = start; r < start + L; r++) if (logs[r] > top) top = logs[r];
  for (let r = start; r < start + L; r++) sum += Math.exp(logs[r] - top);
  const total = top + Math.log(sum);
  for (let r = start; r < start + L; r++) logs[r] -= total;
}

class Pools {
  constructor(model) {
    this.model = model; this.pairs = new Map(); this.numbers = 0; this.kernels = new Map();
    const random = new Random(3, 5, 7);
    this.places = Float64Array.from({ length: MOST_PROPOSALS }, () => random.uniform());
    // p+ and p- differ by pairs with a negative product; the neurons of those decide about most proposals
    this.few = model.gram.map(gram => {
      const n = model.neurons, few = [];
      for (let i = 0; i < n; i++) if (gram.subarray(i * n, (i + 1) * n).some(value => value < 0)) few.push(i);
      return few;
    });
  }

  pool(k, i, j, wanted) {
    const key = (k * this.model.neurons + i) * this.model.neurons + j;
    if (!this.pairs.has(key)) this.pairs.set(key, new Pool(this, k, i, j));
    const pool = this.pairs.get(key);
    pool.grow(wanted);
    return pool;
  }

  // Draws of a row's law: shares (S * L), as many as wanted on average.
  draw(place, wanted) {
    if (this.numbers > POOL_NUMBERS) { this.pairs.clear(); this.numbers = 0; }
    const { model } = this, n = model.neurons, L = model.nLabels, features = model.features(place), steps = [];
    let mass = 0;
    features.forEach((e, k) => {
      for (let i = 0; i < n; i++) for (let j = i; j < n; j++) {
        const c = (i === j ? 1 : 2) * place.forms[k][i * n + j] * e[i] * e[j];
        if (c > 0) { mass += c; steps.push({ k, i, j, end: mass }); }
      }
    });
    const tries = Math.min(Math.ceil(wanted * mass), MOST_PROPOSALS), shares = new Float64Array(tries * L), made = new Float64Array(L);
    const judges = features.map((e, k) => new Judge(this, place, e, k));
    let kept = 0, done = 0;
    for (const { k, i, j, end } of steps) {
      // one proposal in every equal part of the positive mass
      const first = done;
      while (done < tries && (done + this.places[done]) * mass < end * tries) done += 1;
      if (done === first) continue;
      const pool = this.pool(k, i, j, done - first), judge = judges[k];
      const chances = model.presence ? presenceChances(model, place, k, i, j) : null;
      for (let s = 0; s < done - first; s++) {
        if (chances) presentLogs(pool, s, chances, made); else for (let r = 0; r < L; r++) made[r] = pool.logs[s * L + r];
        if (!judge.keeps(pool, s, made)) continue;
        if (place.centre) for (let r = 0; r < L; r++) made[r] += place.centre[r];
        close(made, 0, L);
        for (let r = 0; r < L; r++) shares[kept * L + r] = made[r] === -Infinity ? 0 : Math.max(Math.exp(made[r]), LEAST_SHARE);
        kept += 1;
      }
    }
    return shares.subarray(0, kept * L);
  }

  // Gamma functions that a density holds beside its powers, times the readout's products: a table of the neurons' pairs
  // and the root of its diagonal, taken off. One for every set of labels that are there.
  kernel(k, key, make, positive = false) {
    const name = `${k} ${key}`;
    if (!this.kernels.has(name)) {
      const n = this.model.neurons, gram = this.model.gram[k], root = new Float64Array(n), table = new Float64Array(n * n), log = make();
      if ((this.kernels.size + 1) * n * n > MOST_SUPPORTS) this.kernels.clear();
      for (let i = 0; i < n; i++) root[i] = 0.5 * log(i, i);
      for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
        const sign = positive ? Math.max(gram[i * n + j], 0) : gram[i * n + j];
        table[i * n + j] = table[j * n + i] = sign && sign * Math.exp(log(i, j) - root[i] - root[j]);
      }
      this.kernels.set(name, { root, table });
    }
    return this.kernels.get(name);
  }

  // The total concentration of some labels under every neuron.
  totals(k, labels) {
    const { half, neurons, nLabels } = this.model, total = new Float64Array(neurons);
    for (let i = 0; i < neurons; i++) for (const r of labels) total[i] += half[k][i * nLabels + r];
    return total;
  }

  // The kernel of a density where these labels are there and no other may be absent.
  support(k, labels) {
    return this.kernel(k, labels.join(","), () => {
      const total = this.totals(k, labels);
      return (i, j) => logGamma(total[i] + total[j]);
    });
  }

  // What proposals after votes have in place of it, the totals of groups of labels left open; no negative products.
  voted(k, groups, half, votes) {
    return this.kernel(k, `${votes.join(",")}/${groups.join("|")}`, () => {
      const { neurons, nLabels } = this.model, totals = groups.map(group => Float64Array.from({ length: neurons }, (_, i) =>
        group.reduce((sum, r) => sum + half[i * nLabels + r], 0)));
      return (i, j) => totals.reduce((log, total) => log + logGamma(total[i] + total[j]), 0);
    }, true);
  }

  // The kernel of the proportions among some labels and among the others that are there, their totals left open.
  split(k, inside, outside) {
    return this.kernel(k, `${inside.join(",")}|${outside.join(",")}`, () => {
      const a = this.totals(k, inside), b = this.totals(k, outside);
      return (i, j) => logGamma(a[i] + a[j]) + logGamma(b[i] + b[j]);
    });
  }
}

// Decides which proposals of one member are kept.
class Judge {
  constructor(pools, place, e, k) {
    const n = this.n = e.length;
    this.pools = pools; this.model = pools.model; this.k = k; this.e = e; this.v = new Float64Array(n);
    this.few = pools.few[k]; this.all = [...Array(n).keys()].filter(i => e[i] > 0);
    this.few = this.few.filter(i => e[i] > 0);
    this.gram = this.model.gram[k];
    this.base = this.model.presence ? e.map((value, i) => Math.log(value) - place.roots[k][i]) : null;
  }

  keeps(pool, s, logs) {
    const { n, v, few } = this;
    if (!few.length) return true;
    let table = this.gram;
    if (this.base) table = this.presentTerms(logs);
    else for (let i = 0; i < n; i++) v[i] = this.e[i] * pool.terms[s * n + i];
    const [size, sum] = this.forms(table, few), below = 0.5 * (size - sum), level = pool.level[s];
    if (level * (0.5 * (size + sum)) < 0.5 * (size + sum) * (1 - 1e-12) - below) return true;
    const [whole, signed] = this.forms(table, this.all);
    return level * (0.5 * (whole + signed)) <= signed;
  }

  // Neurons' terms where some labels are absent, and the kernel of those that are there.
  presentTerms(logs) {
    const { model, k, n, v } = this, L = model.nLabels, there = [];
    for (let r = 0; r < L; r++) if (logs[r] !== -Infinity) there.push(r);
    const kernel = this.pools.support(k, there), half = model.half[k], presence = model.presence[k];
    let top = -Infinity;
    for (let i = 0; i < n; i++) {
      let term = this.base[i] + kernel.root[i];
      for (const r of there) term += (half[i * L + r] - 0.5) * logs[r] + presence[i * L + r];
      v[i] = term;
      if (term > top) top = term;
    }
    for (let i = 0; i < n; i++) v[i] = Math.exp(v[i] - top);
    return kernel.table;
  }

  // Sums of |m_ij| v_i v_j and of m_ij v_i v_j over some neurons.
  forms(table, list) {
    const { n, v } = this;
    let size = 0, sum = 0;
    for (let a = 0; a < list.length; a++) {
      const i = list[a], row = i * n, vi = v[i];
      if (vi === 0) continue;
      let one = 0, two = 0;
      for (let b = 0; b < a; b++) {
        const term = table[row + list[b]] * v[list[b]];
        one += Math.abs(term); two += term;
      }
      const diagonal = table[row + i] * vi;
      size += (2 * one + diagonal) * vi; sum += (2 * two + diagonal) * vi;
    }
    return [size, sum];
  }
}

// Chances that labels are there under one pair of neurons, and those of the first label that is.
function presenceChances(model, place, k, i, j) {
  const L = model.nLabels, n = model.neurons, at = (i * n - i * (i - 1) / 2 + j - i) * L, chance = new Float64Array(L), first = new Float64Array(L);
  let before = 0, top = -Infinity, sum = 0;
  for (let r = 0; r < L; r++) {
    const odds = withinLimit(model.pairOdds[k][at + r] + (place.shift ? place.shift[r] : 0));
    chance[r] = logistic(odds);
    before += softplus(odds);
    first[r] = odds - before;
    top = Math.max(top, first[r]);
  }
  for (let r = 0; r < L; r++) { first[r] = sum += Math.exp(first[r] - top); }
  for (let r = 0; r < L; r++) first[r] /= sum;
  return { chance, first };
}

// Logarithms of the closed gammas of the labels that are there; -Infinity for the others.
function presentLogs(pool, s, { chance, first }, made) {
  const L = chance.length, start = s * (2 * L + 1), level = pool.chance;
  let some = false;
  for (let r = 0; r < L; r++) {
    const there = level[start + r] < chance[r];
    made[r] = there ? pool.logs[s * L + r] : -Infinity;
    some = some || there;
  }
  if (!some) {
    // given that one is there: the first by its chance, those behind it each by itself
    let label = 0;
    while (label < L - 1 && first[label] <= level[start + 2 * L]) label++;
    for (let r = label; r < L; r++) if (r === label || level[start + L + r] < chance[r]) made[r] = pool.logs[s * L + r];
  }
  close(made, 0, L);
}
