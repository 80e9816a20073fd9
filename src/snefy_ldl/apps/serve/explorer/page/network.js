// From features to the law: guides, scaling, layers and head, in the precision that the model was trained in.

const KINDS = { f4: Float32Array, f8: Float64Array, u1: Uint8Array, u2: Uint16Array, i4: Int32Array };

async function unpack(text) {
  const raw = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  return entry => new KINDS[entry.kind](buffer, entry.at, entry.shape.reduce((a, b) => a * b, 1));
}

class Model {
  constructor(content, array) {
    this.content = content; this.array = array;
    this.labels = content.labels; this.nLabels = content.labels.length;
    this.kind = content.law;
    const parts = content.components, [members, neurons, L] = parts.exponents.shape;
    this.members = members; this.neurons = neurons;
    const cut = (values, k, size) => Float64Array.from(values.subarray(k * size, (k + 1) * size));
    const list = (entry, size) => entry ? Array.from({ length: members }, (_, k) => cut(array(entry), k, size)) : null;
    this.half = list(parts.exponents, neurons * L).map(exponents => exponents.map(value => value + 0.5));
    this.gram = list(parts.readout, parts.readout.shape[1] * neurons).map(readout => gramOf(readout, neurons));
    this.root = list(parts.root, neurons);
    this.presence = list(parts.presence, neurons * L);
    this.components = new Components(this.half, neurons, L);
    if (this.presence) this.pairOdds = this.half.map((half, k) => pairOdds(half, this.presence[k], neurons, L));
    const kernel = list(parts.kernel, neurons * (neurons + 1) / 2);
    // a law whose odds of presence move has a kernel in every row; see place
    if (this.root) this.form = this.gram.map((gram, k) => gramTimesKernel(gram, kernel ? kernel[k] : this.components.kernel.logs[k], this.root[k], neurons, Boolean(kernel)));
    this.centre = content.centre ? Float64Array.from(content.centre, Math.log) : null;
    this.pools = this.kind === "plain" ? null : new Pools(this);
    this.network = content.network;
    if (this.network) this.prepare();
    this.rows = {};
    for (const [name, entry] of Object.entries(content.places || {})) this.rows[name] = array(entry);
    this.tables = {};
    for (const [name, entry] of Object.entries(content.tables || {})) this.tables[name] = array(entry);
  }

  prepare() {
    const net = this.network, take = entry => ({ values: this.array(entry), shape: entry.shape });
    this.inputCentre = this.array(net.centre); this.inputScale = this.array(net.scale);
    this.layers = [...net.layers, net.head].map(({ weight, bias }) => ({ weight: take(weight), bias: this.array(bias) }));
    const open = guide => {
      const made = { ...guide };
      for (const [name, entry] of Object.entries(guide)) if (entry && entry.kind) made[name] = this.array(entry);
      if (guide.kind === "trees") made.right = rightBranches(made.feature);
      return made;
    };
    this.guides = net.guides ? net.guides.learners.map(open) : [];
    this.mover = net.mover;
    if (this.mover && this.mover.trees) this.presenceTrees = open(this.mover.trees);
  }

  // What the guides say of a row: centred logarithms of their shares, one guide after the other.
  seen(x) {
    const seen = [];
    for (const guide of this.guides) {
      const shares = guide.kind === "linear" ? linearShares(guide, x, this.nLabels) : treeShares(guide, x, this.nLabels);
      seen.push(...centredLogs(shares, this.network.guides.floor));
    }
    return seen;
  }

  // Where the law of a row is: scales of its neurons, its centre, the shift of its odds of presence, and what follows.
  place(x) {
    const seen = this.seen(x), moves = this.mover ? this.moves(x, seen) : { centre: this.centre, shift: null };
    const input = !this.guides.length ? x : this.network.inputs === "both" ? [...x, ...seen] : seen;
    const kernels = this.kernels(moves.shift);
    return { ...moves, ...kernels, scales: this.scalesOf(input, kernels.forms) };
  }

  // The same of a row whose parameters came with the page; null where there is no room for them.
  rowPlace(row) {
    const take = (name, size) => this.rows[name].subarray(row * size, (row + 1) * size), size = this.members * this.neurons;
    if (!this.rows.scales || (row + 1) * size > this.rows.scales.length) return null;
    const flat = take("scales", size), shift = this.rows.shift ? take("shift", this.nLabels) : null;
    const scales = Array.from({ length: this.members }, (_, k) => flat.subarray(k * this.neurons, (k + 1) * this.neurons));
    return { scales, centre: this.rows.centre ? take("centre", this.nLabels) : this.centre, shift, ...this.kernels(shift) };
  }

  kernels(shift) {
    if (!shift) return { forms: this.form, roots: this.root };
    const made = this.pairOdds.map((odds, k) => movedKernel(this.gram[k], odds, shift, this.neurons));
    return { forms: made.map(one => one.form), roots: made.map(one => one.root) };
  }

