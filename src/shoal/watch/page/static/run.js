// One run: a line that names the culprit, and tabs with everything that is known of it.

import { AgreementPart } from "./agreement.js";
import { ask, path } from "./api.js";
import { drawBars, drawLines } from "./charts.js";
import { count, el, facts, seconds, size, state, table, value, when } from "./dom.js";
import { drawEvaluation } from "./evaluation.js";
import { drawModel, drawNetwork } from "./graphs.js";
import { pick } from "./runs.js";
import { Gantt, PHASES, legend } from "./timeline.js";

const TABS = {
  overview: "Overview", timeline: "Timeline", network: "Network", members: "Members", agreement: "Agreement", model: "Model", plan: "Plan",
  checkpoints: "Checkpoints", log: "Log", evaluation: "Evaluation",
};

export class RunView {
  constructor(run, tab) {
    this.run = run;
    this.tab = Object.hasOwn(TABS, tab ?? "") ? tab : "overview";
    this.head = el("div");
    this.culprit = el("p", { class: "culprit", "aria-live": "polite" });
    this.tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the run", onkeydown: (event) => this.move(event) });
    this.body = el("div", { role: "tabpanel", tabindex: -1 });
    this.element = el("div", {}, this.head, this.culprit, this.tabs, this.body);
    this.parts = {
      overview: new OverviewPart(this), timeline: new TimelinePart(this), agreement: new AgreementPart(this), network: new NetworkPart(this), members: new MembersPart(this),
      model: new ModelPart(this), plan: new PlanPart(this), checkpoints: new CheckpointsPart(this), log: new LogPart(this),
      evaluation: new EvaluationPart(this),
    };
    this.show(this.tab);
  }

  show(tab) {
    this.tab = tab;
    const words = new URLSearchParams({ run: this.run, tab });
    history.replaceState(null, "", `#${words}`);
    this.tabs.replaceChildren(...Object.entries(TABS).map(([name, title]) => el("button", {
      role: "tab", "aria-selected": name === tab, tabindex: name === tab ? 0 : -1, "data-tab": name, onclick: () => { this.show(name); this.redraw(); },
    }, title)));
    this.body.replaceChildren(this.parts[tab].element);
  }

  move(event) {
    const names = Object.keys(TABS), turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!turn) return;
    this.show(names[(names.indexOf(this.tab) + turn + names.length) % names.length]);
    this.tabs.querySelector("[aria-selected=true]").focus();
    this.redraw();
  }

  async refresh() {
    const found = await this.overview();
    if (found === null) return;
    this.found = found;
    this.culprit.textContent = found.reading ? "reading the record …" : found.culprit;
    this.drawHead(found);
    await this.parts[this.tab].refresh(found);
  }

  // A run that the form has just started has no record yet.
  async overview() {
    try {
      return await ask(path(this.run));
    } catch (error) {
      if (error.status !== 404) throw error;
      const begun = await ask(`/api/launches/${encodeURIComponent(this.run)}`).catch(() => { throw error; });
      if (begun.state === "failed") throw new Error(begun.error);
      this.culprit.textContent = "starting …";
      setTimeout(() => this.redraw(), 500);
      return null;
    }
  }

  drawHead(found) {
    const summary = found.summary;
    const about = found.estimated ? "about " : "";
    const stop = el("button", { class: "danger", onclick: () => this.stop(), "data-action": "stop" }, "Stop with checkpoint");
    const resume = el("button", { onclick: () => this.resume(), "data-action": "resume" }, "Resume");
    const broken = Object.entries(found.broken).map(([name, step]) => el("p", { class: "error" }, `${name} is not a number since step ${step}`));
    const focus = document.activeElement?.dataset?.action;
    this.head.replaceChildren(
      el("div", { class: "row between" }, el("h1", {}, found.run, " ", state(found.state)), el("span", {}, found.can_switch ? this.switchForm(found) : "", found.can_stop ? stop : "", found.can_resume ? resume : "")),
      facts([
        ["plan", found.plan], ["workers", found.workers], ["steps", count(summary.steps)], ["samples", about + (count(summary.samples) ?? "")],
        ["samples/s", count(summary.samples_per_second)], ["training", about + seconds(summary.seconds)], ["sent", about + size(summary.bytes_sent)],
        ["on sockets", about + size(summary.bytes_wire)], ...Object.entries(summary.metrics).slice(0, 4).map(([name, number]) => [name, value(number)]),
      ]), ...broken);
    if (focus) this.head.querySelector(`[data-action="${focus}"]`)?.focus();
  }

  // Drawn once: what somebody types must not vanish with the next step.
  switchForm(found) {
    if (!this.switching) {
      const wanted = el("input", { "aria-label": "Plan to go on by", placeholder: found.plan, "data-action": "plan", size: "24" });
      const said = el("span", { class: "hint", role: "status" });
      const send = async (event) => {
        event.preventDefault();
        try {
          const answer = await ask(path(this.run, "/switch"), { method: "POST", body: JSON.stringify({ plan: wanted.value }) });
          said.textContent = `asked for ${answer.asked}`;
        } catch (error) { said.textContent = error.message; }
      };
      this.switching = el("form", { class: "inline", onsubmit: send }, wanted, el("button", { "data-action": "switch" }, "Switch plan"), said);
    }
    return this.switching;
  }

  async resume() {
    try {
      await ask(path(this.run, "/resume"), { method: "POST" });
      this.culprit.textContent = "starting …";
    } catch (error) { this.culprit.textContent = error.message; }
  }

  async stop() {
    if (!confirm(`Stop ${this.run}? Its workers take a checkpoint; shoal run --resume ${this.run} goes on.`)) return;
    await ask(path(this.run, "/stop"), { method: "POST" });
    this.redraw();
  }
}

