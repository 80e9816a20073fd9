// Pictures: bars as a table, curves as SVG, the triangle on a canvas.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#2f6fdb", "#d9822b", "#3a9b5c", "#b5407a", "#7a5bd0", "#1d9aa8", "#a8862a", "#c8463c"];
const colour = part => part < COLOURS.length ? COLOURS[part] : `hsl(${(part * 47) % 360} 52% 52%)`;
// Traces get two digits, wherever these begin.
const inPercent = value => value > 0 && value < 0.0005 ? String(Number((100 * value).toPrecision(2))) : (100 * value).toFixed(1);
const percent = value => `${inPercent(value)} %`;
const byId = id => document.getElementById(id);

function shape(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

function drawBars(answer) {
  const body = byId("bars").tBodies[0];
  if (body.rows.length !== answer.names.length) {
    body.replaceChildren(...answer.names.map(() => {
      const track = element("div", { className: "track" }, element("i", { className: "mean" }), element("i", { className: "range" }));
      return element("tr", {}, element("th", { scope: "row" }), element("td", { className: "picture" }, track),
        element("td", { className: "number" }), element("td", { className: "number" }), element("td", { className: "number zero" }));
    }));
  }
  document.querySelectorAll("#bars .zero").forEach(cell => { cell.hidden = !answer.zero; });
  answer.names.forEach((name, part) => {
    const cells = body.rows[part].cells, [mean, range] = cells[1].firstChild.children;
    cells[0].textContent = name;
    mean.style.width = `${100 * answer.mean[part]}%`;
    mean.style.background = colour(part);
    range.hidden = !answer.low;
    if (answer.low) {
      range.style.left = `${100 * answer.low[part]}%`;
      range.style.width = `${100 * (answer.high[part] - answer.low[part])}%`;
    }
    cells[2].textContent = percent(answer.mean[part]);
    cells[3].textContent = answer.low ? `${inPercent(answer.low[part])} – ${percent(answer.high[part])}` : "–";
    if (answer.zero) cells[4].textContent = percent(answer.zero[part]);
  });
}

// Pictures are drawn in the pixels they get, so that text has one size on every screen.
const LETTER = 7.2, FOOT = 22;

function stretch(svg, height) {
  const width = Math.max(svg.clientWidth || 560, 200);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  return width;
}

const shorten = (name, room) => name.length * LETTER <= room ? name : `${name.slice(0, Math.max(1, Math.floor(room / LETTER) - 1))}…`;

// Round numbers between two others, at most so many steps apart.
function roundTicks(low, high, most) {
  const rough = (high - low) / Math.max(most, 1), size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 2.5, 5, 10].find(times => times * size >= rough * (1 - 1e-9)), ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step && ticks.length < 50; k++) ticks.push(k * step);
  return ticks;
}

// The share as a percentage, with as many digits as the ticks between two shares need.
function percentTicks(low, high, most) {
  const ticks = roundTicks(low, high, most), step = ticks.length > 1 ? 100 * (ticks[1] - ticks[0]) : 1;
  const digits = [0, 1, 2, 3].find(count => Math.abs(step * 10 ** count - Math.round(step * 10 ** count)) < 1e-6) ?? 4;
  return { ticks, format: value => `${(100 * value).toFixed(digits)} %` };
}

function axis(svg, left, right, top, bottom, low, high, ticks, label, format) {
  for (const tick of ticks) {
    const x = left + (right - left) * (tick - low) / (high - low || 1), text = format(tick), half = 0.5 * LETTER * text.length;
    shape(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "axis" });
    const anchor = x - half < left ? "start" : x + half > right ? "end" : "middle";
    shape(svg, "text", { x, y: bottom + 15, "text-anchor": anchor }, text);
  }
  shape(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  if (label) shape(svg, "text", { x: right, y: bottom + 31, "text-anchor": "end" }, shorten(label, right - left));
}

// A smooth path through points: at each one the slope of the parabola through it and its neighbours.
function smoothPath(points) {
  const last = points.length - 1, slope = k => (points[k + 1][1] - points[k][1]) / (points[k + 1][0] - points[k][0]);
  const slopes = points.map((point, k) => {
    if (last < 1) return 0;
    if (k === 0 || k === last) return slope(k ? k - 1 : 0);
    const before = points[k][0] - points[k - 1][0], after = points[k + 1][0] - points[k][0];
    return (slope(k - 1) * after + slope(k) * before) / (before + after);
  });
  return points.map(([x, y], k) => {
    if (k === 0) return `M${x.toFixed(2)},${y.toFixed(2)}`;
    const third = (x - points[k - 1][0]) / 3;
    return `C${(x - 2 * third).toFixed(2)},${(points[k - 1][1] + slopes[k - 1] * third).toFixed(2)} `
      + `${(x - third).toFixed(2)},${(y - slopes[k] * third).toFixed(2)} ${x.toFixed(2)},${y.toFixed(2)}`;
  }).join("");
}

