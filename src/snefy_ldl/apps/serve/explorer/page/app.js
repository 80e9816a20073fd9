// The page: what is chosen, what follows from it, and the pictures of that.

const explorer = { ready: false, frames: [] };

async function start() {
  const content = JSON.parse(byId("data").textContent), array = await unpack(byId("arrays").textContent);
  const model = new Model(content, array), exact = Boolean(model.square), canMove = Boolean(model.network);
  const state = {
    row: 0, x: null, moved: false, parts: model.labels.map((_, r) => [r]), known: null, level: startLevel(content.calibrated), pending: false,
  };
  const rows = new Rows(model, content, array, row => { choose(row); byId("mix").focus(); });
  const names = () => state.parts.map(part => part.map(r => model.labels[r]).join(" + "));

  // -- answers ----------------------------------------------------------------------------------------------------

  // The distribution of the chosen parts.
  function distributionAt(x) {
    const dist = model.distribution(x, state.row);
    return state.parts.length < model.nLabels ? dist.merged(state.parts) : dist;
  }

  function answerAt(x) {
    const dist = distributionAt(x), count = state.parts.length, all = [...Array(count).keys()];
    let other = dist, order = all;
    if (state.known) {
      other = dist.knowing(state.known.part, state.known.share);
      if (!other) {
        byId("known-note").textContent = exact ? "The distribution has no density at that share." : "Too few draws lie near that share; ask the model in Python (dist.condition).";
        other = dist;
      } else order = order.filter(part => part !== state.known.part);
    }
    const known = other === dist ? -1 : state.known.part, place = part => order.indexOf(part);
    const spread = (values, fixed) => Float64Array.from({ length: count }, (_, part) => part === known ? fixed : values[place(part)]);
    const shares = new Map(), share = part => {
      if (!shares.has(part)) shares.set(part, other.share(place(part)));
      return shares.get(part);
    };
    const tail = 0.5 * (1 - state.level), whole = known < 0 && count === model.nLabels, asGiven = whole && x === state.x && !state.moved;
    const calibrated = asGiven ? calibratedEnds() : null, ends = calibrated || (whole && !exact ? tabledEnds() : null);
    const end = (side, level) => part => part === known ? state.known.share : ends ? ends(side, part) : share(part).quantile(level);
    const zero = exact || content.draws.zero === null ? null : whole ? rowOf(content.draws.zero) : other.zero();
    return {
      names: names(), known, dist: other, calibrated: Boolean(calibrated), low: all.map(end(0, tail)), high: all.map(end(1, 1 - tail)),
      mean: known < 0 && !exact ? merged(rows.means(state.row)) : spread(other.mean(), state.known && state.known.share), zero: zero && spread(zero, 0),
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
      ternary: corners => corners.includes(known) ? null : other.ternary(corners.map(place)),
    };
  }

  const merged = values => Float64Array.from(state.parts, part => part.reduce((sum, r) => sum + values[r], 0));
  const rowOf = entry => array(entry).subarray(state.row * model.nLabels, (state.row + 1) * model.nLabels);

  // Conformal intervals of a row of the table, at levels that were calibrated.
  function calibratedEnds() {
    if (!content.calibrated) return null;
    const { levels, ends } = content.calibrated, place = levels.findIndex(one => Math.abs(one - state.level) < 1e-9);
    const values = array(ends), start = state.row * model.nLabels * 2 * levels.length;
    return place < 0 ? null : (side, part) => values[start + (part * 2 + side) * levels.length + place];
  }

  // The model's own intervals of a row that the page has draws of.
  function tabledEnds() {
    const { levels, quantiles } = content.draws, values = array(quantiles), start = state.row * model.nLabels * levels.length;
    const place = side => levels.findIndex(one => Math.abs(one - (side ? 0.5 + 0.5 * state.level : 0.5 - 0.5 * state.level)) < 1e-9);
    return place(0) < 0 ? null : (side, part) => values[start + part * levels.length + place(side)];
  }

  // -- pictures ---------------------------------------------------------------------------------------------------

  // Pictures that follow each other closely are drawn coarsely; the last one is drawn again when it rests.
  const RESTING = 120;
  let lastDraw = -Infinity;

  function draw() {
    state.pending = false;
    const began = performance.now(), quick = exact && began - lastDraw < RESTING, answer = answerAt(state.x);
    lastDraw = began;
    show(answer, quick);
    if (!explorer.frames.length) performance.mark("first view");
    explorer.frames.push(performance.now() - began);
    if (explorer.frames.length > 500) explorer.frames.shift();
    later(answer, quick);
  }

  function show(answer, quick) {
    explorer.answer = answer;
    byId("mix-note").textContent = mixNote(answer);
    drawBars(answer);
    drawDensities(answer, densityParts(answer), quick);
    drawTriangle(answer, quick);
    drawComparison(answer);
  }

  function mixNote(answer) {
    const notes = [];
    if (!exact && answer.known >= 0) notes.push(`From ${Math.round(answer.dist.effective)} of the ${content.draws.count} draws, those near the known share.`);
    if (content.calibrated) {
      const levels = content.calibrated.levels.map(level => `${shortNumber(100 * level)} %`).join(", ");
      notes.push(answer.calibrated ? "Intervals are calibrated (conformal)."
        : `Intervals are not calibrated. Calibrated ones exist for unchanged rows at ${levels}, without known shares or merged parts.`);
    }
    return notes.join(" ");
  }

  function densityParts(answer) {
    const wanted = byId("density-part").value, all = [...answer.names.keys()];
    if (wanted !== "all") return [Math.min(Number(wanted), all.length - 1)];
    return all.sort((a, b) => answer.mean[b] - answer.mean[a]).slice(0, 8).sort((a, b) => a - b);
  }

  function drawTriangle(answer, quick) {
    const corners = [0, 1, 2].map(k => Number(byId(`corner-${k}`).value)), place = corners.indexOf(answer.known);
    if (place >= 0 && answer.names.length > 3 && new Set(corners).size === 3) {
      // a known share has no density: the largest of the parts that are not shown takes its corner
      const free = [...answer.mean.keys()].filter(part => !corners.includes(part)).sort((a, b) => answer.mean[b] - answer.mean[a]);
      corners[place] = free[0];
      byId(`corner-${place}`).value = String(free[0]);
    }
    if (answer.names.length < 3) return clearTernary("There are fewer than three parts.");
    if (new Set(corners).size < 3) return clearTernary("Choose three different parts.");
    const made = answer.ternary(corners);
    if (!made) return clearTernary("The share of one of these parts is known; choose three others.");
    const points = triangle(quick ? 30 : 60), densities = made(points);
    const total = corners.reduce((sum, part) => sum + answer.mean[part], 0);
    drawTernary(corners.map(part => answer.names[part]), densities, corners.map(part => answer.mean[part] / total), points);
    const notes = [answer.names.length === 3 ? "The stronger the colour, the more probable; the ring is the mean."
      : "Proportions among these three: the stronger the colour, the more probable; the ring is the mean."];
    if (!exact) notes.push("Smoothed from draws.");
    byId("ternary-note").textContent = notes.join(" ");
  }

  function drawComparison(answer) {
    const first = Number(byId("larger-a").value), second = Number(byId("larger-b").value);
    const chance = first === second ? null : answer.greater(first, second);
    explorer.greater = chance;
    byId("larger").textContent = first === second ? "(choose two)" : percent(chance);
    const error = exact || first === second ? 0 : Math.sqrt(Math.max(chance * (1 - chance), 0) / answer.dist.effective);
    byId("larger-note").textContent = error ? `Estimated from draws, with a standard error of ${percent(error)}.` : "";
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

  // Distributions along a feature take a while: some at a time, until something else is chosen.
  const TURN = 25;
  let featureRun = 0;

  function drawFeature(answer) {
    const run = ++featureRun, rest = () => { explorer.resting = true; };
    if (!canMove) return rest();
    const control = content.controls[Number(byId("dependence-feature").value)], part = Number(byId("dependence-part").value);
    if (!control || part >= answer.names.length) return rest();
    const points = [], tail = 0.5 * (1 - state.level), steps = control.step === 1 ? Math.min(40, control.high - control.low) : 40;
    const work = () => {
      if (run !== featureRun) return;
      const began = performance.now();
      while (points.length <= steps && performance.now() - began < TURN) points.push(pointAlong(control, part, points.length / steps, tail));
      if (points.length <= steps) { setTimeout(work, 0); return; }
      explorer.dependence = points;
      drawDependence(control.name, answer.names[part], part, points, state.x[control.at], value => shortNumber(value));
      byId("dependence-note").textContent = `The band is ${content.calibrated ? "the uncalibrated" : "the"} ${shortNumber(100 * state.level)} % interval; other features stay as they are.`;
      rest();
    };
    work();
  }

  function pointAlong(control, part, along, tail) {
    const value = control.low + (control.high - control.low) * along, x = state.x.slice();
    setNumber(x, control, value);
    if (state.known) {
      const one = answerAt(x);
      return { x: value, mean: one.mean[part], low: one.low[part], high: one.high[part] };
    }
    const dist = distributionAt(x), share = dist.share(part);
    return { x: value, mean: dist.mean()[part], low: share.quantile(tail), high: share.quantile(1 - tail) };
  }

  function update() {
    if (state.pending) return;
    state.pending = true;
    explorer.resting = false; featureRun += 1;
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
    byId("mix-row").textContent = content.rows.ids ? `${content.rows.id} ${rows.name(state.row)}` : `row ${state.row}`;
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
      const chip = element("li", { textContent: text, draggable: true });
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
    byId("label-note").textContent = `Saved; ${rows.kept.size} labelled.`;
    unsaved = true;
  }

  let unsaved = false;
  addEventListener("beforeunload", event => { if (unsaved) event.preventDefault(); });

  // -- wiring -----------------------------------------------------------------------------------------------------

  byId("title").textContent = content.title;
  byId("summary").textContent = `Model ${content.name}: ${model.nLabels} labels, ${content.controls.length} features, ${rows.count.toLocaleString("en")} row${rows.count === 1 ? "" : "s"}`;
  byId("footer").textContent = `Made by snefy-ldl ${content.library}. Everything on this page is computed in your browser; nothing is sent anywhere.`;
  byId("notes").append(...content.notes.map(note => element("li", { textContent: note })));
  byId("notes").hidden = content.notes.length === 0;
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
  makeFeatures(); showParts();
  const known = content.calibrated ? content.calibrated.levels : [], isKnown = level => known.some(one => Math.abs(one - level) < 1e-9);
  const offered = [...[0.5, 0.8, 0.9, 0.95].filter(level => !isKnown(level)), ...known].sort((a, b) => a - b);
  byId("level").append(...offered.map(level => new Option(`${shortNumber(100 * level)} %${isKnown(level) ? ", calibrated" : ""}`, level, false, level === state.level)));
  let drawnWidth = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== drawnWidth) { drawnWidth = innerWidth; update(); } });
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
  Object.assign(explorer, { model, state, rows, answerAt, distributionAt, ready: true });
  choose(rows.order.length && byId("sort").value === "uncertainty" ? rows.order[0] : 0);
}

// The level that is shown first: 90 %, or the nearest one that was calibrated.
function startLevel(calibrated) {
  if (!calibrated) return 0.9;
  return calibrated.levels.reduce((best, level) => Math.abs(level - 0.9) < Math.abs(best - 0.9) ? level : best);
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
