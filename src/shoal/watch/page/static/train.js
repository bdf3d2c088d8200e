// Training without code: a form that uploads data, or names them, and launches a run.

import { ask } from "./api.js";
import { el } from "./dom.js";
import { runAddress } from "./runs.js";

export class TrainView {
  run = null;
  still = true; // what the user types must not be drawn over

  constructor() { this.element = el("div", {}, el("h1", {}, "Train without code")); }

  async refresh() {
    if (this.form) return;
    this.choices = await ask("/api/form");
    if (!this.choices.available) {
      this.element.append(el("p", { class: "hint" }, "The example models are not installed here."));
      return;
    }
    this.form = this.build(this.choices);
    this.element.append(this.form);
  }

  build(found) {
    const field = (title, input, hint) => el("label", {}, title, input, hint ? el("span", { class: "hint" }, hint) : null);
    const options = (names) => Object.entries(names).map(([value, words]) => el("option", { value }, words));
    const source = (value, title, input) => el("label", {}, el("span", {},
      el("input", { type: "radio", name: "source", value, checked: value === "builtin" }), ` ${title}`), input);
    this.error = el("p", { class: "error", role: "alert" });
    this.button = el("button", { class: "main" }, "Train");
    const number = (name, value, most) => el("input", { type: "number", name, value, min: 1, max: most, required: true });
    return el("form", { class: "train", onsubmit: (event) => this.send(event) },
      el("fieldset", {}, el("legend", {}, "Data"),
        source("builtin", "A built-in set", el("select", { name: "builtin", "aria-label": "Built-in set" }, options(found.datasets))),
        source("upload", "Upload a CSV, an ARFF, an NPZ (x, y) or a ZIP with a folder of images for each class", el("input", { type: "file", name: "file", accept: found.suffixes.join(","), "aria-label": "File" })),
        source("path", "A CSV, ARFF, NPZ or folder on the server's machine", el("input", { type: "text", name: "path", "aria-label": "Path", placeholder: "/data/iris.csv" })),
        field("Class column of a table", el("input", { type: "text", name: "label", placeholder: "the last column" }))),
      field("Model", el("select", { name: "model" }, options(Object.fromEntries(found.models.map((name) => [name, name])))), "Tables without pixels need mlp."),
      field("Layers in place of a model", el("textarea", { name: "layers", rows: "3", spellcheck: "false", placeholder: "[[layer]]\ntype = \"flatten\"" }), "A list of layers as TOML, as in examples/lenet.toml."),
      field("Plan", el("input", { name: "plan", value: "allreduce, every(1)", list: "plans", required: true }), "How workers agree; shoal plan lists the terms."),
      el("datalist", { id: "plans" }, Object.entries(found.plans).map(([name, text]) => el("option", { value: name }, text))),
      el("div", { class: "row" }, field("Workers", number("workers", 2, found.most_workers)), field("Epochs", number("epochs", 5, 10000)),
        field("Batch of a worker", number("batch", 32, 65536))),
      field("Name", el("input", { name: "name", pattern: "[a-z0-9][a-z0-9._\\-]*", maxlength: 64, placeholder: "made up if left out" })),
      this.button, this.error);
  }

  async send(event) {
    event.preventDefault();
    const given = new FormData(this.form);
    this.error.textContent = "";
    this.button.disabled = true;
    try {
      const body = {
        source: given.get("source"), data: await this.data(given), model: given.get("model"), plan: given.get("plan"), label: given.get("label"), layers: given.get("layers"),
        name: given.get("name"), workers: Number(given.get("workers")), epochs: Number(given.get("epochs")), batch: Number(given.get("batch")),
      };
      const started = await ask("/api/launch", { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
      location.hash = runAddress(started.run);
    } catch (error) {
      this.error.textContent = error.message;
    } finally {
      this.button.disabled = false;
    }
  }

  async data(given) {
    if (given.get("source") === "builtin") return given.get("builtin");
    if (given.get("source") === "path") return given.get("path");
    const file = given.get("file");
    if (!file?.size) throw new Error("choose a file to upload");
    if (file.size > this.choices.largest_upload) throw new Error(`${file.name} has more than ${this.choices.largest_upload >> 20} MB; give its path instead`);
    const kept = await ask(`/api/uploads?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
    return kept.data;
  }
}
