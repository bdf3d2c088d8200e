// Makes elements from values. Text always becomes a text node: what a run calls itself or prints is never markup.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("aria-")) element.setAttribute(name, String(value));
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map(toNode));
  return element;
}

function toNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children.flat().map(toNode));
  return element;
}

// `columns`: [title, class, row => text or node]
export function table(columns, rows, caption) {
  const cell = (row, [, kind, value]) => el("td", { class: kind }, value(row) ?? "–");
  return el("div", { class: "scroll" }, el("table", { "aria-label": caption },
    el("thead", {}, el("tr", {}, columns.map(([title, kind]) => el("th", { class: kind, scope: "col" }, title)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((column) => cell(row, column)))))));
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { "data-fact": name }, value))));
}

export function state(text) {
  return el("span", { class: `state ${/^[a-z ]+$/.test(text) ? text : ""}` }, text);
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return null;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(bytes) >= 999.95 && unit < units.length - 1) { bytes /= 1000; unit += 1; }
  return `${unit ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

export function seconds(number) {
  if (number === null || number === undefined) return null;
  if (number < 0.1) return `${(1000 * number).toFixed(2)} ms`;
  if (number < 60) return `${number.toFixed(2)} s`;
  return `${Math.floor(number / 60)} min ${Math.round(number % 60)} s`;
}

export function value(number) {
  if (number === null || number === undefined) return "not a number";
  return number === 0 || (Math.abs(number) >= 1e-3 && Math.abs(number) < 1e5) ? number.toFixed(4) : number.toPrecision(4);
}

export function count(number) {
  return number === null || number === undefined ? null : Math.round(number).toLocaleString("en");
}

export function when(at) {
  return new Date(1000 * at).toLocaleString("sv");
}
