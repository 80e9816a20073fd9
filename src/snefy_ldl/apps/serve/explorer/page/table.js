// The table of rows: order, filter, pages, selection, labels, and files to download.

const PAGE = 25;

class Rows {
  constructor(model, content, array, onChoose) {
    this.model = model; this.content = content; this.onChoose = onChoose;
    this.count = content.rows.count; this.labels = content.labels; this.L = this.labels.length;
    this.features = array(content.rows.features); this.width = content.rows.features.shape[1];
    this.mean = array(content.mean); this.uncertainty = array(content.uncertainty);
    this.texts = Object.entries(content.rows.texts).map(([name, entry]) => ({ name, levels: entry.levels, codes: array(entry.codes) }));
    this.selected = new Set(); this.kept = new Map(); this.page = 0; this.current = 0;
    this.shownLabels = this.L <= 8 ? [...Array(this.L).keys()] : null;
    const sort = byId("sort");
    sort.append(new Option("uncertainty, highest first", "uncertainty"), new Option("order of the table", "row"));
    this.labels.forEach((label, r) => sort.append(new Option(`share of ${label}, highest first`, `label ${r}`)));
    sort.addEventListener("change", () => this.arrange());
    byId("filter").addEventListener("input", () => this.arrange());
    byId("page-back").addEventListener("click", () => { this.page -= 1; this.draw(); });
    byId("page-on").addEventListener("click", () => { this.page += 1; this.draw(); });
    byId("select-shown").addEventListener("click", () => { this.order.forEach(row => this.selected.add(row)); this.draw(); });
    byId("select-none").addEventListener("click", () => { this.selected.clear(); this.draw(); });
    byId("download").addEventListener("click", () => download("to_label.csv", this.selectedCsv()));
    byId("label-download").addEventListener("click", () => download("labelled.csv", this.labelledCsv()));
    this.arrange();
  }

  // Labels by their mean share over all rows, the largest first.
  largest() {
    const sums = new Float64Array(this.L);
    for (let at = 0; at < this.mean.length; at++) sums[at % this.L] += this.mean[at];
    return [...sums.keys()].sort((a, b) => sums[b] - sums[a]);
  }

  name(row) { return this.content.rows.ids ? this.content.rows.ids[row] : String(row); }
  means(row) { return this.mean.subarray(row * this.L, (row + 1) * this.L); }
  x(row) { return Float64Array.from(this.features.subarray(row * this.width, (row + 1) * this.width)); }

  arrange() {
    const by = byId("sort").value, test = this.test(byId("filter").value.trim());
    const key = by === "uncertainty" ? row => -this.uncertainty[row] : by === "row" ? row => row
      : row => -this.mean[row * this.L + Number(by.slice(6))];
    const keys = new Float64Array(this.count);
    const order = [];
    for (let row = 0; row < this.count; row++) if (test(row)) { keys[row] = key(row); order.push(row); }
    this.order = order.sort((a, b) => keys[a] - keys[b] || a - b);
    this.page = 0;
    this.draw();
  }

  // "name > 0.5" compares a feature or a label's share; anything else is looked for in names and text.
  test(text) {
    if (!text) return () => true;
    const tests = text.split(",").map(part => part.trim()).filter(Boolean).map(part => {
      const match = /^(.+?)\s*(<=|>=|<|>|=)\s*(-?[\d.]+(?:e-?\d+)?)$/i.exec(part);
      if (match) {
        const value = this.numbers(match[1].trim()), bound = Number(match[3]);
        const compare = { "<": a => a < bound, ">": a => a > bound, "<=": a => a <= bound, ">=": a => a >= bound, "=": a => a === bound }[match[2]];
        if (value) return row => compare(value(row));
      }
      const wanted = part.toLowerCase();
      return row => this.name(row).toLowerCase().includes(wanted)
        || this.texts.some(({ levels, codes }) => levels[codes[row]].toLowerCase().includes(wanted));
    });
    return row => tests.every(test => test(row));
  }

  numbers(name) {
    if (name === "uncertainty") return row => this.uncertainty[row];
    const label = this.labels.indexOf(name);
    if (label >= 0) return row => this.mean[row * this.L + label];
    const control = this.content.controls.find(one => one.name === name && one.kind === "number");
    return control ? row => this.features[row * this.width + control.at] : null;
  }

