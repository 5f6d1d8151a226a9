// Asks the API once a second and writes what it says into the page. Text only ever goes in as text.
const PERIOD_MS = 1000;
const TIMEOUT_MS = 5000;
const HISTORY = 180;
export const KEY = "graphserve-api-key";
const STATES = {
  ready: ["\u25cf", "good"], RUNNING: ["\u25cf", "good"], starting: ["\u25cb", "warn"], STARTING: ["\u25cb", "warn"],
  warming: ["\u25d0", "warn"], UPDATING: ["\u25d0", "warn"], RECOVERING: ["\u25d0", "warn"],
  draining: ["\u25bd", "warn"], STOPPING: ["\u25bd", "warn"], PENDING_MIGRATION: ["\u25bd", "warn"],
  failed: ["\u2715", "bad"], stopped: ["\u25a0", "quiet"],
};
const REASONS = {
  ineligible_misses: "not eligible", capacity_misses: "all slots taken", warmup_misses: "not seen often enough",
  memory_misses: "too little memory",
};
export const $ = (id) => document.getElementById(id);
const rates = [], latencies = [];
let graphs = null, status = null, lastMs = null;

// ---- small helpers ----

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

export function say(element, text, className) {
  if (element.textContent !== text) element.textContent = text;
  if (className !== undefined && element.className !== className) element.className = className;
}

// One child of `parent` for each item, made once for its key, in the order of the items.
function keep(parent, items, keyOf, create, update) {
  const held = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, place) => {
    const key = String(keyOf(item));
    let child = held.get(key);
    held.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
    update(child, item);
  });
  for (const gone of held.values()) gone.remove();
}

export const seconds = (value) => value == null ? "\u2013" : value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const count = (value) => (value ?? 0).toLocaleString("en");
const share = (hits, calls) => calls ? percent(hits / calls) : "\u2013";
const short = (id) => id.includes("#") ? id.split("#").pop() : id;

function ago(atS, nowS) {
  const s = Math.max(0, Math.round(nowS - atS));
  return s < 120 ? `${s} s ago` : s < 7200 ? `${Math.round(s / 60)} min ago` : `${Math.round(s / 3600)} h ago`;
}

function sayState(element, state, stale = false) {
  const [sign, kind] = STATES[state] ?? ["?", "warn"];
  say(element, `${sign} ${state.toLowerCase()}${stale ? ", silent" : ""}`, `state ${stale ? "warn" : kind}`);
}

// ---- parts of the page ----

function showTraffic(traffic) {
  const rows = [
    ["Requests a second", traffic.requests_per_s.toFixed(2)], ["In hand now", count(traffic.in_hand)],
    ["Latency, median", seconds(traffic.latency_s.p50)], ["Latency, 95 %", seconds(traffic.latency_s.p95)],
    ["First token, median", seconds(traffic.first_token_s.p50)], ["First token, 95 %", seconds(traffic.first_token_s.p95)],
    ["Refused (4xx)", count(traffic.refused)], ["Failed (5xx)", count(traffic.failed)],
  ];
  keep($("tiles"), rows, (row) => row[0], (row) => {
    const tile = make("div");
    tile.append(make("dt", "", row[0]), make("dd"));
    return tile;
  }, (tile, row) => say(tile.lastChild, row[1]));
  draw("rate", rates, traffic.requests_per_s, (top) => `top of the scale: ${top.toFixed(2)} a second`);
  draw("latency", latencies, traffic.latency_s.p50, (top) => `top of the scale: ${seconds(top)}`);
}

