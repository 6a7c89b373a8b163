// Draws every <figure class="plot">: in the colours of the page, again when they change (light, dark, paper).
(function () {
  "use strict";
  var COMMON = {
    margin: { l: 58, r: 18, t: 14, b: 52 },
    hovermode: "closest",
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, xanchor: "left" },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)"
  };
  var CONFIG = {
    responsive: true, displaylogo: false, scrollZoom: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]
  };

  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

  // "var(--mark-1)" anywhere in a figure becomes the colour that the page has for it now; "var(--mark-1)/0.2" lets
  // the background through.
  function coloured(value) {
    if (typeof value === "string") {
      var found = /^var\((--[a-z0-9-]+)\)(?:\/([0-9.]+))?$/.exec(value);
      if (!found) { return value; }
      var hex = colour(found[1]);
      if (!found[2]) { return hex; }
      if (hex.length === 4) { hex = "#" + hex[1] + hex[1] + hex[2] + hex[2] + hex[3] + hex[3]; }
      var parts = [1, 3, 5].map(function (i) { return parseInt(hex.substr(i, 2), 16); });
      return "rgba(" + parts.join(",") + "," + found[2] + ")";
    }
    if (Array.isArray(value)) { return value.map(coloured); }
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (key) { copy[key] = coloured(value[key]); });
      return copy;
    }
    return value;
  }

  function axis(given) {
    var own = {
      gridcolor: colour("--line"), linecolor: colour("--line-strong"), zerolinecolor: colour("--line-strong"),
      tickcolor: colour("--line-strong"), automargin: true, zeroline: false, showline: true, ticks: "outside", ticklen: 4
    };
    var all = Object.assign(own, coloured(given || {}));
    if (all.title) { all.title = Object.assign({ font: { size: 13 }, standoff: 8 }, all.title); }
    return all;
  }

  function layout(given, narrow) {
    var all = Object.assign({}, COMMON, coloured(given));
    all.font = { family: colour("--sans"), size: narrow ? 12 : 13, color: colour("--ink") };
    all.hoverlabel = { bgcolor: colour("--card"), bordercolor: colour("--line-strong"),
                       font: { color: colour("--ink"), family: colour("--sans") }, align: "left" };
    all.modebar = { bgcolor: "rgba(0,0,0,0)", color: colour("--line-strong"), activecolor: colour("--link") };
    Object.keys(given).concat(["xaxis", "yaxis"]).forEach(function (key) {
      if (/^[xy]axis\d*$/.test(key)) { all[key] = axis(given[key]); }
    });
    return all;
  }

  function draw(figure, size) {
    var area = figure.querySelector(".plot-area");
    var spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    var look = layout(spec.layout, area.clientWidth < 480);
    if (size) { look.width = size.width; look.height = size.height; look.autosize = false; }
    return Plotly.react(area, coloured(spec.data), look, CONFIG);
  }

  var figures = Array.prototype.slice.call(document.querySelectorAll("figure.plot"));
  function all(size) { figures.forEach(function (figure) { draw(figure, size); }); }

  all();
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", function () { all(); });
  // The width of an A4 sheet between its margins, in CSS pixels less the frame of a figure; nothing waits for a resize.
  var paper = { width: 655, height: 280 };
  window.matchMedia("print").addEventListener("change", function (event) { all(event.matches ? paper : null); });
  window.addEventListener("beforeprint", function () { all(paper); });
  window.addEventListener("afterprint", function () { all(); });
  document.documentElement.setAttribute("data-plots", String(figures.length));
})();
