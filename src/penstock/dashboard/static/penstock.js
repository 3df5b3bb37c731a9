// What pages do beyond HTML: they refresh themselves, open dialogs, react to keys, and look up state.
// Nothing is inlined and nothing is evaluated, so the strictest Content-Security-Policy holds.
"use strict";

// ── times in the zone of the reader ──────────────────────────────────────────────────────────────
// The server writes UTC. This converts each time to the reader's zone; its tooltip shows UTC.
function penstockTime(date) {
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
(() => {
  function local() {
    for (const element of document.querySelectorAll("[data-shows]")) {
      const said = element.dateTime ?? element.dataset.at;
      const date = new Date(said);
      if (Number.isNaN(date.getTime())) continue;
      const fraction = said.match(/\.\d+/)?.[0] ?? "";
      const text = penstockTime(date) + fraction;
      if (element.dataset.shows === "title") {
        element.title = text;
        continue;
      }
      if (!element.title) element.title = `${element.textContent} UTC`;
      element.textContent = element.dataset.shows === "clock" ? text.slice(11) : text;
    }
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    document.getElementById("zone").textContent = zone === "UTC" ? "All times are UTC." : `All times are in your zone, ${zone}.`;
  }
  document.addEventListener("DOMContentLoaded", local);
  document.addEventListener("penstock-shown", local);
})();

// ── refreshing ───────────────────────────────────────────────────────────────────────────────────
// The stream only reports that something changed. Then htmx fetches the same page and morphs it into this one:
// focus, scroll, open dialogs and unfolded details stay as they are.
(() => {
  const AT_MOST_MS = 1000; // at most one refresh in this time
  const AT_LEAST_MS = 30000; // without changes, since ages grow
  const PATIENCE_MS = 2000; // a shorter interruption is not shown
  const AGAIN_MS = [1000, 2000, 5000, 10000];

  let source = null;
  let tries = 0;
  let heard = Date.now(); // when the page was last up to date
  let refreshed = 0;
  let waiting = 0;
  let missing = 0;

  const live = () => document.getElementById("live");

  function refresh() {
    const element = live();
    if (!element?.hasAttribute("hx-get") || document.hidden || typeof htmx === "undefined") return;
    if (waiting) return;
    const in_ms = Math.max(0, refreshed + AT_MOST_MS - Date.now());
    waiting = setTimeout(() => {
      waiting = 0;
      refreshed = Date.now();
      htmx.trigger(live(), "penstock-refresh");
    }, in_ms);
  }

  function word(text, isLive) {
    const element = document.getElementById("stream");
    element.hidden = false;
    element.classList.toggle("is-live", isLive);
    const words = element.querySelector(".stream-word");
    if (words.textContent !== text) words.textContent = text;
  }

  function lost() {
    if (missing) return;
    missing = setTimeout(() => {
      document.getElementById("old-since").textContent = penstockTime(new Date(heard)).slice(11, 19);
      document.getElementById("old").hidden = false;
      word("not connected", false);
    }, PATIENCE_MS);
  }

  function found() {
    clearTimeout(missing);
    missing = 0;
    tries = 0;
    heard = Date.now();
    document.getElementById("old").hidden = true;
    word("live", true);
  }

  function listen() {
    const url = document.body.dataset.stream;
    if (!url || typeof EventSource === "undefined") return;
    source = new EventSource(url);
    source.onopen = () => {
      const wasLost = tries > 0 || missing;
      found();
      if (wasLost) refresh();
    };
    const changed = () => {
      found();
      refresh();
    };
    source.onmessage = changed;
    for (const name of ["revision", "change", "changed"]) source.addEventListener(name, changed);
    source.onerror = () => {
      lost();
      if (source.readyState !== EventSource.CLOSED) return; // the browser reconnects by itself
      const in_ms = AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)];
      tries += 1;
      setTimeout(listen, in_ms);
    };
  }

  document.addEventListener("DOMContentLoaded", () => {
    listen();
    setInterval(refresh, AT_LEAST_MS);
    setInterval(() => {
      if (document.querySelector("[data-waiting]")) refresh();
    }, AT_MOST_MS);
    document.addEventListener("visibilitychange", refresh);
    document.body.addEventListener("htmx:after:swap", () => document.dispatchEvent(new Event("penstock-shown")));
    document.body.addEventListener("htmx:error", lost);
    document.body.addEventListener("htmx:response:error", lost);
  });
  addEventListener("pagehide", () => source?.close());
})();

// ── dialogs ──────────────────────────────────────────────────────────────────────────────────────
(() => {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-opens]");
    if (opener && !opener.disabled) document.getElementById(opener.dataset.opens)?.showModal();
    if (event.target.closest("#help")) document.getElementById("keys").showModal();
    if (event.target instanceof HTMLDialogElement) event.target.close("no"); // a click outside of it
  });
  document.addEventListener("submit", (event) => {
    const asked = event.submitter?.formMethod !== "dialog" && event.target.method === "post";
    if (asked && event.submitter) setTimeout(() => (event.submitter.disabled = true)); // once
  });
})();

// ── keys ─────────────────────────────────────────────────────────────────────────────────────────
(() => {
  const SECOND_KEY_MS = 1200;
  let first = "";
  let timer = 0;

  function isTyping(target) {
    return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    clearTimeout(timer);
    const keys = first ? `${first} ${event.key}` : event.key;
    first = "";
    if (event.key === "?") {
      document.getElementById("keys").showModal();
    } else if (event.key === "t" && keys === "t") {
      document.getElementById("theme").click();
    } else if (keys === "g") {
      first = "g";
      timer = setTimeout(() => (first = ""), SECOND_KEY_MS);
      return;
    } else {
      const link = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === keys);
      if (!link) return;
      link.click();
    }
    event.preventDefault();
  });
})();

// ── state lookup ─────────────────────────────────────────────────────────────────────────────────
// The server renders the result as HTML: 64-bit numbers do not survive JSON.parse.
(() => {
  function say(place, text, kind) {
    const element = document.createElement("p");
    element.className = kind;
    element.textContent = text;
    place.replaceChildren(element);
  }

  async function look(place, url) {
    say(place, "Looking …", "quiet-text");
    try {
      const answer = await fetch(url, { headers: { Accept: "application/json" } }); // refusals come as JSON
      if (answer.ok) {
        place.innerHTML = await answer.text();
        document.dispatchEvent(new Event("penstock-shown"));
        return;
      }
      const content = await answer.json();
      say(place, content.error || content.detail || `The server answered with status ${answer.status}.`, "note bad");
    } catch (error) {
      say(place, `No answer: ${error.message}. Try again.`, "note bad");
    }
  }

  document.addEventListener("submit", (event) => {
    const form = event.target.closest("[data-lookup]");
    if (!form) return;
    event.preventDefault();
    const asked = new URLSearchParams(new FormData(form));
    look(form.closest(".lookup").querySelector(".found"), `${form.action}?${asked}`);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-largest]");
    if (button) look(button.closest(".lookup").querySelector(".found"), button.dataset.largest);
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-switch]")) return;
    const forms = [...event.target.closest(".lookup").querySelectorAll("[data-lookup]")];
    const wanted = Number(event.target.value);
    forms.forEach((form, at) => {
      form.hidden = at !== wanted;
      form.querySelector("[data-switch]").value = String(at);
    });
    forms[wanted].querySelector("[data-switch]").focus();
  });
})();
