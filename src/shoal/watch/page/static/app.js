// The page: which view the address names, following the server's changes, and the keyboard.

import { ask, follow, takeToken } from "./api.js";
import { plotly } from "./charts.js";
import { el } from "./dom.js";
import { CompareView, RunsView } from "./runs.js";
import { RunView } from "./run.js";
import { TrainView } from "./train.js";

const SLOWEST = 400; // milliseconds between two refreshes at the least
const main = document.getElementById("main");
const live = document.getElementById("live");
const trouble = document.getElementById("trouble");
let view = null;
let ending = null;

class HelpView {
  run = null;
  constructor() {
    const keys = [["/", "filter the runs"], ["1 … 9, 0", "open a tab of a run"], ["← →", "between tabs, or scroll the timeline"],
      ["r", "list of runs"], ["t", "train without code"], ["?", "this page"]];
    this.element = el("div", {}, el("h1", {}, "Help"),
      el("p", {}, "This page reads the record of runs while they go on; it changes nothing in them but by the buttons."),
      el("table", {}, el("tbody", {}, keys.map(([key, words]) => el("tr", {}, el("th", {}, key), el("td", {}, words))))),
      el("p", {}, "Whatever is shown is also JSON under /api; docs/watch.md lists the addresses."));
  }
  async refresh() {}
}

function choose() {
  const words = new URLSearchParams(location.hash.slice(1));
  if (words.has("run")) return new RunView(words.get("run"), words.get("tab"));
  if (words.has("compare")) return new CompareView(words.getAll("compare"), words);
  if (words.has("train")) return new TrainView();
  if (words.has("help")) return new HelpView();
  return new RunsView();
}

function complain(error) {
  trouble.hidden = error === null;
  if (error === null) return;
  trouble.textContent = error.status === 401 ? `Refused: ${error.message}`
    : error.status ? error.message : "The server does not answer; it may have ended. `shoal watch` opens it again.";
}

// One refresh at a time; what changes meanwhile is drawn by the next.
function makeRefresh(shown) {
  let busy = false, again = false;
  return async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      try {
        await shown.refresh();
        live.textContent = `as of ${new Date().toLocaleTimeString("sv")}`;
        if (view === shown) complain(null);
      } catch (error) {
        if (view === shown) complain(error);
      }
      await new Promise((done) => setTimeout(done, SLOWEST));
    } while (again && view === shown);
    busy = false;
  };
}

function open() {
  if (location.hash.startsWith("#main")) { main.focus(); return; }
  ending?.abort();
  ending = new AbortController();
  view = choose();
  main.replaceChildren(view.element);
  document.querySelectorAll("nav a[data-page]").forEach((link) => {
    const here = location.hash.startsWith(`#${link.dataset.page}`);
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  });
  const refresh = makeRefresh(view);
  view.redraw = refresh;
  refresh();
  if (!view.still) follow(view.run ?? null, ending.signal, refresh, (error) => complain(error));
}

function press(event) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { document.querySelector("input[type=search]")?.focus(); event.preventDefault(); }
  else if (event.key === "r") location.hash = "#runs";
  else if (event.key === "t") location.hash = "#train";
  else if (event.key === "?") location.hash = "#help";
  else if (/^[0-9]$/.test(event.key)) document.querySelectorAll("[role=tab]")[(Number(event.key) + 9) % 10]?.click();
}

takeToken();
addEventListener("hashchange", () => { takeToken(); open(); });
addEventListener("keydown", press);
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.redraw());
open();
plotly().catch(() => {}); // fetched while the first view is read
ask("/api/runs").then((found) => { document.querySelector("[data-page=train]").hidden = !found.can_launch; }).catch(complain);
