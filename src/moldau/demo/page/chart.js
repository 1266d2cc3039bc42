// Lines over time as SVG: axes, bands behind them, a legend, and the values below the pointer.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 54, RIGHT = 8, TOP = 8, BOTTOM = 20;

export function make(name, attributes = {}, text = null, space = null) {
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

const draw = (name, attributes, text = null) => make(name, attributes, text, SVG);

export function clock(ms, withSeconds = true) {
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (withSeconds) parts.second = "2-digit";
  return new Date(ms).toLocaleTimeString([], parts);
}

// Steps of 1, 2 or 5 times a power of ten, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(at);
  return found;
}

// Bands of one severity that overlap are one: several sites may have something at the same time.
function merged(bands) {
  const found = [];
  for (const band of [...bands].sort((a, b) => a.start - b.start)) {
    const over = found.find((one) => one.severity === band.severity && band.start <= one.end);
    if (over) over.end = Math.max(over.end, band.end);
    else found.push({ ...band });
  }
  return found;
}

export class Chart {
  // series: {name, colour, dashed, area}; points come with `update` as [[ms, value or null], ...] for each series.
  constructor(place, { series, format, height = 190, zero = true, waiting = "no data yet" }) {
    this.series = series;
    this.format = format;
    this.height = height;
    this.zero = zero;
    this.waiting = waiting;
    this.lines = series.map(() => []);
    this.bands = [];
    this.box = make("div", { class: "chart" });
    this.svg = draw("svg", { height, role: "img" });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.legend = make("div", { class: "legend" });
    for (const one of series) this.legend.append(make("span", { class: one.colour }, one.name));
    this.box.append(this.svg, this.tip);
    place.replaceChildren(this.box, this.legend);
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerleave", () => { this.tip.hidden = true; this.cross?.remove(); });
  }

  // bands: {start, end, severity, text}
  update(lines, bands = []) {
    this.lines = lines;
    this.bands = bands;
    this.draw();
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    const points = this.lines.flat().filter((one) => one[1] !== null && one[1] !== undefined);
    this.svg.dataset.points = points.length;
    if (points.length < 2) {
      const text = draw("text", { x: width / 2, y: this.height / 2, "text-anchor": "middle", class: "waiting" }, this.waiting);
      this.svg.replaceChildren(text);
      return;
    }
    const times = points.map((one) => one[0]), values = points.map((one) => one[1]);
    const first = Math.min(...times), last = Math.max(...times);
    let low = Math.min(...values), high = Math.max(...values);
    if (this.zero) low = Math.min(0, low);
    if (high === low) high = low + 1;
    high += (high - low) * 0.06;
    if (low < 0) low -= (high - low) * 0.06;
    this.x = (ms) => LEFT + ((ms - first) / (last - first || 1)) * (width - LEFT - RIGHT);
    this.y = (value) => TOP + (1 - (value - low) / (high - low)) * (this.height - TOP - BOTTOM);
    const parts = [];
    for (const band of merged(this.bands)) {
      if (band.end < first || band.start > last) continue;
      const from = this.x(Math.max(first, band.start)), to = this.x(Math.min(last, band.end));
      const group = draw("g", { class: band.severity });
      group.append(
        draw("rect", { x: from, y: TOP, width: Math.max(2, to - from), height: this.height - TOP - BOTTOM, class: "band" }),
        draw("line", { x1: from, x2: Math.max(from + 2, to), y1: TOP, y2: TOP, class: "band-edge" }),
      );
      parts.push(group);
    }
    for (const at of ticks(low, high, 4)) {
      const y = this.y(at);
      parts.push(draw("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "grid" }));
      parts.push(draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, this.format(at)));
    }
    const marks = Math.max(2, Math.min(7, Math.floor(width / 130)));
    for (let index = 0; index < marks; index += 1) {
      const at = first + ((last - first) * index) / (marks - 1);
      const anchor = index === 0 ? "start" : index === marks - 1 ? "end" : "middle";
      parts.push(draw("text", { x: this.x(at), y: this.height - 5, "text-anchor": anchor }, clock(at, last - first < 7.2e6)));
    }
    this.series.forEach((one, index) => {
      const { line, area } = this.path(this.lines[index] ?? [], Math.max(low, 0));
      if (one.area && area) parts.push(draw("path", { d: area, class: `area fill ${one.colour}` }));
      if (line) parts.push(draw("path", { d: line, class: `line stroke ${one.colour}${one.dashed ? " dashed" : ""}` }));
    });
    this.svg.replaceChildren(...parts);
  }

  // A gap where a value is missing.
  path(points, base) {
    let line = "", area = "", begun = null;
    const close = (to) => { if (begun !== null) area += `L${this.x(to)} ${this.y(base)}L${this.x(begun)} ${this.y(base)}Z`; };
    let before = null;
    for (const [ms, value] of points) {
      if (value === null || value === undefined) { close(before); begun = before = null; continue; }
      const where = `${this.x(ms).toFixed(1)} ${this.y(value).toFixed(1)}`;
      line += (begun === null ? "M" : "L") + where;
      area += (begun === null ? "M" : "L") + where;
      if (begun === null) begun = ms;
      before = ms;
    }
    close(before);
    return { line, area };
  }

  point(event) {
    const times = (this.lines.find((one) => one.length) ?? []).map((one) => one[0]);
    if (!this.x || times.length < 2) return;
    const box = this.box.getBoundingClientRect();
    const at = event.clientX - box.left;
    const nearest = times.reduce((best, one) => (Math.abs(this.x(one) - at) < Math.abs(this.x(best) - at) ? one : best));
    const rows = [make("b", {}, clock(nearest))];
    this.series.forEach((one, index) => {
      const found = (this.lines[index] ?? []).find((point) => point[0] === nearest);
      if (found && found[1] !== null && found[1] !== undefined) rows.push(make("div", {}, `${one.name}: ${this.format(found[1])}`));
    });
    for (const band of this.bands) if (band.start <= nearest && nearest < band.end) rows.push(make("div", {}, band.text));
    this.tip.replaceChildren(...rows);
    this.tip.hidden = false;
    const x = this.x(nearest);
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, box.width - this.tip.offsetWidth))}px`;
    this.cross?.remove();
    this.cross = draw("line", { x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM, class: "cross" });
    this.svg.append(this.cross);
  }
}

// A line without axes.
export function spark(points, colour) {
  const svg = draw("svg", { viewBox: "0 0 110 22", preserveAspectRatio: "none" });
  if (points.length < 2) return svg;
  const high = Math.max(...points, 1);
  const d = points.map((one, index) => `${index ? "L" : "M"}${((index / (points.length - 1)) * 110).toFixed(1)} ${(20 - (one / high) * 18).toFixed(1)}`);
  svg.append(draw("path", { d: d.join(""), fill: "none", class: `line stroke ${colour}` }));
  return svg;
}
