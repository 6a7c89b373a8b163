// What the figures say, in words and in the table.
(function (root) {
  "use strict";
  const X = root.privfairExplorer, shown = X.shown, by = id => document.getElementById(id);
  const percent = share => `${Math.round(100 * share)}%`;

  function sayKernel(c) {
    const { clean, once } = c.bandwidth, unbounded = clean === null;
    if (!c.noisy) {
      return unbounded ? "The energy kernel has no bandwidth: it compares scores over every distance."
        : `It has fallen to e<sup>−½</sup> of its peak at a distance of <b>${shown(clean)}</b>. Choose a noise to see what it does.`;
    }
    const off = c.forms.off ? " The orange kernel is sharper: noise turns it into the black one." : "";
    if (unbounded) {
      return `Noise rounds off the tip, over a distance of about <b>${shown(c.noise.scale)}</b>; far out nothing changes.${off}`;
    }
    const peak = c.forms.once(0) / c.forms.clean(0);
    return `Noise lowers the peak to <b>${percent(peak)}</b> and widens the kernel from <b>${shown(clean)}</b> to ` +
      `<b>${shown(once)}</b>.${off}`;
  }

  function saySpectrum(c) {
    if (!c.noisy) return "How much the kernel counts slow (left) and fast (right) differences between the groups.";
    const width = c.bandwidth.clean || 0.3, w = 2 / width;
    const kept = Math.exp(X.logCharacteristic(c.noise, w));
    const damped = `Noise multiplies it by its characteristic function φ: at ω = ${shown(w)}, <b>${shown(kept)}</b> is left.`;
    return damped + (c.forms.off ? " Dividing by φ instead still falls fast enough to be a kernel’s."
      : " Divided by φ it no longer falls fast enough: no kernel has that spectrum.");
  }

  function sayWitness(c) {
    const alike = "Where C is above zero, scores are more like group A’s. ";
    if (!c.noisy) return `${alike}Training moves scores of A down its slope, and scores of B up.`;
    return `${alike}Noisy scores see it blurred (blue)${c.forms.off ? "; with the noise taken off they see it right on average, and more shakily" : ""}. ` +
      "Bands: two standard errors.";
  }

  const plusMinus = estimate => `${shown(estimate.value)} ± ${shown(estimate.standardError)}`;
  function row(name, style, now, many) {
    return `<tr><th scope="row"><span class="key ${style}">${name}</span></th><td class="number">${now}</td>` +
      `<td class="number">${many}</td></tr>`;
  }

  // The histogram's caption and the table; again as draws come in.
  function sayDraws(c, draws) {
    const over = k => {
      const values = draws.map(d => d[k]);
      return values.length > 1 ? `${shown(X.mean(values))}, ${shown(X.deviation(values))}` : "…";
    };
    const { clean, noisy, convolved, deconvolved } = c.mmd2;
    const rows = [row("clean scores, the kernel", "clean", plusMinus(clean), "")];
    if (c.noisy) {
      rows.push(row("noisy scores, the kernel", "noisy", plusMinus(noisy), over(0)));
      rows.push(row("clean scores, convolved twice", "convolved", plusMinus(convolved), ""));
      rows.push(row("noisy scores, deconvolved twice", "deconvolved", deconvolved ? plusMinus(deconvolved) : "none",
        deconvolved ? over(1) : ""));
    }
    by("mmd2").innerHTML = rows.join("");
    by("repeats").textContent = draws.length;
    let text = `The groups differ by <b>${plusMinus(clean)}</b>: the error is over which records were drawn.`;
    if (c.noisy) {
      text = `Noise shrinks the difference from <b>${shown(clean.value)}</b> to about <b>${shown(convolved.value)}</b>: ` +
        "both scores of a pair carry it.";
      text += deconvolved ? " Taken off twice, the estimate is right on average, with a spread of its own."
        : " With this kernel it cannot be taken off again.";
    }
    by("draws-caption").innerHTML = text;
  }

  // How many more scores the sharper kernel needs: slow to compute, so only when the draws are done.
  function sayPrice(c, quadrature) {
    if (!c.forms.off || !c.forms.off.slope || !c.forms.clean.slope) return;
    const factor = priceOf(c, quadrature);
    by("witness-caption").innerHTML = `${sayWitness(c)} For the same error of its slope, the sharper kernel needs ` +
      `<b>${shown(factor)} times</b> as many scores.`;
  }
  function priceOf(c, quadrature) {
    const { nodes, weights } = quadrature[c.noise.kind], width = X.finest(c.parts, c.noise, -1);
    const slope = X.table(c.forms.off.slope, width, 2 + 8 * c.noise.scale);
    return X.varianceFactor(c.forms.clean.slope, slope, nodes.map(n => n * c.noise.scale), weights, c.x, c.y);
  }

  function sayPlan(c) {
    const price = by("price");
    if (!c.noisy) {
      price.innerHTML = "Without noise nothing is protected: <strong>ε = ∞</strong>.";
      return;
    }
    const all = X.manyRounds(c.noise, c.delta, c.rate, c.rounds);
    price.innerHTML = `All rounds together: <strong>ε ≤ ${shown(all)}</strong> at δ = ${shown(c.delta)}, for one record more or ` +
      "less (add or remove), which moves one shared score by at most 1. " +
      `${all > 10 ? "An ε this large promises little. " : ""}Counts and model updates cost extra: ` +
      "<code>privfair calibrate</code> computes a run’s total.";
  }

  function sayWhy(id, reason) {
    by(id).textContent = reason;
    by(`${id}-box`).hidden = reason === "";
  }

  // Every word that follows from what was computed at once.
  function say(c, draws) {
    const explorer = document.querySelector(".explorer");
    explorer.classList.toggle("has-noise", c.noisy);
    explorer.classList.toggle("has-off", Boolean(c.forms.off));
    explorer.classList.toggle("has-off2", Boolean(c.forms.offTwice));
    by("kernel-caption").innerHTML = sayKernel(c);
    by("spectrum-caption").innerHTML = saySpectrum(c);
    by("witness-caption").innerHTML = sayWitness(c);
    by("outside").textContent = percent(X.outside(c));
    sayWhy("why", c.noisy ? X.noDeconvolution(c.parts, c.noise, 1) : "");
    sayWhy("why-twice", c.noisy && c.forms.off ? X.noDeconvolution(c.parts, c.noise, 2) : "");
    sayPlan(c);
    sayDraws(c, draws);
    const noise = c.noisy ? ` --noise ${X.noiseName(c.noise)}` : "";
    const calibrate = c.noisy ? `\nprivfair calibrate --rounds ${c.rounds} --samples-rate ${X.short(c.rate)} --predictions ${c.noise.kind} --delta ${X.short(c.delta)}` : "";
    by("command").textContent = `privfair kernels --kernel ${X.kernelName(c.parts)}${noise}${calibrate}`;
  }

  Object.assign(X, { say, sayDraws, sayPrice, priceOf });
})(window);
