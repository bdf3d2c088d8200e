// How the replicas agree: switches of the plan, local rounds, staleness, drift, and shares of the batch.

import { ask, path } from "./api.js";
import { drawLines } from "./charts.js";
import { count, el, seconds, size, table, value, when } from "./dom.js";

const PLAIN = "All workers take every step together, so there is nothing to show here: no local rounds, no guard, no switch of the plan.";

export class AgreementPart {
  constructor(view) {
    this.view = view;
    const panel = (title, ...more) => el("section", { class: "panel" }, el("h2", {}, title), ...more);
    const chart = (words) => el("div", { class: "chart", role: "img", "aria-label": words });
    this.behind = chart("Steps that each worker was behind the front-most one, over the last minute");
    this.drift = chart("Cosine between applied and exact updates, over steps");
    this.rounds = el("div");
    this.shares = el("div");
    this.switches = el("div");
    this.plain = el("p", { class: "hint" }, PLAIN);
    this.panels = {
      staleness: panel("Staleness: steps behind the front-most worker", this.behind), rounds: panel("Local rounds", this.rounds),
      drift: panel("Drift: cosine to the exact update", this.drift), shares: panel("Shares of a batch", this.shares),
      switches: panel("Switches of the plan", this.switches),
    };
    this.element = el("div", {}, this.plain, el("div", { class: "grid" }, Object.values(this.panels)));
  }

  async refresh() {
    const found = await ask(path(this.view.run, "/agreement"));
    const many = ["rounds", "drift", "shares", "switches"];
    for (const name of many) this.panels[name].hidden = !found[name].length;
    this.plain.hidden = many.some((name) => found[name].length);
    this.drawTables(found);
    const { seconds: moments, workers } = found.staleness;
    await drawLines(this.behind, Object.entries(workers).map(([worker, y]) => ({ name: `worker ${worker}`, x: moments, y })), ["seconds", "steps behind"]);
    if (found.drift.length) await this.drawDrift(found.drift);
  }

  async drawDrift(rows) {
    const line = (name, key) => ({ name, x: rows.map((row) => row.step), y: rows.map((row) => row[key]) });
    await drawLines(this.drift, [line("measured", "cosine"), line("asked for", "budget")], ["step", "cosine"]);
  }

  drawTables(found) {
    this.rounds.replaceChildren(table([
      ["worker", "number", (r) => r.worker], ["rounds", "number", (r) => count(r.rounds)], ["steps a round", "number", (r) => value(r.steps_a_round)],
      ["waited a round", "number", (r) => seconds(r.seconds_a_round)], ["sent", "number", (r) => size(r.sent)],
      ["on sockets", "number optional", (r) => size(r.wire)], ["did not count", "number", (r) => r.dropped],
    ], found.rounds, "Local rounds"));
    this.shares.replaceChildren(table([
      ["step", "number", (s) => count(s.step)],
      ["share of each worker", "words", (s) => Object.entries(s.shares).map(([worker, share]) => `${worker}: ${Math.round(100 * share)} %`).join(", ")],
    ], found.shares, "Shares of a batch"));
    this.switches.replaceChildren(table([
      ["step", "number", (s) => count(s.step)], ["when", "optional", (s) => when(s.at)], ["from", "words", (s) => s.before], ["to", "words", (s) => s.plan],
      ["carried over", "words", (s) => s.carried.join(", ") || "nothing"],
    ], found.switches, "Switches of the plan"));
  }
}
