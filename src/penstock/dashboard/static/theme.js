// Applies the chosen theme before anything is painted. "auto" is the theme of the system.
"use strict";
(() => {
  const THEMES = ["auto", "light", "dark"];
  const KEY = "penstock-theme";
  const root = document.documentElement;

  function chosen() {
    try {
      const kept = localStorage.getItem(KEY);
      return THEMES.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // the browser stores nothing
    }
  }

  function show(theme) {
    root.dataset.theme = theme;
    const word = document.querySelector("#theme .theme-word");
    if (word) word.textContent = theme[0].toUpperCase() + theme.slice(1);
  }

  function next() {
    const theme = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // then the choice lasts for this page
    }
    show(theme);
    document.dispatchEvent(new Event("penstock-theme"));
  }

  show(chosen());
  document.addEventListener("DOMContentLoaded", () => {
    show(chosen());
    document.getElementById("theme")?.addEventListener("click", next);
  });
})();