function draw(name, values, value, label) {
  values.push(value);
  if (values.length > HISTORY) values.shift();
  const known = values.filter((v) => v != null);
  const top = Math.max(...known, 0);
  const points = values.map((v, i) => v == null ? null : `${HISTORY - values.length + i},${top ? 38 - 36 * v / top : 38}`);
  const svg = $(`${name}-chart`);
  if (!svg.firstChild) svg.append(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
  svg.firstChild.setAttribute("points", points.filter((p) => p).join(" "));
  svg.setAttribute("aria-label", known.length ? `now ${known.at(-1).toFixed(3)}, highest ${top.toFixed(3)}` : "nothing yet");
  say($(`${name}-top`), known.length ? label(top) : "nothing yet");
}

function columnOf(name) {
  if (name === "Ingress") return 0;
  if (name.endsWith("Encoder")) return 1;
  return name === "Decoder" ? 2 : 3;
}

function showGraph(deployments, byReplica) {
  const graph = $("graph");
  if (!graph.firstChild) {
    for (const place of [0, 1, 2, 3]) {
      if (place === 1 || place === 2) {
        const arrow = make("div", "arrow");
        arrow.setAttribute("aria-hidden", "true");
        graph.append(arrow);
      }
      graph.append(make("div", place === 3 ? "column side" : "column"));
    }
  }
  const columns = [...graph.querySelectorAll(".column")];
  columns.forEach((column, place) => keep(
    column, deployments.filter((d) => columnOf(d.name) === place), (d) => d.name, (d) => {
      const box = make("div", "deployment");
      const head = make("div", "head");
      head.append(make("h3", "", d.name), make("span", "quiet"));
      box.append(head, make("ul"));
      return box;
    }, (box, d) => {
      const running = d.replicas.filter((r) => r.state === "RUNNING").length;
      say(box.querySelector(".head span"), `${running} of ${d.wanted} run`);
      keep(box.querySelector("ul"), d.replicas, (r) => r.replica_id, () => {
        const line = make("li");
        line.append(make("span", "id"), make("span"));
        return line;
      }, (line, r) => {
        const own = byReplica.get(r.replica_id);
        say(line.firstChild, short(r.replica_id));
        sayState(line.lastChild, r.state === "RUNNING" && own ? own.state : r.state, own?.stale);
      });
    }));
}

function shapeTable() {
  const table = make("table");
  const row = table.createTHead().insertRow();
  for (const title of ["Shape", "Items", "In a graph", "Graph"]) {
    const cell = make("th", "", title);
    cell.scope = "col";
    row.append(cell);
  }
  table.createTBody();
  return table;
}

function fillShapes(table, rows) {
  table.hidden = !rows.length;
  keep(table.tBodies[0], rows, (row) => row.shape, () => {
    const line = make("tr");
    line.append(make("td"), make("td"), make("td"), make("td"));
    return line;
  }, (line, row) => {
    const cells = [row.shape, count(row.calls), share(row.hits, row.calls), row.captured ? "\u25cf held" : "\u25cb none"];
    cells.forEach((text, place) => say(line.children[place], text));
  });
}

function statsLines(element, stats) {
  const calls = stats.graph_hits + stats.graph_misses;
  const meter = element.querySelector("progress");
  meter.value = stats.hit_rate;
  meter.setAttribute("aria-label", `hit rate ${percent(stats.hit_rate)}`);
  say(element.querySelector(".rate"),
    calls ? `${percent(stats.hit_rate)} of ${count(calls)} ${stats.unit} ran in a graph` : `no ${stats.unit} yet`);
  const why = Object.entries(REASONS).filter(([name]) => stats[name]).map(([name, word]) => `${word} ${count(stats[name])}`);
  const broken = stats.capture_failures + stats.replay_failures;
  if (broken) why.push(`broken captures or replays ${count(broken)}`);
  say(element.querySelector(".why"), why.length ? `Missed: ${why.join(", ")}` : "");
}

function card(title) {
  const box = make("div", "card");
  const head = make("div", "head");
  head.append(make("h3", "", title), make("span"));
  const meter = make("progress");
  meter.max = 1;
  box.append(head, make("p", "rate"), meter, make("p", "why quiet"), make("p", "facts quiet"));
  return box;
}

function showCoverage(totals, shapes, replicas) {
  keep($("coverage"), Object.entries(totals), ([encoder]) => encoder, ([encoder]) => {
    const box = card(encoder);
    box.append(shapeTable());
    return box;
  }, (box, [encoder, stats]) => {
    statsLines(box, stats);
    const held = replicas.filter((r) => r.encoder === encoder).reduce((sum, r) => sum + r.stats.num_graphs, 0);
    const made = stats.tokens_replayed + stats.tokens_padded;
    const padding = made ? `, ${percent(stats.tokens_padded / made)} of their tokens padding` : "";
    say(box.querySelector(".facts"), `${count(held)} graphs held${padding}`);
    fillShapes(box.querySelector("table"), shapes?.[encoder] ?? []);
  });
}

function showReplicas(replicas) {
  keep($("replicas"), replicas, (r) => r.start_id, (r) => {
    const box = card(r.replica_id);
    const more = make("details");
    more.append(make("summary", "", "Shapes"), shapeTable());
    box.append(more);
    return box;
  }, (box, r) => {
    sayState(box.querySelector(".head span"), r.state, r.stale);
    statsLines(box, r.stats);
    say(box.querySelector(".facts"), [
      `${r.encoder} on ${r.device}`, r.graphs_enabled ? `${count(r.stats.num_graphs)} graphs` : "graphs off",
      r.leaked_bytes ? `${count(r.leaked_bytes)} bytes leaked` : "", `reported ${seconds(r.age_s)} ago`,
    ].filter((part) => part).join(", "));
    fillShapes(box.querySelector("table"), r.shapes ?? []);
    box.querySelector("details").hidden = !(r.shapes ?? []).length;
  });
}

function showRecycles(recycles, nowS) {
  const rows = recycles.slice(-20).reverse();
  $("no-recycles").hidden = rows.length > 0;
  keep($("recycles"), rows, (r) => `${r.replica_id} ${r.requested_at}`, () => {
    const line = make("li");
    line.append(make("span", "id"), make("div"), make("div", "quiet"));
    return line;
  }, (line, r) => {
    say(line.children[0], r.replica_id);
    say(line.children[1], r.reason);
    const then = r.ready_at == null ? "replacement not ready yet"
      : `replaced by ${r.replacement ?? "another"} after ${seconds(r.ready_at - r.requested_at)}`;
    say(line.children[2], `${ago(r.requested_at, nowS)}, ${then}`);
  });
}

function showHealth(health) {
  const parts = Object.entries(health.parts ?? {}).map(([name, why]) => `${name} (${why})`).join(", ");
  const sign = health.status === "ok" ? "\u25cf" : "\u25b2";
  say($("health"), `${sign} ${health.status}${parts ? `: ${parts}` : ""}`, health.status === "ok" ? "good" : "warn");
}

// ---- asking ----

async function ask(path) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (path !== "health" && !answer.ok) throw Object.assign(new Error(`${path}: HTTP ${answer.status}`), { status: answer.status });
  return answer.json();
}

