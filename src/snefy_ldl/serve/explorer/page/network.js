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
    if (this.kind === "rows") return;  // nothing is computed: the rows' answers are there
    const parts = content.components, [members, neurons, L] = parts.exponents.shape;
    this.members = members; this.neurons = neurons;
    const exponents = array(parts.exponents), readout = array(parts.readout), root = array(parts.root);
    const kernel = parts.kernel ? array(parts.kernel) : null, nReadouts = parts.readout.shape[1];
    this.half = []; this.form = []; this.root = [];
    for (let k = 0; k < members; k++) {
      const half = new Float64Array(neurons * L);
      for (let at = 0; at < half.length; at++) half[at] = exponents[k * neurons * L + at] + 0.5;
      this.half.push(half);
      this.root.push(root.slice(k * neurons, (k + 1) * neurons));
      this.form.push(gramTimesKernel(half, readout, kernel, this.root[k], k, neurons, L, nReadouts));
    }
    this.components = new Components(this.half, neurons, L);
    this.network = content.network;
    if (this.network) this.prepare();
    if (content.scales) this.scales = array(content.scales);
    if (content.tables) {
      this.tables = {};
      for (const [name, entry] of Object.entries(content.tables)) this.tables[name] = array(entry);
    }
  }

  prepare() {
    const net = this.network, take = entry => ({ values: this.array(entry), shape: entry.shape });
    this.centre = this.array(net.centre); this.scale = this.array(net.scale);
    this.layers = [...net.layers, net.head].map(({ weight, bias }) => ({ weight: take(weight), bias: this.array(bias) }));
    this.guides = net.guides ? net.guides.learners.map(guide => {
      const made = { ...guide };
      for (const [name, entry] of Object.entries(guide)) if (entry && entry.kind) made[name] = this.array(entry);
      if (guide.kind === "trees") made.right = rightBranches(made.feature);
      return made;
    }) : [];
  }

  // What the network sees of a row.
  inputs(x) {
    if (!this.guides.length) return x;
    const seen = [];
    for (const guide of this.guides) {
      const shares = guide.kind === "linear" ? linearShares(guide, x, this.nLabels) : treeShares(guide, x, this.nLabels);
      seen.push(...centredLogs(shares, this.network.guides.floor));
    }
    return this.network.inputs === "guides" ? seen : [...x, ...seen];
  }

  // The scales of a row's neurons, an array a member; a background is the last one.
  scalesOf(x) {
    const input = Float32Array.from(this.inputs(x)), d = input.length, all = [];
    for (let k = 0; k < this.members; k++) {
      const limit = this.network.limit[k];
      let out = new Float32Array(d);
      for (let f = 0; f < d; f++) {
        // an infinite limit means that nothing is scaled
        const scaled = Math.fround(Math.fround(input[f] - this.centre[k * d + f]) / this.scale[k * d + f]);
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
      all.push(this.network.background ? this.withBackground(out, k) : out);
    }
    return all;
  }

  withBackground(scale, k) {
    const n = scale.length, whole = this.neurons, top = Math.max(...scale), odds = this.network.log_odds[k];
    let z = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
      z += this.form[k][i * whole + j] * Math.exp(scale[i] + scale[j] - 2 * top);
    }
    const extra = odds === null ? -Infinity : 0.5 * (Math.log(z) + 2 * top + odds);
    return Float64Array.from([...scale, extra]);
  }

  rowScales(row) {
    const size = this.members * this.neurons;
    if ((row + 1) * size > this.scales.length) return null;
    return Array.from({ length: this.members }, (_, k) =>
      this.scales.subarray(row * size + k * this.neurons, row * size + (k + 1) * this.neurons));
  }

  // Weights c_ij of a row's components, all members together: they sum to one.
  weights(scales) {
    return scales.map((scale, k) => {
      const n = this.neurons, weight = new Float64Array(n * n), e = new Float64Array(n);
      const top = Math.max(...scale);
      let sum = 0;
      for (let i = 0; i < n; i++) e[i] = Math.exp(scale[i] - top);
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
        const value = this.form[k][i * n + j] * e[i] * e[j];
        weight[i * n + j] = value; sum += value;
      }
      for (let at = 0; at < weight.length; at++) weight[at] /= sum * this.members;
      return weight;
    });
  }

  law(scales) {
    const weights = this.weights(scales);
    return new Law(this.components, weights);
  }

  // Averages of tables of components, for laws whose moments are integrals.
  tabulated(scales, name) {
    const table = this.tables[name];
    if (!table) return null;
    const weights = this.weights(scales), n = this.neurons, pairs = n * (n + 1) / 2;
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

// M_ij R_ij: the Gram matrix of the readout times the kernel of the neurons.
function gramTimesKernel(half, readout, kernel, root, k, n, L, m) {
  const form = new Float64Array(n * n), total = new Float64Array(n);
  for (let i = 0; i < n; i++) for (let r = 0; r < L; r++) total[i] += half[i * L + r];
  let pair = k * n * (n + 1) / 2;
  for (let i = 0; i < n; i++) for (let j = i; j < n; j++, pair++) {
    let gram = 0;
    for (let q = 0; q < m; q++) gram += readout[(k * m + q) * n + i] * readout[(k * m + q) * n + j];
    let log;
    if (kernel) log = kernel[pair];
    else if (i === j) log = 0;
    else {
      log = -logGamma(total[i] + total[j]) - root[i] - root[j];
      for (let r = 0; r < L; r++) log += logGamma(half[i * L + r] + half[j * L + r]);
    }
    form[i * n + j] = form[j * n + i] = gram * Math.exp(log);
  }
  return form;
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
