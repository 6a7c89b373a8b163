// The page: controls, what they stand for, the address that holds them, and drawing again when one of them moves.
(function () {
  "use strict";
  const X = window.privfairExplorer, shown = X.shown, by = id => document.getElementById(id);
  const START = JSON.parse(by("start").textContent);
  const REPEATS = 200, MOST_PARTS = 4;
  const KINDS = [
    ["gaussian", "Gaussian"], ["laplace", "Laplace"], ["energy", "energy"], ["matern32", "Matérn-3/2"],
    ["matern52", "Matérn-5/2"], ["cauchy", "Cauchy"], ["rq", "rational quadratic"],
  ];
  // where a slider begins and ends, whether in equal ratios, and which numbers are taken
  const RANGES = {
    scale: { low: 0.01, high: 3, ratio: true, least: 1e-3, most: 1e3 },
    epsilon: { low: 0.1, high: 100, ratio: true, least: 1e-3, most: 1000 },
    delta: { low: 1e-9, high: 1e-3, ratio: true, least: 1e-12, most: 0.1 },
    rounds: { low: 1, high: 1000, ratio: true, whole: true, least: 1, most: 100000 },
    rate: { low: 0.001, high: 1, ratio: true, least: 1e-6, most: 1 },
    difference: { low: 0, high: 1, least: 0, most: 1 },
    spread: { low: 0.2, high: 2, least: 0.05, most: 5 },
    count: { low: 20, high: 400, ratio: true, whole: true, least: 5, most: 400 },
    bandwidth: { low: 0.02, high: 2, ratio: true, least: 1e-3, most: 1e3 },
    alpha: { low: 0.6, high: 20, ratio: true, least: 0.501, most: 100 },
    factor: { low: 0.1, high: 10, ratio: true, least: 1e-3, most: 1e3 },
  };

  function defaults() {
    return {
      parts: X.parseKernel(START.kernel), noise: X.parseNoise(START.noise), delta: 1e-5, rounds: 100, rate: 0.1,
      shape: "shifted", difference: 0.5, spread: 0.8, count: 200, seed: 1,
    };
  }
  let state = defaults(), lastScale = state.noise.scale || 0.2, current = null, draws = [], job = 0;

  // ---- the address: #k=gaussian:0.3&n=laplace:0.2&… --------------------------------------------------------------

  function toHash(s) {
    const groups = [s.shape, s.difference, s.spread, s.count].map(v => (typeof v === "number" ? X.short(v) : v)).join(":");
    const plan = [s.delta, s.rounds, s.rate].map(v => X.short(v)).join(":");
    return `k=${X.kernelName(s.parts)}&n=${X.noiseName(s.noise)}&p=${plan}&g=${groups}&s=${s.seed}`;
  }
  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch (error) {
      return ""; // a damaged address says nothing
    }
  }
  // What the address says; whatever it does not say, or says wrongly, is as the page was made.
  function fromHash(text) {
    const s = defaults(), given = {};
    for (const pair of decoded(text.replace(/^#/, "")).split("&")) {
      const at = pair.indexOf("=");
      if (at > 0) given[pair.slice(0, at)] = pair.slice(at + 1);
    }
    if (given.k) s.parts = X.parseKernel(given.k) || s.parts;
    if (given.n) s.noise = X.parseNoise(given.n) || s.noise;
    const take = (names, text) => names.forEach((name, i) => {
      const number = Number((text || "").split(":")[i]), range = RANGES[name];
      if (number >= range.least && number <= range.most) s[name] = range.whole ? Math.round(number) : number;
    });
    take(["delta", "rounds", "rate"], given.p);
    const [shape, ...rest] = (given.g || "").split(":");
    if (["shifted", "spread", "peaks"].includes(shape)) s.shape = shape;
    take(["difference", "spread", "count"], rest.join(":"));
    if (/^\d{1,6}$/.test(given.s || "")) s.seed = Number(given.s);
    return s;
  }

  // ---- sliders -----------------------------------------------------------------------------------------------------

  function toShare(range, value) {
    const f = range.ratio ? Math.log : x => x;
    return 1000 * (f(value) - f(range.low)) / (f(range.high) - f(range.low));
  }
  function fromShare(range, share) {
    const t = share / 1000, value = range.ratio ? range.low * (range.high / range.low) ** t : range.low + (range.high - range.low) * t;
    return range.whole ? Math.round(value) : Number(value.toPrecision(range.ratio && range.low < 1e-5 ? 1 : 3));
  }
  // Show a value in a slider and its number, but do not disturb the one that somebody is using.
  function show(slider, range, value) {
    const [number, bar] = [slider.querySelector("[type=number]"), slider.querySelector("[type=range]")];
    const written = Number.isFinite(value) ? X.short(value, 4) : "";
    if (document.activeElement !== number) number.value = written;
    if (document.activeElement !== bar || fromShare(range, Number(bar.value)) !== value) {
      bar.value = Number.isFinite(value) ? toShare(range, Math.max(value, range.low)) : 1000;
    }
    bar.setAttribute("aria-valuetext", written || "none");
  }
  // Call `changed` with the new value whenever the slider or its number is moved.
  function listen(slider, range, changed) {
    const [number, bar] = [slider.querySelector("[type=number]"), slider.querySelector("[type=range]")];
    number.min = range.least;
    number.max = range.most;
    bar.addEventListener("input", () => changed(fromShare(range, Number(bar.value))));
    number.addEventListener("input", () => {
      const value = Number(number.value);
      const fine = number.value !== "" && value >= range.least && value <= range.most;
      number.setAttribute("aria-invalid", String(!fine));
      if (fine) changed(range.whole ? Math.round(value) : value);
    });
    number.addEventListener("blur", () => { number.removeAttribute("aria-invalid"); showControls(); });
  }
  const sliderOf = id => document.querySelector(`[data-value="${id}"]`);

  // ---- rows of kernels ---------------------------------------------------------------------------------------------

  function partRow(part, index) {
    const row = document.createElement("div");
    row.className = "part";
    const kind = part.kind === "rq" && !part.general && part.alpha === 1 ? "cauchy" : part.kind;
    const options = KINDS.map(([value, name]) => `<option value="${value}"${value === kind ? " selected" : ""}>${name}</option>`);
    row.innerHTML = `<div class="part-head"><select aria-label="Kernel ${index + 1}">${options.join("")}</select></div>`;
    row.querySelector("select").addEventListener("change", event => {
      const chosen = event.target.value, bandwidth = part.bandwidth || 0.3;
      const made = { kind: chosen === "cauchy" ? "rq" : chosen, factor: part.factor };
      if (chosen !== "energy") made.bandwidth = bandwidth;
      if (made.kind === "rq") made.alpha = chosen === "rq" ? 2 : 1;
      state.parts[index] = made;
      rebuildParts();
      by("parts").querySelectorAll("select")[index].focus();
      update();
    });
    if (state.parts.length > 1) {
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "remove";
      remove.setAttribute("aria-label", `Remove kernel ${index + 1}`);
      remove.addEventListener("click", () => { state.parts.splice(index, 1); rebuildParts(); by("add").focus(); update(); });
      row.querySelector(".part-head").append(remove);
    }
    const wanted = [];
    if (part.kind !== "energy") wanted.push(["bandwidth", "bandwidth ℓ"]);
    if (kind === "rq") wanted.push(["alpha", "tail α (small is heavy)"]);
    if (state.parts.length > 1 || part.factor !== 1) wanted.push(["factor", "times"]);
    for (const [name, text] of wanted) {
      const slider = document.createElement("div"), id = `${name}-${index}`;
      slider.className = "slider";
      slider.dataset.value = id;
      slider.innerHTML = `<label for="${id}">${text}</label><input type="number" step="any" inputmode="decimal" ` +
        `aria-label="${text} of kernel ${index + 1}, as a number"><input type="range" id="${id}" min="0" max="1000">`;
      row.append(slider);
      listen(slider, RANGES[name], value => {
        state.parts[index][name] = value;
        if (name === "alpha") state.parts[index].general = true; // α = 1 on the way: the slider stays
        update();
      });
    }
    return row;
  }
  function rebuildParts() {
    by("parts").replaceChildren(...state.parts.map(partRow));
    by("add").hidden = state.parts.length >= MOST_PARTS;
    showControls();
  }

  function showControls() {
    state.parts.forEach((part, i) => ["bandwidth", "alpha", "factor"].forEach(name => {
      const slider = sliderOf(`${name}-${i}`);
      if (slider) show(slider, RANGES[name], part[name]);
    }));
    const noisy = state.noise.kind !== "none";
    for (const name of ["delta", "rounds", "rate", "difference", "spread", "count"]) show(sliderOf(name), RANGES[name], state[name]);
    show(sliderOf("scale"), RANGES.scale, noisy ? state.noise.scale : NaN);
    show(sliderOf("epsilon"), RANGES.epsilon, X.oneRelease(state.noise, state.delta));
    for (const name of ["scale", "epsilon"]) {
      sliderOf(name).classList.toggle("off", !noisy);
      sliderOf(name).querySelectorAll("input").forEach(input => { input.disabled = !noisy; });
    }
    by("scale-hint").textContent = { none: "The scores are shared as they are.", gaussian: "σ; scores lie in [0, 1].",
      laplace: "b; scores lie in [0, 1]." }[state.noise.kind];
    document.querySelector(`[name=noise][value=${state.noise.kind}]`).checked = true;
    by("shape").value = state.shape;
    by("seed").textContent = state.seed;
    by("controls-now").textContent = `${X.kernelName(state.parts)}, noise ${X.noiseName(state.noise)}`;
  }

  // ---- drawing -----------------------------------------------------------------------------------------------------

  function update(keepHash) {
    const started = performance.now();
    showControls();
    current = X.computed(state);
    draws = [];
    X.say(current, draws);
    drawFigures();
    X.lastUpdate = performance.now() - started;
    if (!keepHash) history.replaceState(null, "", `#${toHash(state)}`);
    document.documentElement.dataset.draws = "0";
    const mine = ++job;
    if (current.noisy) setTimeout(() => more(mine), 30);
    else document.documentElement.dataset.draws = "none";
  }
  function drawFigures() {
    X.draw({
      kernel: X.kernelFigure(current), spectrum: X.spectrumFigure(current), witness: X.witnessFigure(current),
      scores: X.scoresFigure(current), draws: X.drawsFigure(current, draws),
    });
  }
  // More draws of the noise, for some milliseconds at a time so that the sliders stay quick.
  function more(mine) {
    if (mine !== job) return;
    const until = performance.now() + 12;
    while (draws.length < REPEATS && performance.now() < until) draws.push(X.oneDraw(current, draws.length));
    X.draw({ draws: X.drawsFigure(current, draws) });
    X.sayDraws(current, draws);
    if (draws.length < REPEATS) setTimeout(() => more(mine), 0);
    else { X.sayPrice(current, START.quadrature); document.documentElement.dataset.draws = String(REPEATS); }
  }

  // ---- wiring ------------------------------------------------------------------------------------------------------

  for (const name of ["rounds", "rate", "difference", "spread", "count", "delta"]) {
    listen(sliderOf(name), RANGES[name], value => { state[name] = value; update(); });
  }
  listen(sliderOf("scale"), RANGES.scale, value => { state.noise.scale = lastScale = value; update(); });
  listen(sliderOf("epsilon"), RANGES.epsilon, value => {
    const scale = X.scaleFor(state.noise.kind, value, state.delta);
    state.noise.scale = lastScale = Math.min(Math.max(Number(scale.toPrecision(6)), 1e-3), 1e3);
    update();
  });
  document.querySelectorAll("[name=noise]").forEach(radio => radio.addEventListener("change", () => {
    state.noise = { kind: radio.value, scale: radio.value === "none" ? 0 : lastScale };
    update();
  }));
  by("shape").addEventListener("change", () => { state.shape = by("shape").value; update(); });
  by("redraw").addEventListener("click", () => { state.seed = (state.seed + 1) % 1000000; update(); });
  by("reset").addEventListener("click", () => { state = defaults(); rebuildParts(); update(); });
  by("add").addEventListener("click", () => { state.parts.push({ kind: "energy", factor: 1 }); rebuildParts(); update(); });
  by("share").addEventListener("click", () => {
    const said = text => { by("shared").textContent = text; };
    const held = "The address of this page holds the view.";
    if (!navigator.clipboard) said(held);
    else navigator.clipboard.writeText(location.href).then(() => said("Copied."), () => said(held));
  });
  window.addEventListener("hashchange", () => { state = fromHash(location.hash); rebuildParts(); update(true); });
  window.addEventListener("resize", drawFigures);
  window.addEventListener("beforeprint", drawFigures);
  document.querySelectorAll(".chart").forEach(X.follow);
  if (window.matchMedia("(max-width: 48rem)").matches) by("controls").open = false;
  if (location.hash.length > 1) state = fromHash(location.hash);
  rebuildParts();
  update(location.hash.length <= 1);
  X.page = { get state() { return state; }, get current() { return current; }, get draws() { return draws; } };
})();
