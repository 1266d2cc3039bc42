// Asks for the state every other second and draws it. All that is shown comes from the tables of the pipeline.
import { Chart, clock, make, spark } from "./chart.js";

const EVERY_MS = 2000;
const ALL = "all sites";
const byId = (id) => document.getElementById(id);
const number = (value, digits = 0) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });
const percent = (value, digits = 1) => `${number(value * 100, digits)} %`;
const signed = (value) => {
  const size = number(Math.abs(value) * 100, 0);
  return size === "0" ? "0 %" : `${value > 0 ? "+" : "−"}${size} %`;
};
const compact = (value) => (Math.abs(value) >= 10000 ? `${number(value / 1000, 1)}k` : number(value, 2));

let chosen = ALL;
let newest = null;

const charts = {
  requests: new Chart(byId("requests"), {
    height: 240, format: compact,
    series: [
      { name: "yesterday", colour: "grey", dashed: true },
      { name: "expected", colour: "teal", dashed: true },
      { name: "today", colour: "blue", area: true },
    ],
  }),
  errors: new Chart(byId("errors"), { format: (value) => percent(value), series: [{ name: "errors", colour: "red", area: true }] }),
  latency: new Chart(byId("latency"), {
    format: (value) => `${compact(value)} ms`,
    series: [{ name: "p99", colour: "violet" }, { name: "p95", colour: "amber" }, { name: "p50", colour: "teal" }],
  }),
  users: new Chart(byId("users"), {
    format: compact,
    series: [{ name: "exact", colour: "blue", area: true }, { name: "HyperLogLog", colour: "amber", dashed: true }],
  }),
  trend: new Chart(byId("trend"), {
    format: (value) => signed(value), waiting: "yesterday is not over yet",
    series: [{ name: "change against the same time yesterday", colour: "violet", area: true }],
  }),
  hours: new Chart(byId("hours"), {
    height: 235, format: compact,
    series: [{ name: "users", colour: "blue", area: true }, { name: "HyperLogLog", colour: "amber", dashed: true }],
  }),
};

// The minutes of the chosen sites, added up: [ms, requests, errors, p50, p95, p99].
function minutesOf(state) {
  if (chosen !== ALL) return state.sites[chosen] ?? [];
  const sums = new Map();
  for (const rows of Object.values(state.sites)) {
    for (const [ms, requests, errors, p50, p95, p99] of rows) {
      const sum = sums.get(ms) ?? [ms, 0, 0, 0, 0, 0];
      sum[1] += requests; sum[2] += errors;
      sum[3] += p50 * requests; sum[4] += p95 * requests; sum[5] += p99 * requests;
      sums.set(ms, sum);
    }
  }
  const rows = [...sums.values()].sort((a, b) => a[0] - b[0]);
  return rows.map(([ms, requests, errors, ...weighted]) => [ms, requests, errors, ...weighted.map((one) => one / requests)]);
}

// What was expected and what was yesterday, where all chosen sites know it.
function trendOf(state, metric) {
  const names = chosen === ALL ? Object.keys(state.trend) : [chosen];
  const sums = new Map();
  for (const name of names) {
    for (const [ms, value, expected, yesterday] of state.trend[name]?.[metric] ?? []) {
      const sum = sums.get(ms) ?? { ms, value: 0, expected: 0, yesterday: 0, count: 0 };
      const add = (one, other) => (one === null || other === null ? null : one + other);
      sum.value += value; sum.count += 1;
      sum.expected = add(sum.expected, expected); sum.yesterday = add(sum.yesterday, yesterday);
      sums.set(ms, sum);
    }
  }
  return [...sums.values()].filter((one) => one.count === names.length).sort((a, b) => a.ms - b.ms);
}

function bandsOf(state, metric) {
  const own = state.anomalies.filter((one) => one.metric === metric && (chosen === ALL || one.site === chosen));
  return own.map((one) => ({ start: one.start, end: one.end, severity: one.severity, text: `${one.site}: ${kind(one)}` }));
}