  draw() {
    const pages = Math.max(1, Math.ceil(this.order.length / PAGE));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const shown = this.order.slice(this.page * PAGE, (this.page + 1) * PAGE), table = byId("rows");
    const head = ["Select", this.content.rows.id, "Uncertainty", ...(this.shownLabels ? this.labels : ["Largest shares"])];
    table.tHead.replaceChildren(element("tr", {}, ...head.map((text, k) => element("th", { scope: "col", textContent: text, className: k === 2 || (k > 2 && this.shownLabels) ? "number" : "" }))));
    table.tBodies[0].replaceChildren(...shown.map(row => this.line(row)));
    byId("page").textContent = `page ${this.page + 1} of ${pages}`;
    byId("page-back").disabled = this.page === 0;
    byId("page-on").disabled = this.page >= pages - 1;
    byId("count").textContent = `${this.order.length.toLocaleString("en")} of ${this.count.toLocaleString("en")} rows, ${this.selected.size} selected`;
    byId("download").disabled = this.selected.size === 0;
    byId("label-download").disabled = this.kept.size === 0;
  }

  line(row) {
    const box = element("input", { type: "checkbox", checked: this.selected.has(row), ariaLabel: `Select ${this.name(row)}` });
    box.addEventListener("change", () => { box.checked ? this.selected.add(row) : this.selected.delete(row); this.draw(); });
    const choose = element("button", { type: "button", textContent: this.name(row) + (this.kept.has(row) ? " ✓" : "") });
    choose.addEventListener("click", () => this.onChoose(row));
    const shares = Array.from(this.means(row));
    const cells = this.shownLabels ? shares.map(percent)
      : [shares.map((share, r) => [share, r]).sort((a, b) => b[0] - a[0]).slice(0, 3).map(([share, r]) => `${this.labels[r]} ${percent(share)}`).join(", ")];
    const line = element("tr", { className: row === this.current ? "current" : "" }, element("td", {}, box), element("td", {}, choose),
      element("td", { className: "number", textContent: this.uncertainty[row].toFixed(4) }),
      ...cells.map(text => element("td", { className: this.shownLabels ? "number" : "free", textContent: text })));
    if (row === this.current) line.setAttribute("aria-current", "true");
    return line;
  }

  // A row's features as its table had them, if the page has them.
  cells(row) {
    const texts = new Map(this.texts.map(({ name, levels, codes }) => [name, levels[codes[row]]]));
    return this.content.controls.map(control => {
      if (texts.has(control.name)) return texts.get(control.name);
      if (control.kind !== "number") return "";
      const missing = control.indicator !== null && this.features[row * this.width + control.indicator] === 1;
      return missing ? "" : String(this.features[row * this.width + control.at]);
    });
  }

  selectedCsv() {
    const head = [this.content.rows.id, "query_score", ...this.content.controls.map(control => control.name), ...this.labels.map(label => `predicted_${label}`)];
    const rows = this.order.filter(row => this.selected.has(row));
    this.selected.forEach(row => { if (!rows.includes(row)) rows.push(row); });
    return csv([head, ...rows.map(row => [this.name(row), this.uncertainty[row].toPrecision(7), ...this.cells(row),
      ...Array.from(this.means(row), share => share.toFixed(6))])]);
  }

  labelledCsv() {
    const head = [this.content.rows.id, ...this.content.controls.map(control => control.name), ...this.labels];
    return csv([head, ...[...this.kept].map(([row, label]) => [this.name(row), ...this.cells(row), ...label])]);
  }
}

// Text that a spreadsheet program would take for a formula gets a single quote before it, as in the library's own files.
function csv(lines) {
  const isFormula = value => /^'*[=+\-@\t\r]/.test(value) && !/^[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?$/.test(value);
  const safe = value => isFormula(value) ? `'${value}` : value;
  const cell = value => /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  return lines.map(line => line.map(value => cell(safe(String(value)))).join(",")).join("\n") + "\n";
}

function download(name, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Shares of a label as typed: divided by their sum, six digits, the largest takes what rounding leaves.
function closedShares(values) {
  const total = values.reduce((a, b) => a + b, 0);
  const digits = values.map(value => Math.round(1e6 * value / total));
  digits[digits.indexOf(Math.max(...digits))] += 1e6 - digits.reduce((a, b) => a + b, 0);
  return digits.map(value => (value / 1e6).toFixed(6));
}
