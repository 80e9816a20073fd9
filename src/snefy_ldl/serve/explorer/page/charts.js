// Pictures: bars as a table, curves as SVG, the triangle on a canvas.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#2f6fdb", "#d9822b", "#3a9b5c", "#b5407a", "#7a5bd0", "#1d9aa8", "#a8862a", "#c8463c"];
const colour = part => part < COLOURS.length ? COLOURS[part] : `hsl(${(part * 47) % 360} 52% 52%)`;
const percent = value => `${(100 * value).toFixed(1)} %`;
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
    cells[3].textContent = answer.low ? `${(100 * answer.low[part]).toFixed(1)} – ${percent(answer.high[part])}` : "–";
    if (answer.zero) cells[4].textContent = percent(answer.zero[part]);
  });
}

function axes(svg, left, right, top, bottom, low, high, label, format) {
  for (let tick = 0; tick <= 4; tick++) {
    const x = left + (right - left) * tick / 4;
    shape(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "axis" });
    const anchor = tick === 0 ? "start" : tick === 4 ? "end" : "middle";
    shape(svg, "text", { x, y: bottom + 15, "text-anchor": anchor }, format(low + (high - low) * tick / 4));
  }
  shape(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  if (label) shape(svg, "text", { x: right, y: bottom + 30, "text-anchor": "end" }, label);
}

function drawDensities(answer, wanted) {
  const svg = byId("density"), legend = byId("legend");
  svg.replaceChildren(); legend.replaceChildren();
  const shown = wanted.filter(part => answer.curve(part));
  byId("density-note").textContent = shown.length ? "" : answer.withoutCurves;
  if (!shown.length) { svg.setAttribute("aria-label", answer.withoutCurves); return; }
  const curves = shown.map(part => answer.curve(part));
  let high = 0, reach = 0.02;
  shown.forEach((part, k) => {
    let mass = 0;
    const points = curves[k];
    for (let at = 1; at < points.length; at++) {
      mass += 0.5 * (points[at][1] + points[at - 1][1]) * (points[at][0] - points[at - 1][0]);
      if (mass < 0.999) reach = Math.max(reach, points[at][0]);
    }
    // a density may grow without bound at the ends; the picture stops at what the middle reaches
    const inner = points.filter(([t]) => t > 0.005 && t < 0.995).map(point => point[1]);
    high = Math.max(high, ...(inner.length ? inner : points.map(point => point[1])));
  });
  const last = Math.min(1, Math.ceil(20 * reach * 1.05) / 20), [left, right, top, bottom] = [8, 552, 8, 190];
  axes(svg, left, right, top, bottom, 0, last, "", value => `${(100 * value).toFixed(last < 0.2 ? 1 : 0)} %`);
  const clip = value => bottom - (bottom - top) * Math.min(value / high, 1);
  shown.forEach((part, k) => {
    const path = curves[k].filter(([t]) => t <= last).map(([t, p], at) =>
      `${at ? "L" : "M"}${(left + (right - left) * t / last).toFixed(1)},${clip(p).toFixed(1)}`).join("");
    if (path) {
      shape(svg, "path", { d: path, fill: "none", stroke: colour(part), "stroke-width": 2.2 });
    }
    const swatch = element("i");
    swatch.style.background = colour(part);
    legend.append(element("span", {}, swatch, answer.names[part]));
  });
  svg.setAttribute("aria-label", `Densities of ${shown.map(part => `${answer.names[part]}, mean ${percent(answer.mean[part])}`).join("; ")}`);
}

// -- the triangle -------------------------------------------------------------------------------------------------

const GRID = 64;
const TRIANGLE = (() => {
  // grid points inside the triangle as logarithms of their shares, and for each pixel the points around it
  const logs = [], number = new Map();
  const inside = value => Math.log(Math.max(value, 0.25) / GRID);
  for (let a = 0; a <= GRID; a++) for (let b = 0; a + b <= GRID; b++) {
    number.set(a * (GRID + 1) + b, logs.length / 3);
    const parts = [inside(a), inside(b), inside(GRID - a - b)];
    const total = Math.log(parts.reduce((sum, log) => sum + Math.exp(log), 0));
    logs.push(...parts.map(log => log - total));
  }
  return { logs: Float64Array.from(logs), number };
})();

