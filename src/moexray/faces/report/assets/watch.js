// First script of the page: records every error of the others where a reader and a test see it.
"use strict";
(() => {
  const errors = [];
  const record = (text) => {
    errors.push(text);
    document.documentElement.dataset.errors = String(errors.length);
    const box = document.getElementById("errors");
    if (!box) return;
    box.hidden = false;
    box.textContent = "A chart could not be drawn; its table holds the same numbers. " + errors.join(" | ");
  };
  document.documentElement.dataset.errors = "0";
  document.documentElement.classList.add("scripted");
  window.addEventListener("error", (event) => record(String(event.message)));
  window.addEventListener("unhandledrejection", (event) => record(String(event.reason)));
  document.addEventListener("securitypolicyviolation", (event) =>
    record("blocked by policy: " + event.violatedDirective + " " + event.blockedURI));
  window.recordError = record;
})();