  moves(x, seen) {
    const L = this.nLabels, { weights, base, slope, logCentre } = this.mover, mean = new Float64Array(L);
    weights.forEach((weight, g) => {
      const logs = seen.slice(g * L, (g + 1) * L), top = Math.max(...logs);
      let sum = 0;
      for (let r = 0; r < L; r++) sum += Math.exp(logs[r] - top);
      for (let r = 0; r < L; r++) mean[r] += weight * Math.exp(logs[r] - top) / sum;
    });
    for (let r = 0; r < L; r++) mean[r] = Math.max(mean[r], LOWEST_MEAN / L);
    const total = mean.reduce((a, b) => a + b, 0), centre = mean.map((value, r) => Math.log(value / total) + (logCentre ? logCentre[r] : 0));
    if (!base) return { centre: topped(centre), shift: null };
    const chances = treeShares(this.presenceTrees, x, 2 * L), shift = new Float64Array(L);
    for (let r = 0; r < L; r++) {
      const often = logistic(base[r]), chance = Math.min(Math.max(chances[r] * L, 0.02 * often), 1 - 0.02 * (1 - often));
      shift[r] = slope * (Math.log(chance) - Math.log1p(-chance) - base[r]);
      centre[r] -= Math.log(Math.max(logistic(base[r] + shift[r]), LOWEST_PRESENCE));
    }
    return { centre: topped(centre), shift };
  }

  // The scales of a row's neurons, an array a member; a background is the last one.
  scalesOf(seen, forms) {
    const input = Float32Array.from(seen), d = input.length, all = [];
    for (let k = 0; k < this.members; k++) {
      const limit = this.network.limit[k];
      let out = new Float32Array(d);
      for (let f = 0; f < d; f++) {
        // an infinite limit means that nothing is scaled
        const scaled = Math.fround(Math.fround(input[f] - this.inputCentre[k * d + f]) / this.inputScale[k * d + f]);
        out[f] = limit === null ? input[f] : Math.min(limit, Math.max(-limit, scaled));
      }
      this.layers.forEach(({ weight, bias }, at) => {
        const [, rows, columns] = weight.shape, next = new Float64Array(columns);
        for (let c = 0; c < columns; c++) next[c] = bias[k * columns + c];
        for (let r = 0; r < rows; r++) {
          const value = out[r], start = (k * rows + r) * columns;
          if (value !== 0) for (let c = 0; c < columns; c++) next[c] += value * weight.values[start + c];
        }
        out = at < this.layers.length - 1 ? next.map(value => Math.max(value, 0)) : next;
      });
      if (!this.network.balanced) out = out.map((value, i) => value + this.root[k][i]);
      all.push(this.network.background ? this.withBackground(out, k, forms[k]) : out);
    }
    return all;
  }

  withBackground(scale, k, form) {
    const n = scale.length, whole = this.neurons, top = Math.max(...scale), odds = this.network.log_odds[k];
    let z = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) z += form[i * whole + j] * Math.exp(scale[i] + scale[j] - 2 * top);
    const extra = odds === null ? -Infinity : 0.5 * (Math.log(z) + 2 * top + odds);
    return Float64Array.from([...scale, extra]);
  }

  // e of every neuron, an array a member: the weight of pair (i, j) is form_ij e_i e_j, and all weights sum to one.
  features({ scales, forms }) {
    return scales.map((scale, k) => {
      const n = this.neurons, top = Math.max(...scale), e = new Float64Array(n);
      for (let i = 0; i < n; i++) e[i] = Math.exp(scale[i] - top);
      let sum = 0;
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) sum += forms[k][i * n + j] * e[i] * e[j];
      const size = 1 / Math.sqrt(sum * this.members);
      return e.map(value => value * size);
    });
  }

  // Weights c_ij of a row's components, all members together.
  weights(place) {
    return this.features(place).map((e, k) => {
      const n = this.neurons, weight = new Float64Array(n * n);
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) weight[i * n + j] = place.forms[k][i * n + j] * e[i] * e[j];
      return weight;
    });
  }

  law(place) { return this.kind === "plain" ? new Law(this.components, this.weights(place)) : new MovedLaw(this, place); }

  // Averages of tables of components, for laws whose moments are integrals.
  tabulated(weights, name) {
    const table = this.tables[name];
    if (!table) return null;
    const n = this.neurons, pairs = n * (n + 1) / 2;
    const width = table.length / (pairs * this.members), answer = new Float64Array(width);
    weights.forEach((weight, k) => {
      let at = k * pairs;
      for (let i = 0; i < n; i++) for (let j = i; j < n; j++, at++) {
        const c = (i === j ? 1 : 2) * weight[i * n + j];
        if (c !== 0) for (let r = 0; r < width; r++) answer[r] += c * table[at * width + r];
      }
    });
    return answer;
  }
}

const LOWEST_MEAN = 1e-4, LOWEST_PRESENCE = 0.01, LOG_ODDS_LIMIT = 500;

// Only ratios of a centre count; this range keeps every integral within floating point.
function topped(logs) {
  const top = Math.max(...logs);
  return logs.map(value => Math.max(value - top, -100));
}