function pixelMap(width, height, corners) {
  const [[x0, y0], [x1, y1], [x2, y2]] = corners, size = (y1 - y2) * (x0 - x2) + (x2 - x1) * (y0 - y2);
  const at = (a, b) => TRIANGLE.number.get(a * (GRID + 1) + b), pixels = [];
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
    const first = ((y1 - y2) * (x - x2) + (x2 - x1) * (y - y2)) / size;
    const second = ((y2 - y0) * (x - x2) + (x0 - x2) * (y - y2)) / size;
    if (first < 0 || second < 0 || first + second > 1) continue;
    const u = first * GRID, v = second * GRID, a = Math.floor(u), b = Math.floor(v), fu = u - a, fv = v - b;
    if (a + b >= GRID) { const p = at(a, b); pixels.push([y * width + x, p, p, p, 1, 0]); continue; }
    if (fu + fv <= 1 || a + b + 2 > GRID) pixels.push([y * width + x, at(a, b), at(a + 1, b), at(a, b + 1), 1 - fu - fv, fu]);
    else pixels.push([y * width + x, at(a + 1, b + 1), at(a, b + 1), at(a + 1, b), fu + fv - 1, 1 - fu]);
  }
  return pixels;
}

let triangleCache = null;

function drawTernary(names, densities, mean) {
  const canvas = byId("ternary"), context = canvas.getContext("2d"), { width, height } = canvas;
  const corners = [[width / 2, 26], [24, height - 36], [width - 24, height - 36]];
  if (!triangleCache) triangleCache = { pixels: pixelMap(width, height, corners), image: context.createImageData(width, height) };
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--heat").split(",").map(Number);
  const { pixels, image } = triangleCache;
  let top = 0;
  for (const value of densities) if (value > top) top = value;
  image.data.fill(0);
  for (const [at, a, b, c, wa, wb] of pixels) {
    const value = wa * densities[a] + wb * densities[b] + (1 - wa - wb) * densities[c];
    const strength = Math.sqrt(Math.max(value, 0) / top);
    image.data[4 * at] = ink[0]; image.data[4 * at + 1] = ink[1]; image.data[4 * at + 2] = ink[2];
    image.data[4 * at + 3] = 12 + 243 * strength;
  }
  context.putImageData(image, 0, 0);
  context.strokeStyle = style.getPropertyValue("--line");
  context.beginPath();
  corners.forEach(([x, y], k) => k ? context.lineTo(x, y) : context.moveTo(x, y));
  context.closePath(); context.stroke();
  const dot = [0, 1].map(axis => corners.reduce((sum, corner, k) => sum + mean[k] * corner[axis], 0));
  context.beginPath();
  context.arc(dot[0], dot[1], 5, 0, 2 * Math.PI);
  context.fillStyle = style.getPropertyValue("--card"); context.fill();
  context.lineWidth = 2; context.strokeStyle = style.getPropertyValue("--ink"); context.stroke(); context.lineWidth = 1;
  context.fillStyle = style.getPropertyValue("--ink");
  context.font = "13px system-ui, sans-serif";
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
      const cell = element("td", { textContent: r === s ? "1" : value.toFixed(2).replace("-", "−") });
      if (r !== s) cell.style.background = `rgba(var(${value > 0 ? "--heat" : "--cold"}), ${(0.55 * Math.abs(value)).toFixed(2)})`;
      row.append(cell);
    }
    return row;
  });
  table.replaceChildren(caption, element("thead", {}, head), element("tbody", {}, ...rows));
}

function drawDependence(feature, name, part, points, here, format) {
  const svg = byId("dependence"), [left, right, top, bottom] = [40, 552, 10, 196];
  svg.replaceChildren();
  const low = points[0].x, high = points[points.length - 1].x, most = Math.min(1, 1.08 * Math.max(...points.map(point => point.high)));
  const x = value => left + (right - left) * (value - low) / (high - low || 1), y = value => bottom - (bottom - top) * value / most;
  axes(svg, left, right, top, bottom, low, high, feature, format);
  for (const share of [0, 0.5, 1]) shape(svg, "text", { x: left - 5, y: y(share * most) + 4, "text-anchor": "end" }, `${Math.round(100 * share * most)} %`);
  const line = (key, back) => (back ? points.slice().reverse() : points).map((point, k) => `${k || back ? "L" : "M"}${x(point.x).toFixed(1)},${y(point[key]).toFixed(1)}`).join("");
  shape(svg, "path", { d: `${line("high")}${line("low", true)}Z`, fill: colour(part), "fill-opacity": 0.22 });
  shape(svg, "path", { d: line("mean"), fill: "none", stroke: colour(part), "stroke-width": 2.4 });
  if (here >= low && here <= high) shape(svg, "line", { x1: x(here), x2: x(here), y1: top, y2: bottom, stroke: "currentColor", "stroke-dasharray": "4 4" });
  const first = points[0], end = points[points.length - 1];
  svg.setAttribute("aria-label", `Share of ${name} along ${feature}: from ${percent(first.mean)} at ${format(first.x)} to ${percent(end.mean)} at ${format(end.x)}`);
}