// Mass outside which a curve is not drawn: a density may grow without bound where hardly any mass is.
const TAIL = 1e-4;

// A curve without its ends, and its frame: shares between which nearly all of its mass is, and its height away from them.
function frame(curve, answer, part) {
  let mass = 0;
  const sums = curve.map(([t, p], at) => mass += at ? 0.5 * (p + curve[at - 1][1]) * (t - curve[at - 1][0]) : 0);
  const kept = curve.filter((_, at) => sums[at] >= TAIL * mass && sums[at] <= (1 - TAIL) * mass), points = kept.length > 1 ? kept : curve;
  let low = points[0][0], high = points[points.length - 1][0];
  curve.forEach(([t], at) => {
    if (sums[at] < 0.002 * mass) low = Math.max(low, t);
    if (sums[at] < 0.998 * mass && at + 1 < curve.length) high = Math.min(points[points.length - 1][0], curve[at + 1][0]);
  });
  low = Math.min(low, answer.low[part], answer.mean[part]); high = Math.max(high, answer.high[part], answer.mean[part]);
  const room = 0.04 * (high - low);
  low = low < 0.3 * high ? 0 : Math.max(low - room, 0); high = Math.min(high + room, 1);
  // the picture stops at the height that the middle reaches
  const edge = 0.03 * (high - low), inner = points.filter(([t]) => t > low + edge && t < high - edge).map(point => point[1]);
  const whole = Math.max(...points.filter(([t]) => t >= low && t <= high).map(point => point[1]));
  const most = inner.length ? Math.max(...inner) : whole;
  return { points, low, high, most: whole > 1.3 * most ? 1.15 * most : whole, whole };
}

function drawDensities(answer, wanted, quick) {
  const svg = byId("density"), shown = wanted.filter(answer.hasCurve).map(part => ({ part, curve: answer.curve(part, quick) })).filter(one => one.curve.length > 2);
  if (!shown.length) {
    stretch(svg, 10);
    svg.setAttribute("aria-label", answer.withoutCurves);
    byId("density-note").textContent = answer.withoutCurves;
    return;
  }
  const alone = shown.length === 1, gap = 22, height = alone ? 240 : 150;
  const columns = Math.min(shown.length, Math.max(1, Math.floor(((svg.clientWidth || 560) + gap) / 210)));
  // as many in each line as the lines need, not four and then one
  const lines = Math.ceil(shown.length / columns), across = Math.ceil(shown.length / lines);
  const total = stretch(svg, lines * height), width = (total - gap * (across - 1)) / across;
  let cut = 0;
  shown.forEach(({ part, curve }, k) => {
    const left = (k % across) * (width + gap), top = Math.floor(k / across) * height + 24, bottom = top + height - 24 - FOOT - 10;
    const { points, low, high, most, whole } = frame(curve, answer, part), { ticks, format } = percentTicks(low, high, Math.min(5, width / 64));
    const x = t => width * (t - low) / (high - low), y = p => (bottom - top) * (1 - 0.96 * Math.min(p / most, 3));
    axis(svg, left, left + width, top, bottom, low, high, ticks, "", format);
    shape(svg, "rect", { x: left, y: top - 19, width: 11, height: 11, rx: 3, fill: colour(part) });
    shape(svg, "text", { x: left + 17, y: top - 9, class: "name" }, shorten(answer.names[part], width - 17));
    const plot = shape(svg, "svg", { x: left, y: top, width, height: bottom - top, "aria-hidden": "true" });
    const seen = points.filter(([t], at) => (at + 1 >= points.length || points[at + 1][0] >= low) && (at === 0 || points[at - 1][0] <= high));
    const inside = seen.filter(([t]) => t >= answer.low[part] && t <= answer.high[part]);
    if (inside.length > 1) {
      const floor = bottom - top, first = x(inside[0][0]), end = x(inside[inside.length - 1][0]);
      shape(plot, "polygon", { points: [[first, floor], ...inside.map(([t, p]) => [x(t), y(p)]), [end, floor]].map(pair => pair.map(value => value.toFixed(1)).join(",")).join(" "), fill: colour(part), "fill-opacity": 0.2 });
    }
    shape(plot, "line", { x1: x(answer.mean[part]), x2: x(answer.mean[part]), y1: 0, y2: bottom - top, class: "mean" });
    shape(plot, "path", { d: smoothPath(seen.map(([t, p]) => [x(t), y(p)])), fill: "none", stroke: colour(part), "stroke-width": 2 });
    if (whole > most) {
      cut += 1;
      const at = x(seen.reduce((best, point) => point[1] > best[1] ? point : best)[0]);
      shape(svg, "text", { x: left + Math.min(Math.max(at, 8), width - 8), y: top + 11, "text-anchor": "middle", class: "cut" }, "▲");
    }
  });
  byId("density-note").textContent = `Shaded: the interval; dashed: the mean.${alone ? "" : " Scales differ between panels."}${cut ? " ▲ The density continues above the picture." : ""}`;
  svg.setAttribute("aria-label", `Densities of ${shown.map(({ part }) => `${answer.names[part]}, mean ${percent(answer.mean[part])}`).join("; ")}`);
}

