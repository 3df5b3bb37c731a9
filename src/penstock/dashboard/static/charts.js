// Draws the data of elements with `data-chart` (see pages/timings.py), and redraws it when it changes.
// An element with `data-value` also gets a point for each refresh of the page.
"use strict";
(() => {
  const LONGEST = 900; // the points that are kept
  const HEIGHT = 190;
  const BINARY = Array.from({ length: 50 }, (_, at) => 2 ** at); // a KB is 1,024 bytes: ticks are whole numbers of them
  const drawn = new WeakMap();

  const UNITS = {
    ms: (v) => (v >= 60000 ? `${+(v / 60000).toFixed(1)} min` : v >= 1000 ? `${+(v / 1000).toFixed(2)} s` : `${+v.toFixed(1)} ms`),
    bytes: (v) => {
      const units = ["B", "KB", "MB", "GB", "TB"];
      let at = 0;
      for (; v >= 1024 && at < units.length - 1; at += 1) v /= 1024;
      return `${+v.toFixed(1)} ${units[at]}`;
    },
    "rows/s": (v) => (v >= 1e6 ? `${+(v / 1e6).toFixed(1)} M` : v >= 1000 ? `${+(v / 1000).toFixed(1)} k` : `${+v.toFixed(1)}`),
  };

  // The browser resolves `light-dark()`, which a canvas does not know.
  function colour(element, name) {
    element.style.color = `var(--${name})`;
    const resolved = getComputedStyle(element).color;
    element.style.color = "";
    return resolved;
  }

  // The points that this tab has collected: they survive a visit of another page.
  function remembered(element) {
    const key = element.dataset.memory;
    if (!key) return [];
    let points = [];
    try {
      points = JSON.parse(sessionStorage.getItem(key) || "[]");
    } catch {
      points = [];
    }
    const now = Number(element.dataset.now);
    const value = element.dataset.value;
    if (value !== "" && (points.length === 0 || now > points[points.length - 1][0])) {
      points.push([now, Number(value)]);
      points = points.slice(-LONGEST);
      try {
        sessionStorage.setItem(key, JSON.stringify(points));
      } catch {
        // then the chart shows only the points of the journal
      }
    }
    return points;
  }

  function data(element, chart) {
    const live = remembered(element);
    const first = live.length ? live[0][0] : Infinity;
    const old = chart.x.map((x, at) => [x, ...chart.series.map((one) => one.values[at])]).filter((row) => row[0] < first);
    const rows = [...old, ...live];
    return Array.from({ length: chart.series.length + 1 }, (_, column) => rows.map((row) => row[column]));
  }

  // 24-hour clock in the zone of the reader; with seconds or the day if useful.
  function moments(_, ticks) {
    const span = ticks.length > 1 ? ticks[ticks.length - 1] - ticks[0] : 0;
    return ticks.map((at) => {
      const text = penstockTime(new Date(at * 1000));
      return span > 86400 ? text.slice(5, 16) : span < 300 ? text.slice(11, 19) : text.slice(11, 16);
    });
  }

  function options(element, chart) {
    const text = UNITS[chart.unit] || String;
    const axis = { stroke: colour(element, "muted"), grid: { stroke: colour(element, "line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width: Math.max(200, element.clientWidth),
      height: HEIGHT,
      legend: { live: true },
      cursor: { points: { size: 7 }, drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis, space: 90, values: moments }, { ...axis, size: 68, values: (_, ticks) => ticks.map(text), ...(chart.unit === "bytes" ? { incrs: BINARY } : {}) }],
      series: [
        { label: "at", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
        ...chart.series.map((one, at) => ({
          label: one.label,
          stroke: colour(element, one.tone),
          fill: at === 0 ? colour(element, `${one.tone}-soft`) : undefined,
          width: 1.6,
          points: { show: chart.x.length < 40 },
          value: (_, v) => (v == null ? "–" : text(v)),
        })),
      ],
    };
  }

  function draw(element) {
    const chart = JSON.parse(element.dataset.chart);
    const values = data(element, chart);
    const known = drawn.get(element);
    if (known && known.host.isConnected) {
      known.plot.setData(values);
      return;
    }
    element.replaceChildren();
    if (values[0].length < 2) {
      const words = document.createElement("p");
      words.className = "quiet-text";
      words.textContent = "Not enough data for a chart yet.";
      element.append(words);
      return;
    }
    const host = document.createElement("div");
    element.append(host);
    drawn.set(element, { host, plot: new uPlot(options(element, chart), values, host) });
  }

  function drawAll() {
    if (typeof uPlot === "undefined") return;
    document.querySelectorAll("[data-chart]").forEach(draw);
  }

  function anew() {
    document.querySelectorAll("[data-chart]").forEach((element) => {
      drawn.get(element)?.plot.destroy();
      drawn.delete(element);
    });
    drawAll();
  }

  let resizing = 0;
  document.addEventListener("DOMContentLoaded", drawAll);
  document.addEventListener("penstock-shown", drawAll);
  document.addEventListener("penstock-theme", anew);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(anew, 150);
  });
})();
