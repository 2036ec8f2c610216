"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const BELOW_AXIS = 62; // pixels that tick labels and the title of the axis take below a plot
  const AROUND = 130; // pixels of a plot's height that are not its area
  const NARROW = 500; // pixels below which labels are smaller

  function axis(settings) {
    return {
      gridcolor: colour("--line"),
      zerolinecolor: colour("--line"),
      linecolor: colour("--line"),
      automargin: true,
      ...settings,
    };
  }

  function layoutOf(plot, element) {
    const below = -BELOW_AXIS / Math.max(element.clientHeight - AROUND, 100);
    const layout = {
      margin: { l: 50, r: 12, t: plot.layout.annotations ? 48 : 30, b: 44 }, // labels lie below the buttons
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), family: "system-ui, sans-serif", size: element.clientWidth < NARROW ? 11 : 13 },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      hovermode: "closest",
      // a finger that scrolls the page must not be caught by a plot; the buttons above it zoom
      dragmode: touch ? false : "zoom",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--faint"), activecolor: colour("--ink") },
      ...plot.layout,
      legend: { orientation: "h", x: 0, y: below, yanchor: "top", ...plot.layout.legend },
      xaxis: axis(plot.layout.xaxis),
      yaxis: axis(plot.layout.yaxis),
    };
    if (layout.coloraxis) {
      const bar = { orientation: "h", x: 0.5, y: below, yanchor: "top", thickness: 12, outlinewidth: 0 };
      layout.coloraxis = { ...layout.coloraxis, colorbar: { ...bar, ...layout.coloraxis.colorbar } };
    }
    return layout;
  }

  // whiskers are seen on light and on dark paper
  function coloured(trace) {
    return trace.error_y ? { ...trace, error_y: { ...trace.error_y, color: colour("--ink") } } : trace;
  }

  function draw() {
    for (const plot of plots) {
      const element = document.getElementById(plot.name);
      Plotly.react(element, plot.traces.map(coloured), layoutOf(plot, element), {
        responsive: true,
        displaylogo: false,
        displayModeBar: touch ? true : "hover",
        modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
      });
    }
  }

  draw();
  dark.addEventListener("change", draw);
})();