class OverviewPart {
  constructor(view) {
    this.view = view;
    this.scalar = pick("Value", { loss: "loss" }, () => this.drawScalar());
    this.log = el("input", { type: "checkbox", onchange: () => this.drawScalar() });
    const panel = (title, ...more) => el("section", { class: "panel" }, el("h2", {}, title), ...more);
    const chart = (words) => el("div", { class: "chart", role: "img", "aria-label": words });
    this.loss = chart("Logged values over steps");
    this.speed = chart("Samples a second over steps");
    this.bars = chart("Where the time of a step goes, by worker");
    this.reports = chart("Reported metrics over steps");
    this.metrics = panel("Reported metrics", this.reports);
    this.verdict = el("div");
    this.element = el("div", { class: "grid" },
      panel("Logged values", el("div", { class: "row" }, this.scalar.label, el("label", {}, this.log, "logarithmic")), this.loss),
      panel("Samples a second", this.speed), panel("Time of a step in the last minute, by worker", this.bars), this.metrics,
      panel("Codec", this.verdict));
  }

  async refresh(found) {
    this.curves = await ask(path(this.view.run, "/curves"));
    this.scalar.offer(Object.fromEntries(Object.keys(this.curves.scalars).map((name) => [name, name])));
    this.drawVerdict(found);
    const labels = found.members.map((member) => `w${member.worker}`);
    const parts = Object.entries(PHASES).map(([phase, [name, tone]]) => ({ name, colour: tone, values: found.members.map((member) => 1000 * member.minute[phase]) }));
    const speed = this.curves.speed;
    await this.drawScalar();
    await drawLines(this.speed, [{ name: "samples/s", x: speed.step, y: speed.samples_per_second }], ["step", "samples/s"]);
    await drawBars(this.bars, labels, parts, "milliseconds a step");
    await this.drawReports();
  }

  async drawScalar() {
    const name = this.scalar.select.value, found = this.curves?.scalars[name];
    const lines = found ? [{ name, x: found.step, y: found.value }] : [];
    await drawLines(this.loss, lines, ["step", name], { log: this.log.checked });
  }

  async drawReports() {
    const reports = this.curves.reports, names = [...new Set(reports.flatMap((each) => Object.keys(each.metrics)))];
    this.metrics.hidden = !names.length;
    if (!names.length) return;
    await drawLines(this.reports, names.map((name) => {
      const here = reports.filter((each) => name in each.metrics);
      return { name, x: here.map((each) => each.step), y: here.map((each) => each.metrics[name]) };
    }), ["step", "metric"]);
  }

