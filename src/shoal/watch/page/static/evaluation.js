// The confusion matrix of a classifier, and samples it named wrongly.

import { el, facts, table, value } from "./dom.js";

export function drawEvaluation({ classes, confusion, accuracy, samples, wrong }) {
  const most = Math.max(1, ...confusion.flat());
  const cell = (number, row, column) => {
    const box = el("td", { title: `${number} of class ${classes[row]} named ${classes[column]}` }, number);
    const tone = row === column ? "good" : "bad";
    box.style.background = number ? `color-mix(in srgb, var(--${tone}) ${Math.round(10 + (60 * number) / most)}%, transparent)` : "";
    return box;
  };
  const matrix = el("table", { class: "confusion", "aria-label": "Confusion matrix" },
    el("thead", {}, el("tr", {}, el("th", {}, "is \\ named"), classes.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, confusion.map((row, number) => el("tr", {}, el("th", { scope: "row" }, classes[number]), row.map((found, column) => cell(found, number, column))))));
  return el("div", {}, facts([["accuracy", value(accuracy)], ["samples", samples]]),
    el("h2", {}, "Confusion matrix"), el("div", { class: "scroll" }, matrix),
    el("h2", {}, `Wrong samples (${wrong.length} shown)`), drawWrong(wrong, classes));
}

function drawWrong(wrong, classes) {
  if (!wrong.length) return el("p", { class: "hint" }, "Every sample was named correctly.");
  if (!wrong[0].pixels) {
    return table([["sample", "number", (w) => w.index], ["is", "", (w) => classes[w.is]], ["named", "", (w) => classes[w.named]],
      ["values", "words", (w) => w.values.map((each) => value(each)).join(", ")]], wrong, "Wrong samples");
  }
  return el("div", { class: "wrong" }, wrong.map((each) => el("figure", {}, picture(each.pixels),
    el("figcaption", {}, `#${each.index}: ${classes[each.is]}, named ${classes[each.named]}`))));
}

function picture(rows) {
  const canvas = el("canvas", { width: rows[0].length, height: rows.length });
  const pen = canvas.getContext("2d"), image = pen.createImageData(rows[0].length, rows.length);
  rows.flat().forEach((tone, number) => image.data.set([tone, tone, tone, 255], 4 * number));
  pen.putImageData(image, 0, 0);
  return canvas;
}