const kind = (one) => one.kind.replace("_", " ");

function show(state) {
  newest = state;
  showSites(state);
  const seconds = state.scale.minute / 1000;
  const minutes = minutesOf(state);
  // The minute at hand and the one before are not complete.
  const complete = minutes.slice(0, -2);
  const trend = trendOf(state, "requests");
  const rate = (one) => (one === null ? null : one / seconds);
  charts.requests.update([
    trend.map((one) => [one.ms, rate(one.yesterday)]),
    trend.map((one) => [one.ms, rate(one.expected)]),
    complete.map((one) => [one[0], one[1] / seconds]),
  ], bandsOf(state, "requests"));
  charts.errors.update([complete.map((one) => [one[0], one[2] / one[1]])], bandsOf(state, "errors"));
  charts.latency.update([5, 4, 3].map((column) => complete.map((one) => [one[0], one[column]])), bandsOf(state, "latency"));
  byId("latency-note").textContent = chosen === ALL ? "percentiles of the sites, averaged by requests" : "percentiles";
  const active = state.active.minute.slice(0, -2);
  charts.users.update([active.map((one) => [one[0], one[1]]), active.map((one) => [one[0], one[3]])]);
  // Nor is the hour at hand.
  const hours = state.active.hour.slice(0, -1);
  charts.hours.update([hours.map((one) => [one[0], one[1]]), hours.map((one) => [one[0], one[3]])]);
  charts.trend.update([trend.filter((one) => one.yesterday).map((one) => [one.ms, one.value / one.yesterday - 1])], []);
  showTiles(state, complete, active, trend, seconds);
  showSiteTable(state, seconds);
  showAnomalies(state);
  showPipeline(state);
  byId("scale").textContent =
    `A day of this demo takes ${span(state.scale.day)}, an hour ${span(state.scale.hour)}, a minute ${span(state.scale.minute)}.`;
}

const span = (ms) => (ms < 120000 ? `${number(ms / 1000, 1)} s` : ms < 7200000 ? `${number(ms / 60000)} minutes` : `${number(ms / 3600000)} hours`);

function showSites(state) {
  const names = [ALL, ...Object.keys(state.sites)];
  const place = byId("sites");
  if (place.dataset.names !== names.join()) {
    place.dataset.names = names.join();
    place.replaceChildren(...names.map((name) => {
      const button = make("button", { type: "button" }, name);
      button.addEventListener("click", () => { chosen = name; show(newest); });
      return button;
    }));
  }
  const alarms = new Set(state.anomalies.filter((one) => !one.is_over).map((one) => one.site));
  for (const button of place.children) {
    button.setAttribute("aria-pressed", String(button.textContent === chosen));
    button.classList.toggle("alarm", alarms.has(button.textContent));
  }
}

function showTiles(state, complete, active, trend, seconds) {
  const last = complete.at(-1), now = active.at(-1);
  const compared = trend.filter((one) => one.yesterday).at(-1);
  const open = state.anomalies.filter((one) => !one.is_over && (chosen === ALL || one.site === chosen)).length;
  const change = compared ? compared.value / compared.yesterday - 1 : null;
  const tiles = [
    ["requests a second", last ? number(last[1] / seconds) : "–", change === null ? "" : `${signed(change)} against yesterday`, change === null ? "" : change >= 0 ? "up" : "down"],
    ["errors", last ? percent(last[2] / last[1]) : "–", last ? `${number(last[2])} of ${number(last[1])}` : "", ""],
    ["latency, p95", last ? `${number(last[4])} ms` : "–", last ? `p50 ${number(last[3])} ms` : "", ""],
    ["active users", now ? number(now[1]) : "–", now ? `${number(now[3])} estimated` : "", ""],
    ["active sites", now ? number(now[2]) : "–", "", ""],
    ["anomalies at hand", number(open), `${number(state.anomalies.length)} seen lately`, "", open ? "alarm" : ""],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, value, note, tone, alarm = ""]) => {
    const tile = make("div", { class: `tile ${alarm}` });
    tile.append(make("span", {}, name), make("b", {}, value), make("i", { class: tone }, note || "\u00a0"));
    return tile;
  }));
}

