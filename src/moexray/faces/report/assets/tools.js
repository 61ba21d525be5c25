// Small helpers shared by the chart scripts: units, colours, canvas set-up.
"use strict";
const Tools = (() => {
  const SECONDS = [["ns", 1e-9], ["µs", 1e-6], ["ms", 1e-3]];
  const BYTES = [["B", 0], ["KiB", 1], ["MiB", 1], ["GiB", 2], ["TiB", 2]];

  // The same words as moexray.faces.numbers.human; a test compares the two.
  function human(value, unit) {
    if (value === null || value === undefined || Number.isNaN(value)) return "unknown";
    if (unit === "bytes") return bytes(value);
    if (unit === "s") return seconds(value);
    if (unit === "ratio") {
      return value !== 0 && Math.abs(value) < 0.01 ? String(Number(value.toPrecision(2))) : grouped(value, 2);
    }
    const text = Number.isInteger(value)
      ? grouped(value, 0)
      : Math.abs(value) >= 1
        ? grouped(value, 2)
        : String(Number(value.toPrecision(3)));
    return unit === "count" || !unit ? text : text + " " + unit;
  }

  const grouped = (value, digits) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  function bytes(value) {
    const sign = value < 0 ? "-" : "";
    let size = Math.abs(value);
    for (const [name, digits] of BYTES) {
      if (Number(size.toFixed(digits)) < 1024) return sign + size.toFixed(digits) + " " + name;
      size /= 1024;
    }
    return sign + grouped(size, 2) + " PiB";
  }

  function seconds(value) {
    const sign = value < 0 ? "-" : "";
    const span = Math.abs(value);
    if (span === 0) return "0 s";
    if (span >= 3600) {
      const minutes = Math.round(span / 60);
      return sign + grouped(Math.floor(minutes / 60), 0) + " h " + String(minutes % 60).padStart(2, "0") + " min";
    }
    for (const [name, size] of SECONDS) {
      if (Number((span / size).toFixed(1)) < 1000) return sign + (span / size).toFixed(1) + " " + name;
    }
    return sign + span.toFixed(span < 10 ? 2 : 1) + " s";
  }

  // Axis labels: as human, without digits that say nothing.
  function tick(value, unit) {
    return human(value, unit).replace(/\.0+(?=\D|$)/, "").replace(/(\.\d*[1-9])0+(?=\D|$)/, "$1");
  }

  // Labels of an axis, told apart: where `tick` gives two of them the same digits, all get more.
  function labels(values, unit) {
    const coarse = values.map((value) => tick(value, unit));
    if (values.length < 2 || (unit !== "ratio" && new Set(coarse).size === coarse.length)) return coarse;
    const [name, size] = scale(Math.max(...values.map(Math.abs)), unit);
    const step = (values[1] - values[0]) / size;
    let digits = 0;
    while (digits < 9 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * 10 ** digits * step) digits += 1;
    return values.map((value) => grouped(value / size, digits) + (name ? " " + name : ""));
  }

  function scale(most, unit) {
    if (unit === "s") return SECONDS.findLast(([, size]) => most >= size && most < 1) || ["s", 1];
    if (unit !== "bytes") return [unit === "ratio" || unit === "count" ? "" : unit, 1];
    const power = clamp(Math.floor(Math.log2(most || 1) / 10), 0, BYTES.length - 1);
    return [BYTES[power][0], 1024 ** power];
  }

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // Gives a canvas its size in CSS pixels and returns a cleared drawing context for that size.
  function prepare(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px " + getComputedStyle(document.body).fontFamily;
    pen.textBaseline = "middle";
    return pen;
  }

  function shorten(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let end = text.length;
    while (end > 1 && pen.measureText(text.slice(0, end) + "…").width > width) end -= 1;
    return text.slice(0, end) + "…";
  }

  // Round steps for a time axis that starts at `from` and spans `span`, about `count` of them.
  function ticks(from, to, count) {
    const raw = (to - from) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    const out = [];
    for (let i = Math.ceil(from / step); i * step <= to && out.length < 100; i += 1) out.push(i * step);
    return out;
  }

  // Fills the legend of a figure from [text, colour] pairs.
  function legend(figure, entries) {
    const list = figure.querySelector("[data-legend]");
    list.textContent = "";
    for (const [text, fill] of entries) {
      const item = document.createElement("li");
      const swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = fill;
      item.append(swatch, text);
      list.append(item);
    }
  }

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  return { human, tick, labels, colour, prepare, shorten, ticks, legend, clamp };
})();
