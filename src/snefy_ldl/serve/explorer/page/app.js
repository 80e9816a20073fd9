// The page: what is chosen, what follows from it, and the pictures of that.

const explorer = { ready: false, frames: [] };

async function start() {
  const content = JSON.parse(byId("data").textContent), array = await unpack(byId("arrays").textContent);
  const model = new Model(content, array), plain = model.kind === "plain", canMove = Boolean(content.network);
  const state = {
    row: 0, x: null, moved: false, votes: new Array(model.nLabels).fill(0), parts: model.labels.map((_, r) => [r]),
    known: null, level: 0.9, pending: false,
  };
  const rows = new Rows(model, content, array, row => { choose(row); byId("mix").focus(); });
  const partName = part => part.map(r => model.labels[r]).join(" + ");
  const names = () => state.parts.map(partName);

  // -- answers ----------------------------------------------------------------------------------------------------

  const scalesAt = x => canMove ? model.scalesOf(x) : model.rowScales(state.row);

  function lawAt(x) {
    const scales = scalesAt(x);
    if (!scales) return null;
    let law = model.law(scales);
    if (state.votes.some(count => count > 0)) law = law.posterior(state.votes);
    return state.parts.length === model.nLabels ? law : law.merged(state.parts);
  }

  function plainAnswer(x) {
    const law = lawAt(x), count = state.parts.length;
    if (!law) return null;
    let other = law, order = [...Array(count).keys()];
    if (state.known) {
      other = law.knowing(state.known.part, state.known.share);
      if (!other) { byId("known-note").textContent = "The law has no density at that share."; other = law; }
      else order = order.filter(part => part !== state.known.part);
    }
    const known = other === law ? -1 : state.known.part, place = part => order.indexOf(part);
    const spread = (values, own) => Float64Array.from({ length: count }, (_, part) => part === known ? own : values[place(part)]);
    const shares = new Map(), share = part => {
      if (!shares.has(part)) shares.set(part, other.share(place(part)));
      return shares.get(part);
    };
    const tail = 0.5 * (1 - state.level), at = level => part => part === known ? state.known.share : share(part).quantile(level);
    const all = [...Array(count).keys()];
    return {
      names: names(), mean: spread(other.mean(), state.known && state.known.share), known, zero: null,
      low: all.map(at(tail)), high: all.map(at(1 - tail)), quantile: (part, level) => at(level)(part),
      hasCurve: part => part !== known, curve: (part, quick) => share(part).curve(quick), withoutCurves: "This share is known.",
      covariance: () => {
        const inner = other.covariance(), table = new Float64Array(count * count);
        order.forEach((r, a) => order.forEach((s, b) => { table[r * count + s] = inner[a * order.length + b]; }));
        return table;
      },
      greater: (a, b) => {
        if (known < 0) return other.greater(a, b);
        if (a === known) return share(b).below(state.known.share);
        if (b === known) return 1 - share(a).below(state.known.share);
        return other.greater(place(a), place(b));
      },
      ternary: corners => corners.includes(known) ? null : { law: other.among(corners.map(place)), centre: null },
    };
  }

  function tableAnswer(x) {
    const scales = scalesAt(x), L = model.nLabels;
    if (!scales) return null;
    const raw = model.tabulated(scales, "first"), sum = raw.reduce((a, b) => a + Math.max(b, 0), 0);
    const mean = raw.map(value => Math.max(value, 0) / sum);
    return {
      names: names(), mean, known: -1, zero: model.tabulated(scales, "zero"), ...tabledShares(),
      covariance: () => {
        const products = model.tabulated(scales, "products"), table = new Float64Array(L * L);
        if (!products) return null;
        let at = 0;
        for (let r = 0; r < L; r++) for (let s = r; s < L; s++, at++) {
          table[r * L + s] = table[s * L + r] = products[at] - raw[r] * raw[s];
        }
        return table;
      },
      variance: model.tabulated(scales, "second").map((value, r) => Math.max(value - raw[r] * raw[r], 0)),
      greater: (a, b) => model.kind === "zeros" ? null
        : model.law(scales).greater(a, b, content.centre[b] / (content.centre[a] + content.centre[b])),
      ternary: corners => model.kind === "zeros" ? null
        : { law: model.law(scales).among(corners), centre: corners.map(r => Math.log(content.centre[r])) },
    };
  }

  // Rows whose laws cannot be taken along show what was computed for them.
  function rowAnswer() {
    const L = model.nLabels, take = values => values.slice(state.row * L, (state.row + 1) * L);
    return {
      names: names(), mean: take(rows.mean), known: -1, zero: take(array(content.zero)), ...tabledShares(),
      covariance: () => null, greater: () => null, ternary: () => null,
    };
  }

  // Intervals and curves out of the quantiles that come with a row.
  function tabledShares() {
    const L = model.nLabels, levels = content.levels, quantiles = array(content.quantiles), width = L * levels.length;
    const tabled = !state.moved && (state.row + 1) * width <= quantiles.length, all = [...Array(L).keys()];
    const quantile = (part, level) => {
      const at = levels.findIndex(one => Math.abs(one - level) < 1e-9);
      return quantiles[state.row * width + part * levels.length + at];
    };
    const tail = 0.5 * (1 - state.level);
    return {
      quantile: tabled ? quantile : null,
      low: tabled ? all.map(part => quantile(part, tail)) : null, high: tabled ? all.map(part => quantile(part, 1 - tail)) : null,
      hasCurve: () => tabled && levels.length > 12, curve: part => stepCurve(levels, level => quantile(part, level)),
      withoutCurves: state.moved ? "Densities are there for rows of the table, not for moved features."
        : levels.length > 12 ? "Densities come with the first rows of the table." : "Densities are not available for this model.",
    };
  }

  const answerAt = x => plain ? plainAnswer(x) : model.kind === "rows" ? rowAnswer() : tableAnswer(x);

  // -- pictures ---------------------------------------------------------------------------------------------------

  // Pictures that follow each other closely are drawn coarsely; the last one is drawn again when it rests.
  const RESTING = 120;
  let lastDraw = -Infinity;

  function draw() {
    state.pending = false;
    const began = performance.now(), answer = answerAt(state.x);
    explorer.answer = answer;
    byId("mix-note").textContent = answer ? mixNote(answer) : "This row has no law on this page; choose an earlier one.";
    if (!answer) return;
    drawBars(answer);
    const quick = began - lastDraw < RESTING;
    lastDraw = began;
    drawDensities(answer, densityParts(answer), quick);
    drawTriangle(answer, quick);
    drawComparison(answer);
    if (!explorer.frames.length) performance.mark("first view");
    explorer.frames.push(performance.now() - began);
    if (explorer.frames.length > 500) explorer.frames.shift();
    later(answer, quick);
  }

  function mixNote(answer) {
    const notes = [];
    if (!answer.low) notes.push(state.moved ? "Intervals are there for rows of the table, not for moved features." : "Intervals come with the first rows of the table.");
    if (content.calibrated.length) notes.push(`The model has conformal intervals too (level ${content.calibrated.join(", ")}); this page shows its own exact ones.`);
    return notes.join(" ");
  }

  function densityParts(answer) {
    const wanted = byId("density-part").value, all = [...answer.names.keys()];
    if (wanted !== "all") return [Math.min(Number(wanted), all.length - 1)];
    return all.sort((a, b) => answer.mean[b] - answer.mean[a]).slice(0, 8).sort((a, b) => a - b);
  }

  function drawTriangle(answer, quick) {
    const corners = [0, 1, 2].map(k => Number(byId(`corner-${k}`).value));
    if (answer.names.length < 3) return clearTernary("There are fewer than three parts.");
    if (new Set(corners).size < 3) return clearTernary("Choose three different parts.");
    const made = answer.ternary(corners);
    if (!made) {
      return clearTernary(model.kind === "rows" ? "Not available for this model." : model.kind === "zeros" ? "Shares may be exactly zero, so their density is not one picture."
        : "The share of one of these parts is known; choose three others.");
    }
    const points = triangle(quick ? 30 : 60);
    const { logs, factor } = made.centre ? movedTriangle(made.centre, points) : { logs: points.logs, factor: null };
    let densities = made.law.densities(logs);
    if (factor) densities = densities.map((value, s) => value * factor[s]);
    const total = corners.reduce((sum, part) => sum + answer.mean[part], 0);
    drawTernary(corners.map(part => answer.names[part]), densities, corners.map(part => answer.mean[part] / total), points);
    byId("ternary-note").textContent = answer.names.length === 3 ? "Darker is more probable; the ring is the mean."
      : "Proportions among these three; darker is more probable, the ring is the mean.";
  }

  function drawComparison(answer) {
    const first = Number(byId("larger-a").value), second = Number(byId("larger-b").value);
    const chance = first === second ? null : answer.greater(first, second);
    explorer.greater = chance;
    byId("larger").textContent = first === second ? "(choose two)" : chance === null ? "not available here" : percent(chance);
  }

  // What is slower, or only read at rest, waits until nothing moves.
  let timer = 0;
  function later(answer, quick) {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (quick) {
        drawDensities(answer, densityParts(answer));
        drawTriangle(answer);
      }
      drawCorrelations(answer.names, answer.names.length <= 60 ? answer.covariance() : null);
      drawFeature(answer);
      const order = [...answer.mean.keys()].sort((a, b) => answer.mean[b] - answer.mean[a]).slice(0, 5);
      byId("status").textContent = `Mean: ${order.map(part => `${answer.names[part]} ${percent(answer.mean[part])}`).join(", ")}`;
    }, 90);
  }

  function drawFeature(answer) {
    if (!canMove) return;
    const control = content.controls[Number(byId("dependence-feature").value)], part = Number(byId("dependence-part").value);
    if (!control || part >= answer.names.length) return;
    const points = [], tail = 0.5 * (1 - state.level), steps = control.step === 1 ? Math.min(40, control.high - control.low) : 40;
    for (let k = 0; k <= steps; k++) {
      const value = control.low + (control.high - control.low) * k / steps, x = state.x.slice();
      setNumber(x, control, value);
      if (plain && !state.known) {
        const law = lawAt(x), share = law.share(part);
        points.push({ x: value, mean: law.mean()[part], low: share.quantile(tail), high: share.quantile(1 - tail) });
      } else if (plain) {
        const one = plainAnswer(x);
        points.push({ x: value, mean: one.mean[part], low: one.low[part], high: one.high[part] });
      } else {
        const one = tableAnswer(x), spread = 2 * Math.sqrt(one.variance[part]);
        points.push({ x: value, mean: one.mean[part], low: Math.max(0, one.mean[part] - spread), high: Math.min(1, one.mean[part] + spread) });
      }
    }
    explorer.dependence = points;
    drawDependence(control.name, answer.names[part], part, points, state.x[control.at], value => shortNumber(value));
    byId("dependence-note").textContent = plain ? `The band is the ${Math.round(100 * state.level)} % interval; other features stay.`
      : "The band is two standard deviations on either side; other features stay.";
  }

  function update() {
    if (state.pending) return;
    state.pending = true;
    requestAnimationFrame(draw);
  }

  // -- choices ----------------------------------------------------------------------------------------------------

  function setNumber(x, control, value) {
    x[control.at] = value;
    if (control.indicator !== null && control.indicator !== undefined) x[control.indicator] = 0;
  }

  function choose(row) {
    state.row = Math.min(Math.max(Math.round(row) || 0, 0), rows.count - 1);
    state.x = rows.x(state.row); state.moved = false;
    rows.current = state.row;
    byId("row").value = state.row;
    byId("row-name").textContent = content.rows.ids ? rows.name(state.row) : "";
    byId("reset").disabled = true;
    showFeatures(); showLabel(); rows.draw(); update();
  }

  function showFeatures() {
    for (const [control, box] of featureBoxes) {
      box.classList.remove("moved");
      const input = box.querySelector("input, select"), output = box.querySelector("output");
      if (control.kind === "number") {
        input.value = state.x[control.at];
        output.textContent = shortNumber(state.x[control.at]);
      } else if (control.kind === "category") {
        input.value = String(categoryOf(state.x, control));
        output.textContent = "";
      }
    }
  }

  function categoryOf(x, control) {
    if (control.width === 1 && control.levels.length === 2) return x[control.at] === 1 ? 1 : x[control.at] === 0 ? 0 : -1;
    for (let k = 0; k < control.levels.length; k++) if (x[control.at + k] === 1) return k;
    return -1;
  }

  function moved(control, box, value) {
    if (control.kind === "number") {
      setNumber(state.x, control, value);
      box.querySelector("output").textContent = shortNumber(value);
    } else if (control.width === 1 && control.levels.length === 2) state.x[control.at] = value;
    else for (let k = 0; k < control.width; k++) state.x[control.at + k] = k === value ? 1 : 0;
    box.classList.add("moved");
    state.moved = true;
    byId("reset").disabled = false;
    update();
  }

  const featureBoxes = new Map(), FEW = 12;
  function makeFeatures() {
    byId("features-off").hidden = canMove;
    byId("dependence-card").hidden = !canMove;
    if (!canMove) return;
    content.controls.forEach((control, number) => {
      if (control.kind === "fixed") return;
      const id = `feature-${number}`, output = element("output", { htmlFor: id });
      let input;
      if (control.kind === "number") {
        input = element("input", { type: "range", id, min: control.low, max: control.high, step: control.step === 1 ? 1 : "any" });
        input.addEventListener("keydown", event => {
          // a slider of any step moves by its browser's own rule; these keys move it by a two hundredth
          const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
          if (!by || control.step === 1) return;
          event.preventDefault();
          input.value = Math.min(control.high, Math.max(control.low, Number(input.value) + by * (control.high - control.low) / 200));
          moved(control, box, Number(input.value));
        });
        input.addEventListener("input", () => moved(control, box, Number(input.value)));
      } else {
        input = element("select", { id });
        control.levels.forEach((level, k) => input.append(new Option(level, k)));
        input.addEventListener("change", () => moved(control, box, Number(input.value)));
      }
      const box = element("div", { className: "feature" }, element("label", { htmlFor: id }, element("span", { textContent: control.name }), output), input);
      featureBoxes.set(control, box);
      byId("features").append(box);
      if (control.kind === "number") byId("dependence-feature").append(new Option(control.name, number));
    });
    const many = featureBoxes.size > FEW;
    byId("feature-tools").hidden = !many;
    let everything = false;
    const show = () => {
      const text = byId("feature-filter").value.trim().toLowerCase();
      let shown = 0;
      for (const [control, box] of featureBoxes) {
        box.hidden = text ? !control.name.toLowerCase().includes(text) : !everything && shown >= FEW;
        if (!box.hidden) shown += 1;
      }
      byId("feature-all").hidden = !many || Boolean(text);
      byId("feature-all").textContent = everything ? "Show fewer" : `Show all ${featureBoxes.size}`;
    };
    byId("feature-filter").addEventListener("input", show);
    byId("feature-all").addEventListener("click", () => { everything = !everything; show(); });
    show();
  }

  // -- parts ------------------------------------------------------------------------------------------------------

  function fill(select, texts, chosen) {
    select.replaceChildren(...texts.map((text, k) => new Option(text, k)));
    select.value = String(Math.min(chosen ?? 0, texts.length - 1));
  }

  // The parts of the largest labels, in the order of the page.
  function mainParts(wanted) {
    const chosen = new Set();
    for (const label of rows.largest()) if (chosen.size < wanted) chosen.add(state.parts.findIndex(part => part.includes(label)));
    return [...chosen].sort((a, b) => a - b);
  }

  function showParts() {
    const list = names(), count = list.length;
    const corners = mainParts(3);
    [0, 1, 2].forEach(k => fill(byId(`corner-${k}`), list, corners[k]));
    fill(byId("larger-a"), list, corners[0]); fill(byId("larger-b"), list, corners[1]);
    fill(byId("merge-a"), list, 0); fill(byId("merge-b"), list, 1);
    fill(byId("known-part"), list, corners[0]); fill(byId("dependence-part"), list, corners[0]);
    byId("density-part").replaceChildren(new Option(count > 8 ? "the eight largest" : "all parts", "all"), ...list.map((text, k) => new Option(text, k)));
    byId("merge").disabled = count <= 2;
    byId("split").disabled = count === model.nLabels;
    byId("known-on").disabled = count < 3;
    if (count < 3) { byId("known-on").checked = false; state.known = null; }
    byId("parts").replaceChildren(...list.map((text, k) => {
      const chip = element("li", { textContent: text, draggable: plain });
      chip.style.borderLeftColor = colour(k);
      chip.addEventListener("dragstart", event => { event.dataTransfer.setData("text/plain", String(k)); });
      chip.addEventListener("dragover", event => { event.preventDefault(); chip.classList.add("over"); });
      chip.addEventListener("dragleave", () => chip.classList.remove("over"));
      chip.addEventListener("drop", event => { event.preventDefault(); merge(Number(event.dataTransfer.getData("text/plain")), k); });
      return chip;
    }));
  }

  function merge(first, second) {
    if (first === second || state.parts.length <= 2) return;
    const [low, high] = [Math.min(first, second), Math.max(first, second)];
    state.parts[low] = [...state.parts[low], ...state.parts[high]].sort((a, b) => a - b);
    state.parts.splice(high, 1);
    state.known = null; byId("known-on").checked = false;
    showParts(); update();
  }

  function knownChanged() {
    const share = Number(byId("known-share").value);
    byId("known-value").textContent = percent(share);
    byId("known-note").textContent = "";
    state.known = byId("known-on").checked ? { part: Number(byId("known-part").value), share } : null;
    update();
  }

  function makeVotes() {
    byId("votes").append(...model.labels.map((label, r) => {
      const input = element("input", { type: "number", min: 0, max: 10000, step: 1, value: 0 });
      input.addEventListener("input", () => {
        state.votes[r] = Math.min(10000, Math.max(0, Math.floor(Number(input.value)) || 0));
        update();
      });
      return element("label", {}, label, input);
    }));
    byId("votes-clear").addEventListener("click", () => {
      state.votes.fill(0);
      byId("votes").querySelectorAll("input").forEach(input => { input.value = 0; });
      update();
    });
  }

  // -- labels -----------------------------------------------------------------------------------------------------

  const labelInputs = model.labels.map(label => element("input", { type: "number", min: 0, step: "any", ariaLabel: `Label: ${label}` }));
  byId("labels").append(...model.labels.map((label, r) => element("label", {}, label, labelInputs[r])));

  function showLabel() {
    const kept = rows.kept.get(state.row);
    labelInputs.forEach((input, r) => { input.value = kept ? kept[r] : ""; });
    byId("label-note").textContent = "";
  }

  function keepLabel() {
    const values = labelInputs.map(input => Number(input.value || 0)), total = values.reduce((a, b) => a + b, 0);
    const votes = byId("label-kind").value === "votes";
    let wrong = "";
    if (values.some(value => !(value >= 0) || !Number.isFinite(value))) wrong = "Numbers must be 0 or above.";
    else if (!(total > 0)) wrong = "At least one number must be above 0.";
    else if (votes && values.some(value => !Number.isInteger(value))) wrong = "Votes must be whole numbers.";
    if (wrong) { byId("label-note").textContent = wrong; return; }
    rows.kept.set(state.row, votes ? values.map(String) : closedShares(values));
    rows.draw(); showLabel();
    byId("label-note").textContent = `Kept; ${rows.kept.size} labelled.`;
    unsaved = true;
  }

  let unsaved = false;
  addEventListener("beforeunload", event => { if (unsaved) event.preventDefault(); });

  // -- wiring -----------------------------------------------------------------------------------------------------

  byId("title").textContent = content.name;
  byId("summary").textContent = `${model.nLabels} labels, ${content.controls.length} features, ${rows.count.toLocaleString("en")} row${rows.count === 1 ? "" : "s"}`;
  byId("footer").textContent = `Made by snefy-ldl ${content.library}. Everything on this page is computed in your browser; nothing is sent anywhere.`;
  byId("notes").append(...content.notes.map(note => element("li", { textContent: note })));
  byId("notes").hidden = content.notes.length === 0;
  document.querySelectorAll(".needs-plain").forEach(section => { section.hidden = !plain; });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = wanted => {
    document.documentElement.dataset.theme = wanted;
    inks = null;
    byId("theme").textContent = wanted === "dark" ? "Light" : "Dark";
    if (state.x) update();
  };
  byId("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  theme(dark.matches ? "dark" : "light");
  makeFeatures(); makeVotes(); showParts();
  byId("row").max = rows.count - 1;
  byId("row").addEventListener("change", () => choose(Number(byId("row").value)));
  byId("previous").addEventListener("click", () => choose(state.row - 1));
  byId("next").addEventListener("click", () => choose(state.row + 1));
  byId("reset").addEventListener("click", () => choose(state.row));
  byId("level").addEventListener("change", () => { state.level = Number(byId("level").value); update(); });
  for (const id of ["density-part", "corner-0", "corner-1", "corner-2", "larger-a", "larger-b", "dependence-part", "dependence-feature"]) {
    byId(id).addEventListener("change", update);
  }
  byId("merge").addEventListener("click", () => merge(Number(byId("merge-a").value), Number(byId("merge-b").value)));
  byId("split").addEventListener("click", () => {
    state.parts = model.labels.map((_, r) => [r]); state.known = null; byId("known-on").checked = false;
    showParts(); update();
  });
  for (const id of ["known-on", "known-part", "known-share"]) byId(id).addEventListener("input", knownChanged);
  byId("label-keep").addEventListener("click", keepLabel);
  byId("label-drop").addEventListener("click", () => { rows.kept.delete(state.row); rows.draw(); showLabel(); });
  byId("label-download").addEventListener("click", () => { unsaved = false; });
  Object.assign(explorer, { model, state, rows, answerAt, lawAt, ready: true });
  choose(rows.order.length && byId("sort").value === "uncertainty" ? rows.order[0] : 0);
}

