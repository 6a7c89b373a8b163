// Small plots as SVG: lines, bands, bars and marks on one pair of axes, with a readout for mouse, finger and keys.
(function (root) {
  "use strict";
  const X = root.privfairExplorer;
  const MARGIN = { left: 52, right: 12, top: 10, bottom: 38 };

  function shown(x) {
    return Math.abs(x) < 1e-12 ? "0" : X.short(x, 3).replace("e-0", "e-").replace("e+0", "e").replace(/-/g, "−");
  }

  // Round numbers between low and high, about `count` of them.
  function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find(m => m * power >= raw * 0.999) * power, found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
    return found;
  }
  function decades(low, high, count) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first) / count)), found = [];
    for (let k = first; k <= last; k += step) found.push(10 ** k);
    return found;
  }
  const superscript = k => String(k).replace(/./g, c => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  const label = (axis, t) => (axis.log ? `10${superscript(Math.round(Math.log10(t)))}` : shown(t));

  function scaleOf(axis, from, to) {
    const f = axis.log ? Math.log : x => x, low = f(axis.low), high = f(axis.high);
    return x => from + (to - from) * (f(Math.max(x, axis.log ? 1e-300 : -Infinity)) - low) / (high - low);
  }

  // Coordinates beyond this are far outside the frame, and some renderers cannot take them.
  const tame = y => Math.max(-5000, Math.min(5000, y)).toFixed(1);
  function path(xs, ys, sx, sy) {
    let d = "", pen = "M";
    for (let i = 0; i < xs.length; i++) {
      if (!Number.isFinite(ys[i])) { pen = "M"; continue; }
      d += `${pen}${sx(xs[i]).toFixed(1)},${tame(sy(ys[i]))}`;
      pen = "L";
    }
    return d;
  }

  function layerMarkup(layer, sx, sy, frame) {
    if (layer.type === "line") return `<path class="line ${layer.style}" d="${path(layer.x, layer.y, sx, sy)}"/>`;
    if (layer.type === "band") {
      const up = path(layer.x, layer.high, sx, sy), down = path([...layer.x].reverse(), [...layer.low].reverse(), sx, sy);
      return `<path class="band ${layer.style}" d="${up}${down.replace("M", "L")}Z"/>`;
    }
    if (layer.type === "bars") {
      const bars = layer.counts.map((count, i) => {
        const a = sx(layer.edges[i]), b = sx(layer.edges[i + 1]), top = sy(count), base = sy(0);
        return count === 0 ? "" : `M${a.toFixed(1)},${base.toFixed(1)}V${top.toFixed(1)}H${b.toFixed(1)}V${base.toFixed(1)}Z`;
      });
      return `<path class="bars ${layer.style}" d="${bars.join("")}"/>`;
    }
    const at = sx(layer.x).toFixed(1); // a vertical mark
    return `<path class="line ${layer.style}" d="M${at},${frame.top}V${frame.bottom}"/>`;
  }

  // Draw figures = {id: {x, y: {low, high, log, label}, layers, readout}} into the <svg> of these ids. All sizes are
  // read before anything is written, so that the browser lays the page out once.
  function draw(figures) {
    const sized = Object.entries(figures).map(([id, figure]) => {
      const svg = document.getElementById(id);
      return [svg, figure, svg.clientWidth || 640, svg.clientHeight || 260];
    });
    for (const [svg, figure, width, height] of sized) drawOne(svg, figure, width, height);
  }
  function drawOne(svg, figure, width, height) {
    const frame = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const sx = scaleOf(figure.x, frame.left, frame.right), sy = scaleOf(figure.y, frame.bottom, frame.top);
    const xs = figure.x.log ? decades(figure.x.low, figure.x.high, 6) : ticks(figure.x.low, figure.x.high, width < 420 ? 4 : 6);
    const ys = figure.y.log ? decades(figure.y.low, figure.y.high, 5) : ticks(figure.y.low, figure.y.high, 4);
    const clip = `clip-${svg.id}`, parts = [];
    parts.push(`<clipPath id="${clip}"><rect x="${frame.left}" y="${frame.top}" width="${frame.right - frame.left}" ` +
      `height="${frame.bottom - frame.top}"/></clipPath>`);
    for (const t of ys) {
      const y = sy(t).toFixed(1), zero = t === 0 ? " zero" : "";
      parts.push(`<path class="grid${zero}" d="M${frame.left},${y}H${frame.right}"/>` +
        `<text class="tick" x="${frame.left - 7}" y="${y}" dy="0.32em" text-anchor="end">${label(figure.y, t)}</text>`);
    }
    for (const t of xs) {
      const x = sx(t).toFixed(1);
      parts.push(`<path class="grid" d="M${x},${frame.top}V${frame.bottom}"/>` +
        `<text class="tick" x="${x}" y="${frame.bottom + 16}" text-anchor="middle">${label(figure.x, t)}</text>`);
    }
    parts.push(`<text class="name" x="${frame.right}" y="${height - 5}" text-anchor="end">${figure.x.label}</text>`);
    parts.push(`<path class="axis" d="M${frame.left},${frame.top}V${frame.bottom}H${frame.right}"/>`);
    parts.push(`<g clip-path="url(#${clip})">`);
    for (const layer of figure.layers) parts.push(layerMarkup(layer, sx, sy, frame));
    parts.push(`<path class="cursor" d=""/></g>`);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.innerHTML = parts.join("");
    svg.figure = { ...figure, frame, sx };
    if (svg.at !== undefined) point(svg, svg.at);
  }

  // Put the cursor at a share 0 … 1 of the x axis and say what the curves are there.
  function point(svg, share) {
    const { x, frame, readout, sx } = svg.figure, output = document.getElementById(`${svg.id}-readout`);
    svg.at = Math.max(0, Math.min(1, share));
    const value = x.log ? x.low * (x.high / x.low) ** svg.at : x.low + (x.high - x.low) * svg.at;
    const at = sx(value).toFixed(1);
    svg.querySelector(".cursor").setAttribute("d", `M${at},${frame.top}V${frame.bottom}`);
    output.textContent = readout(value);
  }
  function unpoint(svg) {
    svg.at = undefined;
    const cursor = svg.querySelector(".cursor");
    if (cursor) cursor.setAttribute("d", "");
    document.getElementById(`${svg.id}-readout`).textContent = "";
  }

  // The readout follows the mouse, a finger, or the arrow keys.
  function follow(svg) {
    const share = event => {
      const box = svg.getBoundingClientRect(), { left, right } = svg.figure.frame;
      return (event.clientX - box.left - left) / (right - left);
    };
    svg.addEventListener("pointermove", event => point(svg, share(event)));
    svg.addEventListener("pointerleave", () => { if (document.activeElement !== svg) unpoint(svg); });
    svg.addEventListener("focus", () => point(svg, svg.at === undefined ? 0.5 : svg.at));
    svg.addEventListener("blur", () => unpoint(svg));
    svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: -0.01, ArrowRight: 0.01, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      point(svg, (svg.at === undefined ? 0.5 : svg.at) + step);
    });
  }

  // Counts of values in `bins` equal cells.
  function histogram(values, low, high, bins) {
    const counts = new Array(bins).fill(0), edges = Array.from({ length: bins + 1 }, (_, i) => low + (high - low) * i / bins);
    for (const value of values) {
      const cell = Math.floor((value - low) / (high - low) * bins);
      if (cell >= 0 && cell < bins) counts[cell]++;
    }
    return { counts, edges };
  }

  // The least of 1, 2, 5, 10, … that is not below x: axes that stand still while a slider moves a little.
  function roundUp(x) {
    const power = 10 ** Math.floor(Math.log10(x));
    return [1, 2, 5, 10].find(m => m * power >= x * (1 - 1e-9)) * power;
  }

  Object.assign(X, { draw, follow, histogram, roundUp, shown });
})(typeof window === "undefined" ? globalThis : window);