// -- the triangle -------------------------------------------------------------------------------------------------

// Points inside the triangle as logarithms of their shares, a coarse set for while something moves and a fine one.
const triangles = new Map();

function triangle(grid) {
  if (!triangles.has(grid)) {
    const logs = [], number = new Map(), inside = value => Math.log(Math.max(value, 0.25) / grid);
    for (let a = 0; a <= grid; a++) for (let b = 0; a + b <= grid; b++) {
      number.set(a * (grid + 1) + b, logs.length / 3);
      const parts = [inside(a), inside(b), inside(grid - a - b)];
      const total = Math.log(parts.reduce((sum, log) => sum + Math.exp(log), 0));
      logs.push(...parts.map(log => log - total));
    }
    triangles.set(grid, { grid, logs: Float64Array.from(logs), number });
  }
  return triangles.get(grid);
}

// For every pixel of the triangle three points of the grid around it, and the weights of the first two.
function pixelMap(width, height, corners, { grid, number }) {
  const [[x0, y0], [x1, y1], [x2, y2]] = corners, size = (y1 - y2) * (x0 - x2) + (x2 - x1) * (y0 - y2);
  const at = (a, b) => number.get(a * (grid + 1) + b), places = [], weights = [];
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
    const first = ((y1 - y2) * (x - x2) + (x2 - x1) * (y - y2)) / size;
    const second = ((y2 - y0) * (x - x2) + (x0 - x2) * (y - y2)) / size;
    if (first < 0 || second < 0 || first + second > 1) continue;
    const u = first * grid, v = second * grid, a = Math.floor(u), b = Math.floor(v), fu = u - a, fv = v - b;
    if (a + b >= grid) { places.push(y * width + x, at(a, b), at(a, b), at(a, b)); weights.push(1, 0); continue; }
    if (fu + fv <= 1 || a + b + 2 > grid) {
      places.push(y * width + x, at(a, b), at(a + 1, b), at(a, b + 1)); weights.push(1 - fu - fv, fu);
    } else {
      places.push(y * width + x, at(a + 1, b + 1), at(a, b + 1), at(a + 1, b)); weights.push(fu + fv - 1, 1 - fu);
    }
  }
  return { places: Int32Array.from(places), weights: Float32Array.from(weights) };
}

// Colours of the theme; reading them from the style takes longer than drawing.
let inks = null;
function themeInks() {
  if (!inks) {
    const style = getComputedStyle(document.documentElement), read = name => style.getPropertyValue(name).trim();
    const [red, green, blue] = read("--heat").split(",").map(Number), palette = new Uint32Array(256);
    const bytes = new Uint8ClampedArray(palette.buffer);
    for (let k = 0; k < 256; k++) bytes.set([red, green, blue, 12 + 243 * k / 255], 4 * k);
    inks = { palette, line: read("--line"), card: read("--card"), ink: read("--ink") };
  }
  return inks;
}