function render() {
  const nowS = status.now;
  showTraffic(status.traffic);
  showGraph(status.deployments, new Map(graphs.replicas.map((r) => [r.replica_id, r])));
  showCoverage(graphs.totals, status.shapes, graphs.replicas);
  showReplicas(graphs.replicas);
  showRecycles(graphs.recycles, nowS);
  say($("updated"), `As of ${new Date(nowS * 1000).toLocaleTimeString()}, counting since ${new Date(graphs.counting_since * 1000).toLocaleString()}`);
}

function complain(text) {
  const seen = lastMs === null ? "nothing was seen yet" : `what is below is ${seconds((Date.now() - lastMs) / 1000)} old`;
  $("notice").hidden = false;
  say($("notice"), `\u25b2 ${text}; ${seen}.`);
  $("report").classList.add("old");
}

async function look() {
  const [health, newGraphs, newStatus] = await Promise.allSettled([ask("health"), ask("v1/graphs"), ask("v1/status")]);
  if (health.status === "fulfilled") showHealth(health.value);
  else say($("health"), "\u2715 no answer", "bad");
  const locked = [newGraphs, newStatus].some((answer) => answer.reason?.status === 401);
  $("key").hidden = !locked;
  const failed = [newGraphs, newStatus].find((answer) => answer.status === "rejected");
  if (failed) return complain(locked ? "No report without a key" : `No report (${failed.reason.message})`);
  [graphs, status] = [newGraphs.value, newStatus.value];
  lastMs = Date.now();
  $("notice").hidden = true;
  $("report").hidden = false;
  $("report").classList.remove("old");
  return render();
}

async function run() {
  for (;;) {
    try {
      await look();
    } catch (error) {
      complain(`This page could not show the report (${error.message})`);
    }
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 10 * PERIOD_MS : PERIOD_MS));
  }
}

$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key-text").value);
});
run();
