// The timeline: what each worker did in the last minutes, as a canvas that scrolls.
// Lengths of phases are measured; within a step they are drawn one after the other. The thin line is the transfer,
// which runs beside the computing and ends with the wait.

import { colour } from "./charts.js";
import { el, seconds } from "./dom.js";

export const PHASES = {
  load: ["load", "load"], forward: ["forward", "forward"], backward: ["backward", "backward"],
  encode: ["encode", "encode"], exchange_wait: ["wait", "wait"], update: ["update", "update"], other: ["other", "other"],
};
const ROW = 22;
const NAMES = 54;
const WIDEST = 16000;

export function legend() {
  const items = Object.values(PHASES).map(([name, tone]) => [name, tone]).concat([["transfer", "transfer"]]);
  return el("div", { class: "legend" }, items.map(([name, tone]) => {
    const mark = el("i");
    mark.style.background = colour(tone);
    return el("span", {}, mark, name);
  }));
}

export class Gantt {
  constructor() {
    this.names = el("canvas", { "aria-hidden": "true" });
    this.canvas = el("canvas", { role: "img", tabindex: 0, "aria-label": "Timeline of all workers; arrow keys scroll" });
    this.scroll = el("div", { class: "scroll", tabindex: 0, "aria-label": "Timeline, scrollable" }, this.canvas);
    this.told = el("p", { class: "hint", "aria-live": "polite" }, "Point at a step to see its figures.");
    this.element = el("div", {}, el("div", { class: "gantt" }, el("div", { class: "names" }, this.names), this.scroll), this.told);
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.data = null;
  }

  draw(data, span) {
    const atEnd = this.scroll.scrollLeft + this.scroll.clientWidth >= this.scroll.scrollWidth - 4;
    this.data = data;
    this.workers = Object.keys(data.workers);
    this.span = span;
    const visible = Math.max(280, this.scroll.clientWidth || 280);
    this.scale = Math.min(WIDEST / span, Math.max(visible / span, this.zoom ?? 0));
    const width = Math.ceil(span * this.scale), height = ROW * this.workers.length + 20;
    this.paint(this.canvas, width, height, (pen) => this.workers.forEach((rank, row) => this.drawRow(pen, rank, row)), width);
    this.paint(this.names, NAMES, height, (pen) => this.workers.forEach((rank, row) => {
      pen.fillStyle = colour("ink");
      pen.fillText(`w${rank}`, 6, row * ROW + 15);
    }));
    if (atEnd) this.scroll.scrollLeft = this.scroll.scrollWidth;
  }

  paint(canvas, width, height, draw, ruler = 0) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.font = "12px system-ui, sans-serif";
    draw(pen);
    if (!ruler) return;
    pen.fillStyle = colour("soft");
    const every = [0.1, 0.5, 1, 5, 10, 30, 60, 120].find((each) => each * this.scale > 70) ?? 300;
    for (let ago = 0; ago < this.span; ago += every) pen.fillText(`-${+ago.toFixed(1)} s`, ruler - ago * this.scale - 34, height - 5);
  }

  place(at) { return (at - (this.data.now - this.span)) * this.scale; }

  drawRow(pen, rank, row) {
    const tones = this.data.phases.map((phase) => colour(PHASES[phase][1]));
    const waitAt = this.data.phases.indexOf("exchange_wait");
    for (const [end, , , transfer, ...lengths] of this.data.workers[rank]) {
      let from = end - lengths.reduce((a, b) => a + b, 0);
      lengths.forEach((length, number) => {
        pen.fillStyle = tones[number];
        if (length > 0) pen.fillRect(this.place(from), row * ROW + 3, Math.max(0.4, length * this.scale - 0.2), ROW - 9);
        from += length;
        if (number === waitAt && transfer > 0) {
          pen.fillStyle = colour("transfer");
          pen.fillRect(this.place(from - transfer), row * ROW + ROW - 5, Math.max(0.5, transfer * this.scale), 2);
        }
      });
    }
  }

  point(event) {
    if (!this.data) return;
    const rank = this.workers[Math.floor(event.offsetY / ROW)];
    const at = this.data.now - this.span + event.offsetX / this.scale;
    const step = (this.data.workers[rank] ?? []).find(([end, , , , ...lengths]) => at <= end && at >= end - lengths.reduce((a, b) => a + b, 0));
    if (!step) return;
    const [, number, steps, transfer, ...lengths] = step;
    const parts = this.data.phases.map((phase, index) => `${PHASES[phase][0]} ${seconds(lengths[index] / steps)}`);
    const which = steps > 1 ? `steps ${number}–${number + steps - 1} (means)` : `step ${number}`;
    this.told.textContent = `worker ${rank}, ${which}: ${parts.join(", ")}, transfer ${seconds(transfer / steps)}`;
  }
}