function table(titles, rows) {
  const whole = make("table"), head = make("tr");
  head.append(...titles.map((title) => make("th", { scope: "col" }, title)));
  whole.append(head, ...rows.map((cells) => {
    const row = make("tr");
    row.append(...cells.map((cell) => {
      const place = make("td");
      place.append(cell);
      return place;
    }));
    return row;
  }));
  return whole;
}

function showSiteTable(state, seconds) {
  const rows = Object.entries(state.sites).map(([name, all]) => {
    const minutes = all.slice(0, -2), last = minutes.at(-1);
    if (!last) return [name, "–", "–", "–", "–", ""];
    const line = spark(minutes.map((one) => one[1]), "blue");
    return [name, number(last[1] / seconds), percent(last[2] / last[1]), `${number(last[4])} ms`, number(last[6]), line];
  });
  byId("site-table").replaceChildren(table(["site", "requests/s", "errors", "p95", "users", "lately"], rows));
}

function showAnomalies(state) {
  const own = state.anomalies.filter((one) => chosen === ALL || one.site === chosen);
  byId("anomaly-note").textContent = own.length ? "newest first" : "none yet: the detector learns what is usual first";
  byId("anomalies").replaceChildren(...own.slice(0, 16).map((one) => {
    const item = make("li");
    const until = one.is_over ? `${clock(one.start)} – ${clock(one.end)}` : `since ${clock(one.start)}`;
    item.append(
      make("span", { class: `badge ${one.severity}` }, one.severity),
      make("b", {}, `${one.site}: ${kind(one)} of ${one.metric}`),
      make("time", {}, until),
      make("p", {}, one.explanation),
    );
    return item;
  }));
}

function showPipeline(state) {
  const lag = state.queries.reduce((sum, one) => sum + (one.lag ?? 0), 0);
  const failing = state.queries.filter((one) => one.state !== "running").length;
  byId("pipeline-note").textContent = state.queries.length
    ? `${state.queries.length} ${state.queries.length === 1 ? "query" : "queries"}, ${failing ? `${failing} not running, ` : ""}${number(lag)} records behind`
    : "Spark is starting";
  byId("queries").replaceChildren(table(["query", "state", "rows/s", "batch", "lag", "state rows"], state.queries.map((one) => {
    const status = make("span", { class: one.state === "running" ? "" : "bad" }, one.state);
    return [`${one.pipeline}.${one.name}`, status, number(one.input_rows_per_second), one.batch_ms === null ? "–" : `${number(one.batch_ms)} ms`, number(one.lag), number(one.state_rows)];
  })));
  const letters = state.dead_letters;
  byId("letters-note").textContent = `${number(letters.count)} records that could not be read`;
  byId("letters").replaceChildren(...letters.newest.map((one) => {
    const item = make("li", {}, one.reason);
    item.append(make("span", {}, ` · partition ${one.partition}, offset ${one.offset}`));
    return item;
  }));
}

function tell(text, look) {
  const status = byId("status");
  status.textContent = text;
  status.className = `pill ${look}`;
}

async function ask() {
  try {
    const answer = await fetch("api/state", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const state = await answer.json();
    show(state);
    const last = Math.max(0, ...state.active.minute.map((one) => one[0] + state.scale.minute));
    const behind = Math.max(0, state.now - last);
    // What is new goes through three queries, one batch each, which on a slow machine take their time.
    const usual = 5 * Math.max(0, ...state.queries.map((one) => one.batch_ms ?? 0));
    if (!last) tell(state.queries.length ? "Spark is up, the first data is on its way" : "Spark is starting", "stale");
    else if (behind > Math.max(30000, 3 * state.scale.minute, usual)) tell(`nothing new since ${clock(last)}`, "stale");
    else tell("live", "live");
  } catch (error) {
    tell("the demo has stopped", "stale");
  }
  setTimeout(ask, EVERY_MS);
}

ask();
