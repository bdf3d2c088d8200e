// The list of runs, and several of them on one axis.

import { ask } from "./api.js";
import { along, drawLines } from "./charts.js";
import { count, el, seconds, size, state, table, value, when } from "./dom.js";

const AXES = { step: "step", samples: "samples", seconds: "seconds of training", sent: "bytes sent" };

export function runAddress(id, tab) {
  const words = new URLSearchParams({ run: id });
  if (tab) words.set("tab", tab);
  return `#${words}`;
}

export class RunsView {
  run = null;
  chosen = new Set();

  constructor() {
    this.filter = el("input", { type: "search", placeholder: "name, plan, script or state", "aria-label": "Filter runs", oninput: () => this.draw() });
    this.compare = el("button", { class: "main", disabled: true, onclick: () => this.open() }, "Compare");
    this.list = el("div");
    this.element = el("div", {}, el("h1", {}, "Runs"), el("div", { class: "row" }, this.filter, this.compare), this.list);
  }

  async refresh() {
    this.rows = (await ask("/api/runs")).runs;
    this.draw();
  }

  open() {
    const words = new URLSearchParams([...this.chosen].map((id) => ["compare", id]));
    location.hash = `#${words}`;
  }

  pick(id, on) {
    if (on) this.chosen.add(id); else this.chosen.delete(id);
    this.compare.disabled = this.chosen.size < 2;
    this.compare.textContent = this.chosen.size ? `Compare ${this.chosen.size}` : "Compare";
  }

  draw() {
    if (!this.rows) return;
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => `${row.run} ${row.plan} ${row.script} ${row.state}`.toLowerCase();
    const rows = this.rows.filter((row) => wanted.every((word) => text(row).includes(word)));
    const focused = document.activeElement?.dataset?.pick;
    const box = (row) => el("input", {
      type: "checkbox", checked: this.chosen.has(row.id), "data-pick": row.id, "aria-label": `Compare ${row.run}`,
      onchange: (event) => this.pick(row.id, event.target.checked),
    });
    const metrics = (row) => Object.entries(row.metrics).slice(0, 3).map(([name, number]) => `${name} ${value(number)}`).join(", ");
    this.list.replaceChildren(rows.length ? table([
      ["", "", box],
      ["run", "words", (row) => el("a", { href: runAddress(row.id) }, row.id)],
      ["state", "", (row) => state(row.state)],
      ["steps", "number", (row) => count(row.steps)],
      ["results", "words", metrics],
      ["plan", "words optional", (row) => row.plan],
      ["workers", "number optional", (row) => row.workers],
      ["samples/s", "number optional", (row) => count(row.samples_per_second)],
      ["seconds", "number optional", (row) => (row.seconds === null ? null : seconds(row.seconds))],
      ["sent", "number optional", (row) => size(row.bytes_sent)],
      ["started", "optional", (row) => when(row.started)],
    ], rows, "Runs") : el("p", { class: "hint" }, this.rows.length ? "No run fits the filter." : "No runs yet; start one with shoal run."));
    if (focused) this.list.querySelector(`[data-pick="${CSS.escape(focused)}"]`)?.focus();
  }
}

export class CompareView {
  constructor(ids, words) {
    this.ids = ids;
    this.run = ids[0];
    this.axis = pick("Along", AXES, () => this.draw());
    this.scalar = pick("Value", { loss: "loss" }, () => this.draw());
    this.log = el("input", { type: "checkbox", onchange: () => this.draw() });
    this.chart = el("div", { class: "chart", role: "img", "aria-label": "Comparison of runs" });
    this.chart.style.height = "60vh";
    this.summary = el("div");
    this.element = el("div", {}, el("h1", {}, "Comparison"),
      el("div", { class: "row" }, this.scalar.label, this.axis.label, el("label", {}, this.log, "logarithmic")),
      el("div", { class: "panel" }, this.chart), this.summary);
  }

  async refresh() {
    const asked = this.ids.map((id) => `run=${encodeURIComponent(id)}`).join("&");
    const [compared, listed] = await Promise.all([ask(`/api/compare?${asked}`), ask("/api/runs")]);
    this.found = compared.runs;
    this.rows = listed.runs.filter((row) => this.ids.includes(row.id));
    await this.draw();
  }

  async draw() {
    if (!this.found) return;
    const names = [...new Set(Object.values(this.found).flatMap((each) => Object.keys(each.scalars)))];
    this.scalar.offer(Object.fromEntries(names.map((name) => [name, name])));
    const name = this.scalar.select.value, axis = this.axis.select.value;
    const lines = Object.entries(this.found).filter(([, each]) => each.scalars[name]).map(([id, each]) => {
      const { step, value: y } = each.scalars[name];
      return { name: id, x: axis === "step" ? step : step.map((s) => along(each.axes[axis], s)), y };
    });
    this.summary.replaceChildren(table([
      ["run", "words", (row) => el("a", { href: runAddress(row.id) }, row.id)], ["state", "", (row) => state(row.state)],
      ["plan", "words", (row) => row.plan], ["workers", "number", (row) => row.workers], ["steps", "number", (row) => count(row.steps)],
      ["seconds", "number", (row) => seconds(row.seconds)], ["samples/s", "number", (row) => count(row.samples_per_second)],
      ["sent", "number", (row) => size(row.bytes_sent)],
    ], this.rows, "Compared runs"));
    await drawLines(this.chart, lines, [AXES[axis], name], { log: this.log.checked });
  }
}

export function pick(title, choices, changed) {
  const select = el("select", { onchange: changed });
  const offer = (found) => {
    const before = select.value;
    if ([...select.options].map((option) => option.value).join("\n") === Object.keys(found).join("\n")) return;
    select.replaceChildren(...Object.entries(found).map(([value, words]) => el("option", { value }, words)));
    if (Object.hasOwn(found, before)) select.value = before;
  };
  offer(choices);
  return { select, offer, label: el("label", {}, title, select) };
}
