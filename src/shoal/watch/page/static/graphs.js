// The network as a ring of workers, and the model as a tree of modules.

import { count, el, seconds, size, svg, table, value } from "./dom.js";

export function drawNetwork({ nodes, edges, seconds: spent }) {
  const radius = 190, middle = 260;
  const places = new Map(nodes.map((node, number) => {
    const turn = (2 * Math.PI * number) / nodes.length - Math.PI / 2;
    return [node.worker, [middle + radius * 1.15 * Math.cos(turn), middle * 0.9 + radius * Math.sin(turn)]];
  }));
  const most = Math.max(1, ...edges.map((edge) => edge.wire || edge.payload));
  const words = (edge) => [
    edge.rate ? `${size(edge.rate)}/s` : null, edge.rtt ? `${(1000 * edge.rtt).toFixed(1)} ms` : null,
    `${size(edge.wire || edge.payload)}${edge.wire ? "" : " through memory"}`,
  ].filter(Boolean).join(", ");
  const picture = svg("svg", { class: "network", viewBox: "0 0 520 480", role: "img", "aria-label": "Workers and their links" });
  edges.filter((edge) => places.has(edge.to)).forEach((edge) => {
    const [x1, y1] = places.get(edge.from), [x2, y2] = places.get(edge.to);
    const bend = 0.12, cx = (x1 + x2) / 2 + bend * (y2 - y1), cy = (y1 + y2) / 2 - bend * (x2 - x1);
    const width = 1 + 5 * Math.sqrt((edge.wire || edge.payload) / most);
    picture.append(svg("path", { class: "edge", d: `M${x1} ${y1} Q${cx} ${cy} ${x2} ${y2}`, "stroke-width": width },
      svg("title", {}, `worker ${edge.from} to worker ${edge.to}: ${words(edge)}`)));
    if (nodes.length <= 6) {
      picture.append(svg("text", { class: "note", x: cx, y: cy, "text-anchor": "middle" }, edge.rate ? `${size(edge.rate)}/s ${edge.rtt ? `${(1000 * edge.rtt).toFixed(1)} ms` : ""}` : size(edge.wire || edge.payload)));
    }
  });
  nodes.forEach((node) => {
    const [x, y] = places.get(node.worker);
    const bad = !["running", "done", "unknown"].includes(node.state);
    picture.append(svg("circle", { class: `node ${bad ? "bad" : ""}`, cx: x, cy: y, r: nodes.length > 24 ? 9 : 20 },
      svg("title", {}, `worker ${node.worker} on ${node.host}: ${node.state}`)));
    picture.append(svg("text", { x, y: y + 5, "text-anchor": "middle" }, String(node.worker)));
  });
  const rows = table([
    ["from", "number", (edge) => edge.from], ["to", "number", (edge) => edge.to],
    ["rate", "number", (edge) => (edge.rate ? `${size(edge.rate)}/s` : "–")],
    ["round trip", "number", (edge) => (edge.rtt ? seconds(edge.rtt) : "–")],
    ["payload", "number", (edge) => size(edge.payload)], ["on sockets", "number", (edge) => size(edge.wire)],
    ["mean a second", "number", (edge) => (spent ? `${size((edge.wire || edge.payload) / spent)}/s` : "–")],
  ], edges.slice(0, 400), "Links");
  const none = edges.length ? [] : [el("p", { class: "hint" }, "This run has sent nothing to other workers yet.")];
  return el("div", { class: "grid" }, el("div", { class: "panel" }, picture), el("div", { class: "panel" }, none, rows));
}

export function drawModel({ models, layers }) {
  if (!layers.length) return el("p", { class: "hint" }, "The record tells nothing of the model: it has not joined yet, or is of an older version.");
  const root = { children: new Map(), elements: 0 };
  for (const layer of layers) {
    let place = root;
    place.elements += layer.elements;
    const names = layer.name.split(".");
    names.forEach((name, depth) => {
      if (!place.children.has(name)) place.children.set(name, { name, children: new Map(), elements: 0, layer: null });
      place = place.children.get(name);
      place.elements += layer.elements;
      if (depth === names.length - 1) place.layer = layer;
    });
  }
  const largest = Math.max(...layers.map((layer) => layer.elements), 1);
  const steepest = Math.max(...layers.map((layer) => layer.gradient ?? 0), 1e-30);
  const bar = (share, tone, words) => {
    const inner = el("b");
    inner.style.width = `${Math.max(1, 100 * share)}%`;
    inner.style.background = `var(--${tone})`;
    return el("div", { class: "bar", title: words, role: "img", "aria-label": words }, inner);
  };
  const draw = (node) => {
    const parts = [...node.children.values()].flatMap((child, number) => [
      ...(number ? [el("div", { class: "arrow", "aria-hidden": "true" }, "↓")] : []), draw(child)]);
    if (!node.layer) {
      return el("details", { open: layers.length <= 60 }, el("summary", {}, `${node.name}: ${count(node.elements)} parameters`), parts);
    }
    const layer = node.layer;
    const leaf = el("div", { class: "leaf" },
      el("strong", {}, node.name), el("span", {}, layer.class), el("span", { class: "number" }, count(layer.elements)),
      el("div", {}, bar(Math.sqrt(layer.elements / largest), "forward", `${count(layer.elements)} parameters`),
        layer.gradient === null ? "" : bar(layer.gradient / steepest, "wait", `gradient norm ${value(layer.gradient)}`)),
      el("span", {}, layer.gradient === null ? "no norm yet" : `|g| ${value(layer.gradient)}`));
    return parts.length ? el("details", { open: true }, el("summary", {}, leaf), parts) : leaf;
  };
  const top = [...root.children.values()].flatMap((child, number) => [
    ...(number ? [el("div", { class: "arrow", "aria-hidden": "true" }, "↓")] : []), draw(child)]);
  return el("div", { class: "panel tree" },
    el("p", {}, `${models.join(", ")}: ${count(root.elements)} parameters. Blue: size; red: norm of the gradient, mean over workers.`), top);
}