  drawVerdict({ verdict, chosen, guarded }) {
    const lines = verdict ? verdict.words : ["Nothing was measured of the exchange yet."];
    this.verdict.replaceChildren(
      ...lines.map((line) => el("p", {}, line)),
      ...chosen.map((each) => el("p", {}, `chosen in step ${each.step}: ${each.codec || "no codec"} (${each.reason})`)),
      ...guarded.map((each) => el("p", {}, `drift in step ${each.step}: cosine ${value(each.cosine)} of ${value(each.budget)} asked for; ${each.action}`)),
      verdict ? facts([["step", seconds(verdict.step)], ["transfer", seconds(verdict.transfer)], ["hidden", `${Math.round(100 * verdict.hidden)} %`],
        ["encode", seconds(verdict.encode)], ["decode", seconds(verdict.decode)], ["link rate", verdict.rate ? `${size(verdict.rate)}/s` : null]]) : "");
  }
}

class TimelinePart {
  constructor(view) {
    this.view = view;
    this.span = pick("Last", { 10: "10 s", 60: "minute", 300: "5 minutes" }, () => view.redraw());
    this.zoom = pick("Zoom", { 0: "fit", 50: "×2", 200: "×8", 1000: "×40" }, () => view.redraw());
    this.gantt = new Gantt();
    this.element = el("section", {}, el("div", { class: "row" }, this.span.label, this.zoom.label), legend(), this.gantt.element,
      el("p", { class: "hint" }, "Lengths are measured; within a step the phases are drawn one after the other. The clocks of several machines may differ."));
  }

  async refresh() {
    const span = Number(this.span.select.value);
    const data = await ask(path(this.view.run, `/timeline?seconds=${span}`));
    this.gantt.zoom = Number(this.zoom.select.value);
    this.gantt.draw(data, span);
  }
}

class NetworkPart {
  constructor(view) { this.view = view; this.element = el("section"); }
  async refresh() { this.element.replaceChildren(drawNetwork(await ask(path(this.view.run, "/network")))); }
}

class MembersPart {
  constructor(view) {
    this.view = view;
    this.said = el("span", { class: "hint", role: "status" });
    this.controls = el("div", { class: "row" });
    this.tables = el("div");
    this.element = el("section", {}, this.controls, this.tables);
  }

  async refresh(found) {
    const add = el("button", { onclick: () => this.scale({ add: 1 }, "asked for one more worker"), "data-action": "add" }, "Add a worker");
    const focus = this.element.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    this.controls.replaceChildren(found.can_add ? add : "", this.said);
    this.tables.replaceChildren(table([
      ["worker", "number", (m) => m.worker], ["state", "", (m) => state(m.state)], ["cause", "words", (m) => m.cause || ""],
      ["step", "number", (m) => count(m.step)], ["steps behind", "number", (m) => m.behind],
      ["last seen", "number", (m) => (m.silent === null ? null : `${seconds(m.silent)} ago`)],
      ["host", "optional", (m) => `${m.host} (pid ${m.pid})`], ["device", "optional", (m) => m.device],
      ["started", "number optional", (m) => (m.starts === 1 ? "once" : `${m.starts} times`)],
      ["samples/s", "number optional", (m) => count(m.samples_per_second)], ["sent", "number optional", (m) => size(m.bytes_sent)],
      ...(found.can_remove.length > 1 ? [["", "", (m) => this.removal(m.worker, found)]] : []),
    ], found.members, "Members"),
    el("h2", {}, "What happened"),
    table([["when", "", (n) => when(n[0])], ["", "", (n) => state(n[1])], ["", "words", (n) => n[2]]], [...found.news].sort((a, b) => b[0] - a[0]), "What happened"));
    if (focus) this.element.querySelector(`[data-action="${focus}"]`)?.focus();
  }

  removal(worker, found) {
    if (!found.can_remove.includes(worker)) return "";
    const send = () => this.scale({ remove: [worker] }, `asked worker ${worker} to leave after its step`);
    return el("button", { "data-action": `remove-${worker}`, "aria-label": `Remove worker ${worker}`, onclick: send }, "Remove");
  }

  async scale(wanted, words) {
    try {
      await ask(path(this.view.run, "/scale"), { method: "POST", body: JSON.stringify(wanted) });
      this.said.textContent = words;
    } catch (error) { this.said.textContent = error.message; }
  }
}

