// The memory map: every segment laid out in rows of equal bytes, runs coloured by state or call site.
"use strict";
const MemoryMap = (() => {
  const ROW = 13;
  const GAP = 2;
  const MOST_ROWS = 44;

  function draw(figure, data) {
    const canvas = figure.querySelector("canvas");
    const readout = figure.querySelector("[data-readout]");
    const view = { by: figure.dataset.by || "state", at: null };
    const starts = edges(data);
    Object.assign(view, { from: 0, to: starts.total });
    const paint = () => {
      view.box = layout(canvas, starts.total, view);
      fills(figure, data, view);
      runs(data, starts, view);
      if (view.at !== null) outline(starts, view);
    };
    for (const button of figure.querySelectorAll("[data-by]")) {
      button.onclick = () => {
        view.by = figure.dataset.by = button.dataset.by;
        paint();
      };
    }
    canvas.onmousemove = (event) => {
      const hit = find(starts, view, event.offsetX, event.offsetY);
      readout.textContent = hit === null ? "" : say(data, hit);
    };
    canvas.onmouseleave = () => { readout.textContent = ""; };
    // Shows a part of the bytes, `factor` times as long as now, around a byte.
    const zoom = (factor, around) => {
      const span = Tools.clamp((view.to - view.from) * factor, Math.min(starts.total, 2 ** 16), starts.total);
      view.from = Tools.clamp(around - span / 2, 0, starts.total - span);
      view.to = view.from + span;
      paint();
    };
    canvas.ondblclick = (event) => {
      const hit = find(starts, view, event.offsetX, event.offsetY);
      if (hit !== null) zoom(event.shiftKey ? 4 : 0.25, starts.run[hit]);
    };
    canvas.onkeydown = (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const factor = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity }[event.key];
      if (event.ctrlKey || event.metaKey || event.altKey || !(move || factor)) return;
      event.preventDefault();
      const seen = view.at === null ? null : starts.segment[view.at];
      if (factor) { zoom(factor, seen ?? (view.from + view.to) / 2); return; }
      view.at = view.at === null ? 0 : Tools.clamp(view.at + move, 0, data.segments.length - 1);
      readout.textContent = "segment " + (view.at + 1) + ": " + data.segments[view.at];
      paint();
    };
    paint();
  }

  // First byte of each run and segment, counted over all segments.
  function edges(data) {
    const run = [];
    const segment = new Array(data.segments.length).fill(null);
    const ends = new Array(data.segments.length).fill(0);
    let total = 0;
    for (const [owner, bytes] of data.runs) {
      run.push(total);
      if (segment[owner] === null) segment[owner] = total;
      total += bytes;
      ends[owner] = total;
    }
    return { run, segment, ends, total };
  }

  function layout(canvas, total, { from, to }) {
    const width = canvas.parentElement.clientWidth;
    const rows = Tools.clamp(Math.ceil(total / 2 ** 27), 4, MOST_ROWS); // 128 MiB a row, up to as many as fit
    const pen = Tools.prepare(canvas, width, rows * (ROW + GAP));
    return { pen, width, rows, from, perRow: (to - from) / rows };
  }

  function fills(figure, data, view) {
    for (const button of figure.querySelectorAll("[data-by]")) {
      button.setAttribute("aria-pressed", String(button.dataset.by === view.by));
    }
    const sums = data.kinds.map((_, kind) => data.runs.reduce((sum, run) => sum + (run[2] === kind ? run[1] : 0), 0));
    const state = data.kinds.map((kind) => Tools.colour("map-" + kind));
    const site = data.sites.map((_, index) => Tools.colour("c" + index));
    const other = Tools.colour("map-other");
    const free = Tools.colour("map-cached");
    view.fill = view.by === "state"
      ? (run) => state[run[2]]
      : (run) => (run[2] > 1 ? free : run[3] < 0 ? other : site[run[3]]);
    const words = { live: "live", pending: "live, waits for a stream", stuck: "stuck: free beside live blocks", cached: "cached: can go back" };
    const entries = view.by === "state"
      ? data.kinds.map((kind, index) => [words[kind] + " " + Tools.human(sums[index], "bytes"), state[index], sums[index]])
      : [
        ...data.sites.map(([name, bytes], index) => [name + " " + Tools.human(bytes, "bytes"), site[index], 1]),
        ["other live", other, data.runs.some((run) => run[2] < 2 && run[3] < 0)],
        ["free", free, sums[2] + sums[3]],
      ];
    Tools.legend(figure, entries.filter((entry) => entry[2]));
  }

  // Calls back with the pieces of a stretch of bytes, one for each row that it touches.
  function pieces({ width, rows, from: first, perRow }, start, end, call) {
    const from = Math.max(start - first, 0);
    const to = end - first;
    if (to <= 0) return;
    for (let row = Math.floor(from / perRow); row < rows && row * perRow < to; row += 1) {
      const left = (Math.max(from - row * perRow, 0) / perRow) * width;
      const right = (Math.min(to - row * perRow, perRow) / perRow) * width;
      call(left, row * (ROW + GAP), right - left);
    }
  }

  function runs(data, starts, view) {
    const { pen } = view.box;
    data.runs.forEach((run, index) => {
      pen.fillStyle = view.fill(run);
      pieces(view.box, starts.run[index], starts.run[index] + run[1], (x, y, wide) => pen.fillRect(x, y, Math.max(wide, 0.3), ROW));
    });
    pen.fillStyle = Tools.colour("surface");
    const few = data.segments.length < view.box.rows * 60;
    for (const start of starts.segment) {
      if (start !== null && few) pieces(view.box, start, start + 1, (x, y) => pen.fillRect(x - 0.5, y, 1, ROW));
    }
  }

  function outline(starts, view) {
    const { pen } = view.box;
    if (starts.segment[view.at] === null) return;
    pen.strokeStyle = Tools.colour("ink");
    pen.lineWidth = 2;
    pieces(view.box, starts.segment[view.at], starts.ends[view.at], (x, y, wide) => pen.strokeRect(x, y, Math.max(wide, 2), ROW));
  }

  function find(starts, view, px, py) {
    const { width, rows, from, perRow } = view.box;
    const row = Math.floor(py / (ROW + GAP));
    if (px < 0 || px >= width || row < 0 || row >= rows) return null;
    const at = from + (row + px / width) * perRow;
    let low = 0;
    let high = starts.run.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts.run[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  function say(data, index) {
    const [segment, bytes, kind, site] = data.runs[index];
    const who = kind < 2 && site >= 0 ? " of " + data.sites[site][0] : "";
    return Tools.human(bytes, "bytes") + " " + data.kinds[kind] + who + "; segment " + data.segments[segment];
  }

  return { draw };
})();
