// The live page: listens to the stream, keeps half an hour, draws at most once a second.
"use strict";
(() => {
  const KEPT = 1800;
  const ROWS = 200;
  const AGAIN_MS = 3000;
  const charts = JSON.parse(document.getElementById("chart-list").textContent);
  const points = [];
  const link = document.getElementById("link");
  const clock = (t) => new Date(t * 1000).toLocaleTimeString("en-GB");

  // As moexray.faces.plain.visible: text that would read otherwise than it is stored is shown as escapes.
  const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
  const visible = (text) => text.replace(UNSAFE, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

  const make = (name, text, kind) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = visible(text);
    if (kind) node.className = kind;
    return node;
  };

  const figures = charts.map((chart) => {
    const figure = make("div", undefined, "figure");
    const head = make("div", undefined, "chart-head");
    const now = make("span", "", "now");
    const legend = make("ul", undefined, "legend");
    legend.dataset.legend = "";
    const readout = make("p", "", "readout");
    readout.dataset.readout = "";
    head.append(make("h3", chart.name), now, legend, readout);
    const plot = make("div", undefined, "plot");
    plot.tabIndex = 0;
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", chart.name + "; its present value stands above");
    const absent = make("p", "No data yet.", "absent");
    figure.append(head, absent, plot);
    document.getElementById("charts").append(figure);
    return { chart, figure, now, plot, absent, drawn: null };
  });

  function draw() {
    const from = points.length ? points[points.length - 1].t_s : 0;
    for (const one of figures) {
      const { chart, figure, now, plot, absent } = one;
      const known = chart.lines.filter((line) => points.some((p) => p[line.key] !== null && p[line.key] !== undefined));
      absent.hidden = known.length > 0;
      plot.hidden = known.length === 0;
      if (!known.length) continue;
      const last = points[points.length - 1][known[0].key];
      now.textContent = Tools.human(last, chart.unit);
      const x = points.map((p) => p.t_s - from);
      const lines = known.map((line) => ({ label: line.label, y: points.map((p) => p[line.key] ?? null) }));
      if (one.drawn && one.drawn.width === plot.clientWidth && one.drawn.data.lines.length === lines.length) {
        Object.assign(one.drawn.data, { x, lines });
        one.drawn.plot.setData([x, ...lines.map((line) => line.y)]);
      } else {
        const data = { unit: chart.unit, xUnit: "s", marks: [], x, lines };
        one.drawn = { data, width: plot.clientWidth, plot: Series.draw(figure, data) };
      }
    }
    document.documentElement.dataset.points = String(points.length);
  }

  let due = false;
  function later() {
    if (due) return;
    due = true;
    setTimeout(() => { due = false; requestAnimationFrame(draw); }, 250);
  }

  function row(section, cells) {
    const box = document.getElementById(section);
    const table = box.querySelector("table");
    box.querySelector("p.meta").hidden = true;
    table.hidden = false;
    const line = make("tr", undefined, "fresh");
    for (const cell of cells) {
      const td = make("td", typeof cell === "string" ? cell : undefined);
      if (typeof cell !== "string") td.append(cell);
      line.append(td);
    }
    table.tBodies[0].prepend(line);
    while (table.tBodies[0].rows.length > ROWS) table.tBodies[0].deleteRow(-1);
    setTimeout(() => line.classList.remove("fresh"), 4000);
    return line;
  }

  function to(report, id) {
    const anchor = make("a", id);
    anchor.href = "/report/" + Number(report) + "/" + encodeURIComponent(id);
    return anchor;
  }

  const rank = (value) => (value === null || value === undefined ? "" : String(value));
  const told = {};
  told.point = (p) => {
    points.push(p);
    if (points.length > KEPT) points.shift();
    later();
  };
  told.spike = (s) => {
    const cause = s.cause === "unknown" ? "unknown" : to(s.report, s.cause);
    row("spikes", [clock(s.t_s), Tools.human(s.value_s, "s"), cause, rank(s.rank), s.source + ":" + s.line]);
  };
  told.finding = (f) => row("findings", [clock(f.t_s), f.severity, to(f.report, f.id), f.claim]);

  // The browser asks again by itself where the connection broke, not where the server refused it.
  let seen = 0;
  function listen() {
    const stream = new EventSource("/events?after=" + seen);
    for (const [kind, tell] of Object.entries(told)) {
      stream.addEventListener(kind, (event) => { seen = Number(event.lastEventId); tell(JSON.parse(event.data)); });
    }
    stream.onopen = () => { link.textContent = "live"; link.className = "badge open"; };
    stream.onerror = () => {
      link.textContent = "connection lost, trying again";
      link.className = "badge lost";
      if (stream.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS);
    };
  }
  listen();
  const again = () => { for (const one of figures) one.drawn = null; later(); };
  addEventListener("resize", later);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  document.documentElement.classList.add("scripted");
  document.documentElement.dataset.ready = "true";
})();