function gramOf(readout, n) {
  const gram = new Float64Array(n * n), m = readout.length / n;
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) for (let q = 0; q < m; q++) gram[i * n + j] += readout[q * n + i] * readout[q * n + j];
  return gram;
}

// M_ij R_ij: the Gram matrix of the readout times the kernel of the neurons. A kernel that came with the page lists the
// pairs i <= j, roots taken off; else it is log B of every pair.
function gramTimesKernel(gram, logs, root, n, listed) {
  const form = new Float64Array(n * n);
  let pair = 0;
  for (let i = 0; i < n; i++) for (let j = i; j < n; j++, pair++) {
    const log = listed ? logs[pair] : i === j ? 0 : logs[i * n + j] - root[i] - root[j];
    form[i * n + j] = form[j * n + i] = gram[i * n + j] * Math.exp(log);
  }
  return form;
}

// Log odds of presence under every pair i <= j of neurons, without a shift, (pairs * L).
function pairOdds(half, presence, n, L) {
  const odds = new Float64Array(n * (n + 1) / 2 * L);
  let at = 0;
  for (let i = 0; i < n; i++) for (let j = i; j < n; j++) for (let r = 0; r < L; r++, at++) {
    odds[at] = withinLimit(presence[i * L + r] + presence[j * L + r] + logGamma(half[i * L + r] + half[j * L + r]));
  }
  return odds;
}

const withinLimit = odds => Math.min(LOG_ODDS_LIMIT, Math.max(-LOG_ODDS_LIMIT, odds));

// The same with a shift of the odds: K_ij = prod (1 + o_ijr e^b_r) - 1.
function movedKernel(gram, odds, shift, n) {
  const L = shift.length, logs = new Float64Array(n * n), root = new Float64Array(n), form = new Float64Array(n * n);
  let at = 0;
  for (let i = 0; i < n; i++) for (let j = i; j < n; j++) {
    let total = 0;
    for (let r = 0; r < L; r++, at++) total += softplus(withinLimit(odds[at] + shift[r]));
    logs[i * n + j] = logExpm1(total);
    if (i === j) root[i] = 0.5 * logs[i * n + j];
  }
  for (let i = 0; i < n; i++) for (let j = i; j < n; j++) {
    form[i * n + j] = form[j * n + i] = gram[i * n + j] * Math.exp(logs[i * n + j] - root[i] - root[j]);
  }
  return { form, root };
}

// -- guides -------------------------------------------------------------------------------------------------------

const SHARE_FLOOR = 1e-12;

function closed(shares) {
  let sum = 0;
  const lifted = shares.map(value => { const share = Math.max(value, SHARE_FLOOR); sum += share; return share; });
  return lifted.map(share => share / sum);
}

function centredLogs(shares, floor) {
  const logs = Array.from(shares, share => Math.log(Math.max(share, floor)));
  const mean = logs.reduce((a, b) => a + b, 0) / logs.length;
  return logs.map(log => log - mean);
}

function linearShares(guide, x, L) {
  const logits = Float64Array.from(guide.intercept);
  for (let f = 0; f < x.length; f++) {
    let value = x[f];
    if (guide.mean) value = Math.min(5, Math.max(-5, (value - guide.mean[f]) * guide.inverse[f])) || 0;
    for (let r = 0; r < L; r++) logits[r] += value * guide.coef[f * L + r];
  }
  const top = Math.max(...logits), powers = logits.map(value => Math.exp(value - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return closed(powers.map(value => value / sum));
}

// Nodes stand in the order of a walk, left before right: a right branch starts where the left one ends.
function rightBranches(feature) {
  const right = new Int32Array(feature.length), open = [];
  for (let node = 0; node < feature.length; node++) {
    if (feature[node] > 0) { open.push(node); continue; }
    // a leaf ends the left branch of the last open node, or closes branches up to such a one
    while (open.length && right[open[open.length - 1]] !== 0) open.pop();
    if (open.length) right[open[open.length - 1]] = node + 1;
  }
  return right;
}

function treeShares(guide, x, L) {
  if (!guide.rank) {
    // thresholds and leaves are listed without the other kind of nodes between them
    guide.rank = new Int32Array(guide.feature.length);
    let inner = 0, leaf = 0;
    for (let node = 0; node < guide.rank.length; node++) guide.rank[node] = guide.feature[node] > 0 ? inner++ : leaf++;
    guide.roots = [];
    for (let node = 0, open = 0; node < guide.rank.length; node++) {
      if (open === 0) { guide.roots.push(node); open = 1; }
      open += guide.feature[node] > 0 ? 1 : -1;  // branches that still have to come
    }
  }
  const single = Float32Array.from(x), shares = new Float64Array(L);
  for (const root of guide.roots) {
    let node = root;
    while (guide.feature[node] > 0) {
      node = single[guide.feature[node] - 1] > guide.threshold[guide.rank[node]] ? guide.right[node] : node + 1;
    }
    const start = guide.leaf[guide.rank[node]] * L;
    for (let r = 0; r < L; r++) shares[r] += guide.shares[start + r];
  }
  return closed(shares.map(value => value / guide.roots.length));
}
