// Time lines, drawn by uPlot; marks are numbered as in the list below each chart.
"use strict";
const Series = (() => {
  const POWERS_OF_TWO = Array.from({ length: 60 }, (_, i) => 2 ** i);
  const CLOCK_STEPS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1].flatMap((n) => [n, 2 * n, 5 * n])
    .concat([10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400])
    .concat(Array.from({ length: 30 }, (_, i) => 172800 * 2 ** i));
  const STEPS = Array.from({ length: 16 }, (_, i) => 10 ** i).flatMap((n) => [n, 2 * n, 5 * n]);
  const HEIGHT = 190;
  const PIN = 17; // pixels that a pin takes

  const INCRS = { s: { incrs: CLOCK_STEPS }, step: { incrs: STEPS } };

  function draw(figure, data) {
    const host = figure.querySelector(".plot");
    const readout = figure.querySelector("[data-readout]");
    host.textContent = "";
    Tools.legend(figure, data.lines.length > 1 ? data.lines.map((line, i) => [line.label, colour(data, i)]) : []);
    const plot = new uPlot(options(host.clientWidth, data, readout), [data.x, ...data.lines.map((line) => line.y)], host);
    host.onkeydown = (event) => step(event, plot, data);
    return plot;
  }

  function options(width, data, readout) {
    const axis = { stroke: Tools.colour("ink-2"), grid: { stroke: Tools.colour("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const points = { show: data.x.length < 80, size: 5 };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { size: 7 }, sync: { key: "moexray-" + data.xUnit } },
      scales: {
        x: { time: false },
        y: { range: (_, low, high) => range(low, high) },
      },
      axes: [
        { ...axis, size: 30, space: 105, ...(INCRS[data.xUnit] || {}), values: (_, all) => (data.xUnit === "step" ? all.map((x) => "step " + x.toLocaleString("en-US")) : Tools.labels(all, data.xUnit)) },
        { ...axis, size: (_, all) => Tools.clamp(14 + 7 * Math.max(...(all || []).map((text) => (text || "").length)), 50, 130), ...(data.unit === "bytes" ? { incrs: POWERS_OF_TWO } : {}), values: (_, all) => Tools.labels(all, data.unit) },
      ],
      series: [{}, ...data.lines.map((_, i) => ({ stroke: colour(data, i), width: 1.5, points, spanGaps: false }))],
      hooks: {
        draw: [(plot) => marks(plot, data)],
        setCursor: [(plot) => say(plot, data, readout)],
      },
    };
  }

  // Lines of memory have the colours of the memory map.
  const MEMORY = { reserved: "map-other", live: "map-live", stuck: "map-stuck" };
  const colour = (data, i) =>
    Tools.colour((data.lines.length > 1 && MEMORY[data.lines[i].label.split(" ")[0]]) || (i ? "c" + (i % 6) : "line"));

  // From zero unless that would press the line flat; a hundredth of the value is no cliff; room for the
  // numbered marks on top.
  function range(low, high) {
    if (low === null || high === null) return [0, 1];
    const least = 0.2 * Math.max(Math.abs(high), Math.abs(low)) || 1;
    const slack = Math.max(0, least - (high - low)) / 2;
    const from = low >= 0 && low < 0.6 * high ? 0 : low - slack - 0.15 * (high - low);
    const top = high + slack + 0.2 * (high - from || 1);
    return [low >= 0 ? Math.max(from, 0) : from, top];
  }

  function say(plot, data, readout) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined || plot.cursor.left < 0) {
      readout.textContent = "";
      return;
    }
    const x = data.xUnit === "step" ? "step " + Tools.human(data.x[at], "count") : Tools.human(data.x[at], data.xUnit);
    const name = (line) => (data.lines.length > 1 ? line.label + " " : "");
    readout.textContent = x + ": " + data.lines.map((line) => name(line) + Tools.human(line.y[at], data.unit)).join(", ");
  }

  function marks(plot, data) {
    const pen = plot.ctx;
    const ratio = window.devicePixelRatio || 1;
    const { left, top, width, height } = plot.bbox;
    pen.save();
    pen.font = "bold " + 11 * ratio + "px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const pins = [];
    for (const [x, number] of data.marks) {
      const at = plot.valToPos(x, "x", true);
      if (at < left || at > left + width) continue;
      const below = pins.filter((other) => Math.abs(other - at) < PIN * ratio).length;
      const high = top + (9 + PIN * Math.min(below, 6)) * ratio;
      pins.push(at);
      pen.strokeStyle = pen.fillStyle = Tools.colour("mark");
      pen.lineWidth = ratio;
      pen.setLineDash([4 * ratio, 3 * ratio]);
      pen.beginPath();
      pen.moveTo(at, top);
      pen.lineTo(at, top + height);
      pen.stroke();
      pen.beginPath();
      pen.arc(at, high, 8 * ratio, 0, 2 * Math.PI);
      pen.fill();
      pen.fillStyle = Tools.colour("surface");
      pen.fillText(String(number), at, high);
    }
    pen.restore();
  }

  function step(event, plot, data) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const now = plot.cursor.idx ?? (move > 0 ? -1 : data.x.length);
    const next = Tools.clamp(now + move, 0, data.x.length - 1);
    const y = data.lines[0].y[next];
    plot.setCursor({ left: plot.valToPos(data.x[next], "x"), top: y === null ? 10 : plot.valToPos(y, "y") });
  }

  return { draw, range };
})();