function drawTernary(names, densities, mean, points) {
  const canvas = byId("ternary"), context = canvas.getContext("2d", { willReadFrequently: true }), { width, height } = canvas;
  const corners = [[width / 2, 26], [24, height - 36], [width - 24, height - 36]], theme = themeInks();
  if (!points.places) {
    const image = context.createImageData(width, height);
    Object.assign(points, pixelMap(width, height, corners, points), { image, pixels: new Uint32Array(image.data.buffer) });
  }
  const { places, weights, image, pixels } = points;
  // at the border a density may grow without bound; the colours are those of the inside
  const border = Math.log(1.5 / points.grid);
  let top = 0, whole = 0;
  for (let k = 0; k < densities.length; k++) {
    if (densities[k] > whole) whole = densities[k];
    if (densities[k] > top && Math.min(points.logs[3 * k], points.logs[3 * k + 1], points.logs[3 * k + 2]) > border) top = densities[k];
  }
  if (!(top > 1e-3 * whole)) top = whole;
  const strength = new Float32Array(densities.length);
  for (let k = 0; k < strength.length; k++) strength[k] = 255 * Math.sqrt(Math.min(Math.max(densities[k], 0) / top, 1));
  for (let k = 0, w = 0; k < places.length; k += 4, w += 2) {
    const a = weights[w], b = weights[w + 1];
    const value = a * strength[places[k + 1]] + b * strength[places[k + 2]] + (1 - a - b) * strength[places[k + 3]];
    pixels[places[k]] = theme.palette[value | 0];
  }
  context.putImageData(image, 0, 0);
  context.strokeStyle = theme.line;
  context.beginPath();
  corners.forEach(([x, y], k) => k ? context.lineTo(x, y) : context.moveTo(x, y));
  context.closePath(); context.stroke();
  const dot = [0, 1].map(axis => corners.reduce((sum, corner, k) => sum + mean[k] * corner[axis], 0));
  context.beginPath();
  context.arc(dot[0], dot[1], 5, 0, 2 * Math.PI);
  context.fillStyle = theme.card; context.fill();
  context.lineWidth = 2; context.strokeStyle = theme.ink; context.stroke(); context.lineWidth = 1;
  context.fillStyle = theme.ink;
  context.font = `${(13 * width / (canvas.clientWidth || width)).toFixed(1)}px system-ui, sans-serif`;
  const short = name => name.length > 22 ? `${name.slice(0, 21)}…` : name;
  context.textAlign = "center"; context.fillText(short(names[0]), width / 2, 16);
  context.textAlign = "left"; context.fillText(short(names[1]), 4, height - 14);
  context.textAlign = "right"; context.fillText(short(names[2]), width - 4, height - 14);
  canvas.setAttribute("aria-label", `Density over the proportions of ${names.join(", ")}; mean ${mean.map(percent).join(", ")}`);
}

function clearTernary(sentence) {
  const canvas = byId("ternary");
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  canvas.setAttribute("aria-label", sentence);
  byId("ternary-note").textContent = sentence;
}

function drawCorrelations(names, covariance) {
  const table = byId("correlations"), L = names.length;
  const caption = table.caption;
  if (!covariance) { table.replaceChildren(caption, element("tbody", {}, element("tr", {}, element("td", { textContent: "not available" })))); return; }
  const head = element("tr", {}, element("td"), ...names.map(name => element("th", { scope: "col", textContent: name, title: name })));
  const rows = names.map((name, r) => {
    const row = element("tr", {}, element("th", { scope: "row", textContent: name, title: name }));
    for (let s = 0; s < L; s++) {
      const size = Math.sqrt(covariance[r * L + r] * covariance[s * L + s]);
      const value = r === s ? 1 : size > 0 ? covariance[r * L + s] / size : 0;
      const cell = element("td", { textContent: r === s ? "1" : (Math.round(100 * value) / 100 || 0).toFixed(2).replace("-", "−") });
      if (r !== s) cell.style.background = `rgba(var(${value > 0 ? "--heat" : "--cold"}), ${(0.55 * Math.abs(value)).toFixed(2)})`;
      row.append(cell);
    }
    return row;
  });
  table.replaceChildren(caption, element("thead", {}, head), element("tbody", {}, ...rows));
}

function drawDependence(feature, name, part, points, here, format) {
  const svg = byId("dependence"), height = 260, width = stretch(svg, height);
  const low = points[0].x, high = points[points.length - 1].x, most = Math.min(1, 1.08 * Math.max(...points.map(point => point.high)));
  const shares = percentTicks(0, most, 4), top = 10, bottom = height - 40, right = width - 4;
  const left = 8 + LETTER * Math.max(...shares.ticks.map(share => shares.format(share).length));
  const x = value => left + (right - left) * (value - low) / (high - low || 1), y = value => bottom - (bottom - top) * value / most;
  axis(svg, left, right, top, bottom, low, high, roundTicks(low, high, Math.min(6, (right - left) / 80)), feature, format);
  for (const share of shares.ticks) {
    shape(svg, "line", { x1: left, x2: right, y1: y(share), y2: y(share), class: "axis" });
    shape(svg, "text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, shares.format(share));
  }
  const line = (key, back) => (back ? points.slice().reverse() : points).map((point, k) => `${k || back ? "L" : "M"}${x(point.x).toFixed(1)},${y(point[key]).toFixed(1)}`).join("");
  shape(svg, "path", { d: `${line("high")}${line("low", true)}Z`, fill: colour(part), "fill-opacity": 0.22 });
  shape(svg, "path", { d: line("mean"), fill: "none", stroke: colour(part), "stroke-width": 2.4 });
  if (here >= low && here <= high) shape(svg, "line", { x1: x(here), x2: x(here), y1: top, y2: bottom, stroke: "currentColor", "stroke-dasharray": "4 4" });
  const first = points[0], end = points[points.length - 1];
  svg.setAttribute("aria-label", `Share of ${name} along ${feature}: from ${percent(first.mean)} at ${format(first.x)} to ${percent(end.mean)} at ${format(end.x)}`);
}