class ModelPart {
  constructor(view) { this.view = view; this.element = el("section"); }
  async refresh() {
    const found = await ask(path(this.view.run, "/model")), text = JSON.stringify(found);
    if (text === this.drawn) return; // open and closed parts stay as they are
    this.drawn = text;
    this.element.replaceChildren(drawModel(found));
  }
}

class PlanPart {
  constructor(view) { this.view = view; this.element = el("section"); }
  async refresh(overview) {
    if (this.drawn === overview.plan) return;
    const found = await ask(path(this.view.run, "/plan"));
    this.drawn = found.plan;
    this.element.replaceChildren(
      el("p", {}, el("strong", {}, found.plan), found.names.length ? `, known as ${found.names.join(", ")}` : ""),
      found.error ? el("p", { class: "error" }, found.error) : "",
      el("div", { class: "grid" }, found.parts.map((part) => el("section", { class: "panel" },
        el("h2", {}, `${part.axis}: ${part.term || "nothing"}`), el("p", { class: "hint" }, part.question), el("p", {}, part.does),
        facts([["costs", part.costs], ["cites", part.cites], ["avoid", part.avoid]])))),
      el("p", {}, found.traffic ?? ""));
  }
}

class CheckpointsPart {
  constructor() { this.element = el("section"); }
  async refresh(found) {
    const rows = [...found.checkpoints].reverse();
    this.element.replaceChildren(rows.length ? table([
      ["step", "number", (c) => count(c.step)], ["when", "", (c) => (c.at ? when(c.at) : null)], ["on disk", "", (c) => (c.kept ? "yes" : "replaced")],
      ["size", "number", (c) => size(c.size)], ["training waited", "number", (c) => seconds(c.paused)], ["until durable", "number", (c) => seconds(c.seconds)],
    ], rows, "Checkpoints") : el("p", { class: "hint" }, "No checkpoint yet."),
    rows.some((c) => c.kept) ? el("p", { class: "hint" }, `Go on from the newest with: shoal run --resume ${found.run}`) : "",
    ...found.servers.map(servedPanel));
  }
}

function servedPanel(server) {
  const share = (c) => (c.compared ? `${Math.round(100 * c.agreed / c.compared)} % of ${count(c.compared)}` : null);
  return el("section", { class: "panel" }, el("h2", {}, `Served as ${server.model} at ${server.address}`),
    table([
      ["checkpoint", "number", (c) => count(c.step)], ["now", "", (c) => c.role || "replaced"], ["requests", "number", (c) => count(c.requests)],
      ["failed", "number", (c) => count(c.failed)], ["agreed with the one in service", "number", share],
    ], [...server.versions].reverse(), `Served as ${server.model}`),
    server.history.length ? el("ul", {}, [...server.history].reverse().map((line) => el("li", {}, line))) : "");
}

class LogPart {
  constructor(view) {
    this.view = view;
    this.worker = pick("Worker", { 0: "0" }, () => { this.after = -1; this.text.replaceChildren(); view.redraw(); });
    this.text = el("pre", { class: "log", tabindex: 0, "aria-label": "What the worker printed" });
    this.after = -1;
    this.element = el("section", {}, el("div", { class: "row" }, this.worker.label), this.text);
  }

  async refresh(found) {
    this.worker.offer(Object.fromEntries(found.members.map((member) => [member.worker, member.worker])));
    const said = await ask(path(this.view.run, `/log?worker=${this.worker.select.value}&after=${this.after}`));
    const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 8;
    if (said.end < this.after) this.text.replaceChildren();
    this.after = said.end;
    if (said.lines.length) this.text.append(document.createTextNode(`${said.lines.join("\n")}\n`));
    else if (!this.text.hasChildNodes()) this.text.dataset.empty = "yes";
    while (this.text.childNodes.length > 200) this.text.firstChild.remove();
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
  }
}

class EvaluationPart {
  constructor(view) { this.view = view; this.element = el("section"); }
  async refresh(found) {
    if (!found.evaluation) {
      this.element.replaceChildren(el("p", { class: "hint" }, "This run has left no evaluation; those that the form starts do at their end."));
    } else if (!this.drawn) {
      this.element.replaceChildren(drawEvaluation(await ask(path(this.view.run, "/evaluation"))));
      this.drawn = true;
    }
  }
}
