// From a choice of kernel, noise and groups to the four figures, their captions and the table of MMD².
(function (root) {
  "use strict";
  const X = root.privfairExplorer, shown = X.shown;
  const grid = (low, high, count) => Array.from({ length: count }, (_, i) => low + (high - low) * i / (count - 1));
  const even = f => d => f(Math.abs(d));
  const SHOWN = { low: -0.25, high: 1.25 }; // scores are in [0, 1]; noisy ones go beyond
  const STREAM = 16; // streams of random numbers from here on are noise: two a draw

  // The distance at which v has fallen to e^{−1/2} of its peak; null for a kernel without bound.
  function effectiveBandwidth(parts, form) {
    if (parts.some(part => part.kind === "energy")) return null;
    const level = Math.exp(-0.5) * form(0);
    let low = 0, high = 1e-3;
    while (form(high) > level) [low, high] = [high, 2 * high];
    for (let i = 0; i < 60; i++) {
      const middle = 0.5 * (low + high);
      if (form(middle) > level) low = middle; else high = middle;
    }
    return high;
  }

  // Everything that is computed at once when a control moves.
  function computed(state) {
    const { parts, noise } = state, noisy = noise.kind !== "none";
    const [x, y] = X.exampleGroups(state.shape, state.difference, state.spread, state.count, state.seed);
    const [nx, ny] = [X.withNoise(x, noise, state.seed, STREAM), X.withNoise(y, noise, state.seed, STREAM + 1)];
    const reach = 1.2 * (maximum(nx, ny) - minimum(nx, ny)) + 0.5;
    const forms = {}, tables = {};
    for (const [name, power] of [["clean", 0], ["once", 1], ["twice", 2], ["off", -1], ["offTwice", -2]]) {
      if (power && !noisy) continue;
      const form = X.form(parts, noise, power);
      forms[name] = form;
      tables[name] = form && X.table(form, X.finest(parts, noise, power), reach);
    }
    const mmd2 = { clean: X.mmd2(tables.clean, x, y) };
    if (noisy) {
      mmd2.noisy = X.mmd2(tables.clean, nx, ny);
      mmd2.convolved = X.mmd2(tables.twice, x, y);
      mmd2.deconvolved = tables.offTwice && X.mmd2(tables.offTwice, nx, ny);
    }
    const bandwidth = { clean: effectiveBandwidth(parts, forms.clean) };
    if (noisy) bandwidth.once = effectiveBandwidth(parts, tables.once);
    return { ...state, x, y, nx, ny, noisy, forms, tables, mmd2, bandwidth };
  }
  const maximum = (...arrays) => Math.max(...arrays.map(a => a.reduce((m, v) => Math.max(m, v), -Infinity)));
  const minimum = (...arrays) => -maximum(...arrays.map(a => a.map(v => -v)));

  function kernelFigure(c) {
    const width = c.bandwidth.once || c.bandwidth.clean || Math.max(0.33, c.noise.scale), reach = X.roundUp(3 * width);
    const d = grid(-reach, reach, 301), curves = [["clean", c.tables.clean, "clean"]];
    if (c.noisy) curves.push(["with noise", c.tables.once, "convolved"]);
    if (c.noisy && c.tables.off) curves.push(["noise taken off", c.tables.off, "deconvolved"]);
    const layers = curves.map(([, f, style]) => ({ type: "line", style, x: d, y: d.map(even(f)) })).reverse();
    const values = layers.flatMap(layer => layer.y), top = Math.max(0, ...values), low = Math.min(0, ...values);
    const span = top - low;
    return {
      x: { low: -reach, high: reach, label: "distance between two scores" },
      y: { low: low < 0 ? low - 0.06 * span : 0, high: top > 0 ? top + 0.08 * span : 0.02 * span }, layers,
      readout: at => `at distance ${shown(at)}: ` + curves.map(([n, f]) => `${n} ${shown(even(f)(at))}`).join(", "),
    };
  }

  function spectrumFigure(c) {
    const width = c.bandwidth.once || c.bandwidth.clean || 0.3;
    const low = 10 ** Math.floor(Math.log10(0.1 / width)), high = 10 ** Math.ceil(Math.log10(15 / width));
    const w = grid(Math.log(low), Math.log(high), 201).map(Math.exp);
    const at = power => x => Math.exp(X.logSpectrum(c.parts, c.noise, power, x));
    const clean = w.map(x => X.logSpectrum(c.parts, c.noise, 0, x)), damping = w.map(x => X.logCharacteristic(c.noise, x));
    const curves = [["clean", 0, "clean"]];
    if (c.noisy) curves.push(["times φ", 1, "convolved"]);
    if (c.noisy) curves.push(["divided by φ", -1, c.forms.off ? "deconvolved" : "deconvolved missing"]);
    const top = 10 ** Math.ceil(clean[0] / Math.LN10 + 0.3);
    return {
      x: { low, high, log: true, label: "frequency ω" }, y: { low: top * 1e-8, high: top, log: true },
      layers: curves.map(([, power, style]) => ({
        type: "line", style, x: w, y: clean.map((value, i) => Math.exp(value + power * damping[i])),
      })).reverse(),
      readout: x => `at ω = ${shown(x)}: ` + curves.map(([n, power]) => `${n} ${shown(at(power)(x))}`).join(", "),
    };
  }

  function witnessFigure(c) {
    const z = grid(SHOWN.low, SHOWN.high, 151), curves = [];
    const clean = X.witness(c.tables.clean, c.x, c.y, z);
    curves.push(["no noise", clean, "clean"]);
    if (c.noisy) {
      curves.push(["noisy scores, same kernel", X.witness(c.tables.clean, c.nx, c.ny, z), "noisy"]);
      curves.push(["its mean", X.witness(c.tables.once, c.x, c.y, z), "convolved"]);
      if (c.tables.off) curves.push(["noise taken off", X.witness(c.tables.off, c.nx, c.ny, z), "deconvolved"]);
    }
    const size = curve => maximum(curve.value.map(Math.abs));
    const floor = 0.05 * Math.abs(c.tables.clean(0) - c.tables.clean(1));
    const off = curves.find(curve => curve[2] === "deconvolved");
    const top = X.roundUp(1.15 * Math.max(floor, ...curves.filter(k => k !== off).map(k => size(k[1])),
      off ? Math.min(size(off[1]), 4 * size(clean)) : 0));
    const layers = [];
    for (const [, curve, style] of curves.filter(k => k[2] === "noisy" || k[2] === "deconvolved")) {
      const low = curve.value.map((v, i) => v - 2 * curve.error[i]), high = curve.value.map((v, i) => v + 2 * curve.error[i]);
      layers.push({ type: "band", style, x: z, low, high });
    }
    for (const [, curve, style] of [...curves].reverse()) layers.push({ type: "line", style, x: z, y: curve.value });
    const nearest = at => Math.round(100 * (at - SHOWN.low));
    return {
      x: { ...SHOWN, label: "score z" }, y: { low: -top, high: top }, layers,
      readout: at => `at score ${shown(z[nearest(at)])}: ` +
        curves.map(([n, k]) => `${n} ${shown(k.value[nearest(at)])}`).join(", "),
    };
  }

  function scoresFigure(c) {
    const { low, high } = SHOWN, bins = 48;
    const of = (values, style) => ({ type: "bars", style, ...X.histogram(values, low, high, bins) });
    const outline = (values, style) => {
      const { counts, edges } = X.histogram(values, low, high, bins);
      return { type: "line", style, x: edges.flatMap(e => [e, e]), y: [0, ...counts.flatMap(k => [k, k]), 0] };
    };
    const layers = [of(c.x, "group-a"), of(c.y, "group-b")];
    if (c.noisy) layers.push(outline(c.nx, "group-a"), outline(c.ny, "group-b"));
    const top = Math.max(...layers.slice(0, 2).flatMap(layer => layer.counts));
    const within = (values, at) => values.filter(v => v <= at).length / values.length;
    return {
      x: { low, high, label: "score" }, y: { low: 0, high: 1.1 * top }, layers,
      readout: at => `scores up to ${shown(at)}: A ${Math.round(100 * within(c.x, at))}%, B ${Math.round(100 * within(c.y, at))}%` +
        (c.noisy ? `; noisy A ${Math.round(100 * within(c.nx, at))}%, B ${Math.round(100 * within(c.ny, at))}%` : ""),
    };
  }

  // One more draw of noise on the same scores: MMD² of the noisy scores, and with the noise taken off twice.
  function oneDraw(c, index) {
    const nx = X.withNoise(c.x, c.noise, c.seed, STREAM + 2 * index), ny = X.withNoise(c.y, c.noise, c.seed, STREAM + 2 * index + 1);
    const off = c.tables.offTwice;
    return [X.mmd2(c.tables.clean, nx, ny).value, off ? X.mmd2(off, nx, ny).value : NaN];
  }

  function drawsFigure(c, draws) {
    const marks = [c.mmd2.clean.value, ...(c.noisy ? [c.mmd2.convolved.value] : [])];
    const noisy = draws.map(d => d[0]), off = draws.map(d => d[1]).filter(Number.isFinite);
    const sorted = [...noisy, ...off].sort((a, b) => a - b), cut = Math.floor(0.005 * sorted.length);
    const e = c.mmd2.clean.standardError;
    const values = c.noisy ? [...marks, sorted[cut], sorted[sorted.length - 1 - cut]].filter(Number.isFinite)
      : [marks[0] - 3 * e, marks[0] + 3 * e, 0];
    let low = Math.min(...values), high = Math.max(...values);
    const pad = 0.08 * (high - low) || 0.1 * Math.abs(high) || 1;
    [low, high] = [low - pad, high + pad];
    const layers = [], bins = 48;
    let top = 1;
    for (const [sample, style] of [[off, "deconvolved"], [noisy, "noisy"]]) {
      if (!sample.length) continue;
      const counted = X.histogram(sample, low, high, bins);
      top = Math.max(top, ...counted.counts);
      layers.push({ type: "bars", style, ...counted });
    }
    if (!c.noisy) layers.push({ type: "bars", style: "interval", edges: [marks[0] - e, marks[0] + e], counts: [1] });
    layers.push({ type: "mark", style: "clean", x: marks[0] });
    if (c.noisy) layers.push({ type: "mark", style: "convolved", x: marks[1] });
    const below = (sample, at) => sample.filter(v => v <= at).length;
    return {
      x: { low, high, label: "MMD²" }, y: { low: 0, high: 1.12 * top }, layers,
      readout: at => `up to ${shown(at)}: ${below(noisy, at)} of ${noisy.length} draws with the same kernel` +
        (off.length ? `, ${below(off, at)} of ${off.length} with the noise taken off` : ""),
    };
  }

  // The share of the shared scores that the plots of scores do not show.
  function outside(c) {
    const count = values => values.filter(v => v < SHOWN.low || v > SHOWN.high).length;
    return (count(c.nx) + count(c.ny)) / (c.nx.length + c.ny.length);
  }

  const mean = values => values.reduce((sum, v) => sum + v, 0) / values.length;
  function deviation(values) {
    const m = mean(values);
    return Math.sqrt(values.reduce((sum, v) => sum + (v - m) ** 2, 0) / (values.length - 1));
  }

  Object.assign(X, {
    computed, kernelFigure, spectrumFigure, witnessFigure, scoresFigure, drawsFigure, oneDraw, mean, deviation,
    effectiveBandwidth, outside,
  });
})(typeof window === "undefined" ? globalThis : window);
