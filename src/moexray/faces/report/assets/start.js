// Draws every chart, again when the width or the colour scheme changes, and wires copy and links.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const figures = Array.from(document.querySelectorAll("[data-chart]"));
  const painters = {
    timeline: (figure) => Timeline.draw(figure, data.timelines[Number(figure.dataset.index)]),
    series: (figure) => Series.draw(figure, data.series[Number(figure.dataset.index)]),
    map: (figure) => MemoryMap.draw(figure, data.maps[Number(figure.dataset.index)]),
    balance: (figure) => HeatMap.draw(figure, data.balances[Number(figure.dataset.index)]),
  };

  function drawAll() {
    for (const figure of figures) {
      const paint = painters[figure.dataset.chart];
      try {
        if (paint) paint(figure);
        figure.dataset.drawn = "true";
      } catch (error) {
        figure.dataset.drawn = "false";
        window.recordError(String(error));
      }
    }
    document.documentElement.dataset.charts = "drawn";
  }

  function copyButtons() {
    for (const button of document.querySelectorAll("button.copy")) {
      button.hidden = false;
      const code = button.previousElementSibling;
      button.setAttribute("aria-label", "Copy " + code.textContent);
      button.onclick = async () => {
        try {
          await navigator.clipboard.writeText(code.textContent);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(code);
          button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      };
    }
  }

  function openTarget() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    target.scrollIntoView({ block: "start" });
  }

  let waiting = 0;
  let width = document.body.clientWidth;
  const redraw = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); };
  addEventListener("resize", () => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    for (const finding of document.querySelectorAll("details.finding, details.further")) finding.open = true;
    drawAll();
  });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); drawAll(); });
  addEventListener("hashchange", openTarget);
  drawAll();
  copyButtons();
  openTarget();
})();
