// Line charts and stacked bars by Plotly, which the server hands out of the installed package; loaded when first needed.

let loading = null;

export function plotly() {
  loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/plotly.min.js";
    script.onload = () => done(window.Plotly);
    script.onerror = () => failed(new Error("the chart code could not be loaded; is plotly installed?"));
    document.head.append(script);
  });
  return loading;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Plotly reads some tags in labels: names of runs are text.
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const CONFIG = { displayModeBar: false, responsive: true, showTips: false };

function layout(titles, more = {}) {
  const ink = colour("ink");
  const axis = (title) => ({ title: { text: title }, gridcolor: colour("line"), zerolinecolor: colour("line"), automargin: true });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12 },
    margin: { l: 55, r: 12, t: 10, b: 40 }, legend: { orientation: "h", y: -0.25 }, uirevision: "kept",
    hovermode: "x unified", hoverlabel: { bgcolor: colour("panel"), font: { color: ink } },
    xaxis: axis(titles[0]), yaxis: axis(titles[1]), ...more,
  };
}

// `lines`: [{name, x, y}]
export async function drawLines(place, lines, titles, { log = false, fill = false } = {}) {
  const library = await plotly();
  const traces = lines.map(({ name, x, y }) => ({
    name: plain(name), x, y, type: "scatter", mode: x.length < 3 ? "lines+markers" : "lines", connectgaps: true,
    line: { width: 1.8 }, ...(fill ? { fill: "tozeroy" } : {}),
  }));
  const figure = layout(titles, { showlegend: lines.length > 1 });
  if (log) figure.yaxis.type = "log";
  await library.react(place, traces, figure, CONFIG);
}

// `parts`: [{name, colour, values}], one value for each label
export async function drawBars(place, labels, parts, title) {
  const library = await plotly();
  const traces = parts.map((part) => ({
    name: part.name, x: labels, y: part.values, type: "bar", marker: { color: colour(part.colour) },
  }));
  const figure = layout(["", title], { barmode: "stack", showlegend: true });
  figure.xaxis.type = "category";
  await library.react(place, traces, figure, CONFIG);
}

// A step in other units: totals at the end of each block of steps.
export function along(axis, step) {
  if (!axis || !axis.values.length) return step;
  const block = Math.min(Math.floor(step / axis.width), axis.values.length - 1);
  const before = block > 0 ? axis.values[block - 1] : 0;
  return before + (axis.values[block] - before) * Math.min(1, (step - block * axis.width) / axis.width);
}
