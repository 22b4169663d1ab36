// Keeps the page of a build at what the server says. Without it the page shows one moment.
"use strict";
(() => {
  const words = (s) => s < 60 ? s.toFixed(0) + "s" : s < 3600 ? `${Math.floor(s / 60)}m ${Math.floor(s) % 60}s` : `${Math.floor(s / 3600)}h ${Math.floor(s / 60) % 60}m`;
  setInterval(() => {
    for (const e of document.querySelectorAll("[data-since]")) e.textContent = words(Math.max(0, (Date.now() - Date.parse(e.dataset.since)) / 1000));
  }, 1000);

  // What is new replaces the old, and the focus and the scrolled tables stay where they are.
  const replace = (page) => {
    const old = document.getElementById("news"), next = page.getElementById("news");
    const all = [...old.querySelectorAll("a, [tabindex]")], at = all.indexOf(document.activeElement);
    const scrolled = [...old.querySelectorAll(".scroll")].map((e) => [e.scrollLeft, e.scrollTop]);
    old.replaceWith(next);
    next.querySelectorAll(".scroll").forEach((e, i) => { if (scrolled[i]) [e.scrollLeft, e.scrollTop] = scrolled[i]; });
    if (at >= 0) next.querySelectorAll("a, [tabindex]")[at]?.focus({ preventScroll: true });
    document.querySelector("h1").textContent = page.querySelector("h1").textContent;
    document.title = page.title;
    document.body.dataset.revision = page.body.dataset.revision;
  };

  const ask = async () => {
    let pause = 2000;
    try {
      const state = await (await fetch("state.json", { cache: "no-cache" })).json();
      if (state.revision !== document.body.dataset.revision) {
        const html = await (await fetch("./", { cache: "no-cache" })).text();
        replace(new DOMParser().parseFromString(html, "text/html"));
      }
      const summary = document.getElementById("summary");
      if (summary.textContent !== state.summary) summary.textContent = state.summary;
      if (!state.report.active) pause = 5000;
    } catch {
      pause = 10000; // the server is away
    }
    setTimeout(ask, pause);
  };
  setTimeout(ask, 1000);
})();