// The triangle's points as a law with a centre sees them, and what that does to densities.
const movedTriangles = new Map();

function movedTriangle(centre, points) {
  const key = `${points.grid} ${centre}`;
  if (!movedTriangles.has(key)) {
    const from = points.logs, logs = new Float64Array(from.length), factor = new Float64Array(from.length / 3);
    for (let s = 0; s < factor.length; s++) {
      let sum = 0, change = 0;
      for (let k = 0; k < 3; k++) sum += Math.exp(from[3 * s + k] - centre[k]);
      for (let k = 0; k < 3; k++) {
        logs[3 * s + k] = from[3 * s + k] - centre[k] - Math.log(sum);
        change += logs[3 * s + k] - from[3 * s + k];
      }
      factor[s] = Math.exp(change);
    }
    movedTriangles.set(key, { logs, factor });
  }
  return movedTriangles.get(key);
}

// Points of a density from quantiles: the probability between two of them over their distance.
function stepCurve(levels, quantile) {
  const points = [];
  for (let k = 1; k < levels.length; k++) {
    const low = quantile(levels[k - 1]), high = quantile(levels[k]);
    if (high > low) points.push([0.5 * (low + high), (levels[k] - levels[k - 1]) / (high - low)]);
  }
  return points;
}

function shortNumber(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

start().catch(error => {
  byId("notes").hidden = false;
  byId("notes").append(element("li", { textContent: `This page could not start (${error.message}); a browser of 2023 or later is needed.` }));
  throw error;
});
window.explorer = explorer;
