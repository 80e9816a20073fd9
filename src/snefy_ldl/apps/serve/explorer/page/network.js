// From a row to its distribution: base learners, scaling and layers, in the precision that the model was trained in.

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
    this.square = content.square; this.network = this.square && this.square.network;
    if (!this.square) { this.codes = array(content.draws.codes); return; }
    const [members, neurons, L] = this.square.exponents.shape, cut = (values, k, size) => Float64Array.from(values.subarray(k * size, (k + 1) * size));
    const list = (entry, size) => Array.from({ length: members }, (_, k) => cut(array(entry), k, size));
    this.members = members; this.neurons = neurons;
    this.half = list(this.square.exponents, neurons * L).map(exponents => exponents.map(value => value + 0.5));
    this.root = list(this.square.root, neurons);
    this.components = new Components(this.half, neurons, L);
    const { logs } = this.components.kernel, m = this.square.readout.shape[1];
    this.form = list(this.square.readout, m * neurons).map((readout, k) => gramTimesKernel(readout, m, logs[k], this.root[k], neurons));
    if (this.network) this.prepare();
    else this.scales = array(this.square.scales);
  }

  prepare() {
    const net = this.network, take = entry => ({ values: this.array(entry), shape: entry.shape });
    this.inputCentre = this.array(net.centre); this.inputScale = this.array(net.scale);
    this.layers = net.layers.map(({ weight, bias }) => ({ weight: take(weight), bias: this.array(bias) }));
    this.guides = net.guides.map(guide => {
      const made = { ...guide };
      for (const [name, entry] of Object.entries(guide)) if (entry && entry.kind) made[name] = this.array(entry);
      return made;
    });
  }

  // The distribution at features x, or that of a row if features cannot be changed.
  distribution(x, row) {
    if (!this.square) return this.drawn(row);
    const size = this.members * this.neurons, k0 = row * size, n = this.neurons;
    const scales = this.network ? this.scalesOf(this.input(x)) : this.half.map((_, k) => this.scales.subarray(k0 + k * n, k0 + (k + 1) * n));
    return new Square(this.components, this.weights(scales));
  }

  // The draws of a row: whole numbers on the scale of log shares, 0 for a share of zero.
  drawn(row) {
    const { count, lowest } = this.content.draws, L = this.nLabels, shares = new Float64Array(count * L);
    for (let s = 0; s < count; s++) {
      const from = (row * count + s) * L;
      let sum = 0;
      for (let r = 0; r < L; r++) {
        const code = this.codes[from + r];
        sum += shares[s * L + r] = code ? Math.exp(lowest * (1 - (code - 1) / 65534)) : 0;
      }
      for (let r = 0; r < L; r++) shares[s * L + r] /= sum;
    }
    return new Drawn(shares, L);
  }

  // What the network sees of features: these, the centred logs of the base learners' predictions, or both.
  input(x) {
    if (this.network.inputs === "features") return x;
    const seen = this.guides.flatMap(guide => centredLogs(guide.kind === "linear" ? linearShares(guide, x, this.nLabels) : treeShares(guide, x, this.nLabels), this.network.floor));
    return this.network.inputs === "both" ? [...x, ...seen] : seen;
  }

  // The scales of a row's neurons, an array a member; a background is the last one.
  scalesOf(seen) {
    const input = Float32Array.from(seen), d = input.length;
    return this.half.map((_, k) => {
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
      return this.network.background ? this.withBackground(out, k) : out;
    });
  }

  withBackground(scale, k) {
    const n = scale.length, whole = this.neurons, top = Math.max(...scale), odds = this.network.log_odds[k];
    let z = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) z += this.form[k][i * whole + j] * Math.exp(scale[i] + scale[j] - 2 * top);
    return Float64Array.from([...scale, odds === null ? -Infinity : 0.5 * (Math.log(z) + 2 * top + odds)]);
  }

  // Weights c_ij of a row's components, all members together; they sum to one.
  weights(scales) {
    return scales.map((scale, k) => {
      const n = this.neurons, top = Math.max(...scale), weight = new Float64Array(n * n);
      let sum = 0;
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) sum += weight[i * n + j] = this.form[k][i * n + j] * Math.exp(scale[i] + scale[j] - 2 * top);
      return weight.map(value => value / (sum * this.members));
    });
  }
}

// M_ij R_ij: the Gram matrix of the readout (m * n) times the kernel of the neurons, from log B of every pair.
function gramTimesKernel(readout, m, logs, root, n) {
  const form = new Float64Array(n * n);
  for (let i = 0; i < n; i++) for (let j = i; j < n; j++) {
    let gram = 0;
    for (let q = 0; q < m; q++) gram += readout[q * n + i] * readout[q * n + j];
    form[i * n + j] = form[j * n + i] = gram * Math.exp(i === j ? 0 : logs[i * n + j] - root[i] - root[j]);
  }
  return form;
}

// -- base learners -------------------------------------------------------------------------------------------------------

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

function treeShares(guide, x, L) {
  const single = Float32Array.from(x), shares = new Float64Array(L);
  for (const root of guide.roots) {
    let node = root;
    while (guide.leaf[node] < 0) node = guide.child[2 * node + (single[guide.feature[node]] > guide.threshold[node] ? 1 : 0)];
    const start = guide.leaf[node] * L;
    for (let r = 0; r < L; r++) shares[r] += guide.shares[start + r];
  }
  return closed(shares.map(value => value / guide.roots.length));
}
