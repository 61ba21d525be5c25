// The two canvas charts: the timeline of spans and the heat map of the balance.
"use strict";
const Timeline = (() => {
  const AXIS = 24;

  function draw(figure, data) {
    const canvas = figure.querySelector("canvas");
    const readout = figure.querySelector("[data-readout]");
    const all = [Math.min(...data.spans.map((s) => s[1])), Math.max(...data.spans.map((s) => s[1] + s[2]))];
    if (all[0] === all[1]) all[1] = all[0] + 1e-6;
    const order = data.spans.slice().sort((a, b) => b[2] - a[2]);
    const view = { from: all[0], to: all[1], drag: null, box: null };
    const used = new Set(data.spans.map((s) => s[3]));
    const kinds = data.kinds.map((kind) => [kind, Tools.colour("kind-" + kind)]);
    Tools.legend(figure, kinds.filter((_, index) => used.has(index)));
    const paint = () => { view.box = layout(canvas, data, view); lanes(data, order, view); };
    zooming(canvas, view, all, paint);
    canvas.onmousemove = (event) => {
      if (view.drag) return;
      const hit = find(order, view, event.offsetX, event.offsetY);
      readout.textContent = hit
        ? data.lanes[hit[0]] + ": " + hit[4] + " (" + data.kinds[hit[3]] + "), " + Tools.human(hit[2], "s") + " from " + Tools.human(hit[1], "s")
        : "";
    };
    paint();
  }

  function layout(canvas, data, view) {
    const width = canvas.parentElement.clientWidth;
    const row = Tools.clamp(900 / data.lanes.length, 3, 22);
    const height = Math.ceil(row * data.lanes.length) + AXIS;
    const pen = Tools.prepare(canvas, width, height);
    const widest = Math.max(...data.lanes.map((lane) => pen.measureText(lane).width));
    const left = Math.min(widest + 10, width * 0.3);
    return { pen, width, height, row, left, x: (t) => left + ((t - view.from) / (view.to - view.from)) * (width - left) };
  }

  function lanes(data, order, view) {
    const { pen, width, height, row, left, x } = view.box;
    const every = Math.ceil(12 / row);
    data.lanes.forEach((lane, index) => {
      const y = index * row;
      pen.fillStyle = Tools.colour(index % 2 ? "surface" : "stripe");
      pen.fillRect(left, y, width - left, row);
      pen.fillStyle = Tools.colour("ink-2");
      if (index % every === 0) pen.fillText(Tools.shorten(pen, lane, left - 8), 0, y + row / 2);
    });
    pen.strokeStyle = Tools.colour("grid");
    pen.textAlign = "center";
    for (const t of Tools.ticks(view.from, view.to, Math.max(2, (width - left) / 110))) {
      pen.fillStyle = Tools.colour("ink-2");
      const label = Tools.tick(t, "s");
      const half = pen.measureText(label).width / 2;
      pen.fillText(label, Tools.clamp(x(t), left + half, width - half), height - AXIS / 2);
      pen.fillRect(x(t), height - AXIS, 1, 4);
    }
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width - left, height);
    pen.clip();
    const fills = data.kinds.map((kind) => Tools.colour("kind-" + kind));
    for (const [lane, start, length, kind] of order) {
      if (start > view.to || start + length < view.from) continue;
      pen.fillStyle = fills[kind];
      pen.fillRect(x(start), lane * row + 1, Math.max(1, x(start + length) - x(start) - 0.5), Math.max(1, row - 2));
    }
    if (view.drag) {
      pen.fillStyle = Tools.colour("select");
      pen.fillRect(view.drag[0], 0, view.drag[1] - view.drag[0], height - AXIS);
    }
    pen.restore();
  }

  function find(order, view, px, py) {
    const { row, left, x } = view.box;
    const lane = Math.floor(py / row);
    let best = null;
    for (const span of order) {
      if (px < left || span[0] !== lane) continue;
      if (px >= x(span[1]) - 1 && px <= Math.max(x(span[1] + span[2]), x(span[1]) + 1)) best = span;
    }
    return best;
  }

  function zooming(canvas, view, all, paint) {
    const time = (px) => view.from + ((px - view.box.left) / (view.box.width - view.box.left)) * (view.to - view.from);
    const show = (from, to) => {
      const span = Tools.clamp(to - from, (all[1] - all[0]) * 1e-6, all[1] - all[0]);
      view.from = Tools.clamp(from, all[0], all[1] - span);
      view.to = view.from + span;
      paint();
    };
    canvas.onmousedown = (event) => { view.drag = [event.offsetX, event.offsetX]; };
    canvas.addEventListener("mousemove", (event) => {
      if (!view.drag) return;
      view.drag[1] = event.offsetX;
      paint();
    });
    canvas.onmouseleave = () => { view.drag = null; paint(); };
    canvas.onmouseup = () => {
      const drag = view.drag;
      view.drag = null;
      if (drag && Math.abs(drag[1] - drag[0]) > 4) show(time(Math.min(...drag)), time(Math.max(...drag)));
      else paint();
    };
    canvas.ondblclick = () => show(...all);
    canvas.onkeydown = (event) => {
      const span = view.to - view.from;
      const zoom = (by) => show(view.from + (span * (1 - by)) / 2, view.to - (span * (1 - by)) / 2);
      const act = {
        ArrowLeft: () => show(view.from - span / 5, view.to - span / 5),
        ArrowRight: () => show(view.from + span / 5, view.to + span / 5),
        "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => show(...all),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    };
  }

  return { draw };
})();

const HeatMap = (() => {
  const RIGHT = 92;
  const FOOT = 22;

  function draw(figure, data) {
    const canvas = figure.querySelector("canvas");
    const readout = figure.querySelector("[data-readout]");
    const means = data.values.map((line) => {
      const known = line.filter((cell) => cell !== null);
      return known.length ? known.reduce((a, b) => a + b, 0) / known.length : 0;
    });
    const box = layout(canvas, data);
    let at = null;
    cells(box, data, means);
    labels(box, data);
    const say = (line, column) => {
      const cell = data.values[line]?.[column];
      if (cell === undefined) { readout.textContent = ""; return; }
      const share = cell === null || !means[line] ? "" : ", " + (cell / means[line]).toFixed(2) + " of the row's mean";
      const score = data.scores[line] === null ? "" : ", balancedness " + data.scores[line].toFixed(2);
      readout.textContent = data.line + " " + data.layers[line] + ", " + data.axis + " " + data.columns[column] + ": " + Tools.human(cell, data.unit) + share + score;
    };
    canvas.onmousemove = (event) => say(Math.floor(event.offsetY / box.high), Math.floor((event.offsetX - box.left) / box.wide));
    canvas.onmouseleave = () => { readout.textContent = ""; };
    canvas.onkeydown = (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      at = at
        ? [Tools.clamp(at[0] + move[0], 0, data.layers.length - 1), Tools.clamp(at[1] + move[1], 0, data.columns.length - 1)]
        : [0, 0];
      cells(box, data, means);
      box.pen.strokeStyle = Tools.colour("ink");
      box.pen.lineWidth = 2;
      box.pen.strokeRect(box.left + at[1] * box.wide + 1, at[0] * box.high + 1, box.wide - 2, box.high - 2);
      say(...at);
    };
  }

  function layout(canvas, data) {
    const width = canvas.parentElement.clientWidth;
    const high = Tools.clamp(700 / data.layers.length, 3, 22);
    const height = Math.ceil(high * data.layers.length) + FOOT;
    const pen = Tools.prepare(canvas, width, height);
    const left = Math.min(Math.max(...data.layers.map((name) => pen.measureText(data.line + " " + name).width)) + 10, width * 0.3);
    const wide = Math.min((width - left - RIGHT) / data.columns.length, 130);
    return { pen, high, height, left, wide };
  }

  const channels = (name) => (Tools.colour(name).match(/[0-9a-f]{2}/gi) || []).map((pair) => parseInt(pair, 16));

  function cells({ pen, high, left, wide }, data, means) {
    const [cool, even, hot] = ["cool", "even", "hot"].map(channels);
    const gap = wide > 6 && high > 6 ? 1 : 0;
    pen.textAlign = "center";
    data.values.forEach((line, row) => line.forEach((cell, column) => {
      const x = left + column * wide;
      const share = cell === null || !means[row] ? null : Tools.clamp(cell / means[row], 0, 2) - 1;
      const end = share < 0 ? cool : hot;
      const mix = share === null ? null : even.map((from, i) => Math.round(from + (end[i] - from) * Math.abs(share)));
      pen.fillStyle = mix ? "rgb(" + mix.join(",") + ")" : Tools.colour("grid");
      pen.fillRect(x, row * high, Math.ceil(wide) - gap, Math.ceil(high) - gap);
      if (wide < 58 || high < 15) return;
      const light = mix ? 0.3 * mix[0] + 0.59 * mix[1] + 0.11 * mix[2] : 128;
      pen.fillStyle = light > 140 ? "#111" : "#fff";
      pen.fillText(cell === null ? "?" : Tools.human(cell, "count"), x + wide / 2, row * high + high / 2);
    }));
  }

  function labels({ pen, high, height, left, wide }, data) {
    const every = Math.ceil(13 / high);
    const right = left + wide * data.columns.length;
    pen.fillStyle = Tools.colour("ink-2");
    pen.textAlign = "left";
    data.layers.forEach((name, row) => {
      if (row % every) return;
      const y = row * high + high / 2;
      pen.fillText(Tools.shorten(pen, data.line + " " + name, left - 8), 0, y);
      if (data.scores[row] !== null) pen.fillText(data.scores[row].toFixed(2), right + 8, y);
    });
    if (data.scores.some((score) => score !== null)) pen.fillText("balancedness", right + 8, height - FOOT / 2 + 1);
    pen.textAlign = "center";
    const names = data.columns.map((name) => (wide > 50 ? data.axis + " " : "") + name);
    const widest = Math.max(...names.map((name) => pen.measureText(name).width)) + 6;
    const step = Math.ceil(widest / wide);
    names.forEach((name, column) => {
      if (column % step === 0) pen.fillText(name, left + (column + 0.5) * wide, height - FOOT / 2 + 1);
    });
  }

  return { draw };
})();
