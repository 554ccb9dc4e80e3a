"use strict";
// Draws the charts of the report from the data in the page.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const HEIGHT = 230;
  let prints = false;
  let plots = [];

  const colours = () =>
    dark.matches && !prints
      ? { lines: ["#7db7ff", "#f3c77c"], bands: ["#7db7ff33", "#f3c77c33"], text: "#a5aeb9", grid: "#39414b", mark: "#ff9d9d" }
      : { lines: ["#0b5cc2", "#b45309"], bands: ["#0b5cc22b", "#b453092b"], text: "#57606a", grid: "#dfe3e8", mark: "#a31621" };

  // All curves of a chart share one list of steps: those of each are put where they belong.
  const aligned = (curves) => {
    const steps = [...new Set(curves.flatMap((curve) => curve.step))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, index) => [step, index]));
    const columns = [steps];
    for (const curve of curves) {
      for (const name of ["mean", "low", "high"]) {
        const column = new Array(steps.length).fill(undefined);
        curve.step.forEach((step, index) => { column[place.get(step)] = curve[name][index]; });
        columns.push(column);
      }
    }
    return columns;
  };

  const short = (value) => {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(value);
    const rounded = (number) => String(Number(number.toPrecision(4)));
    if (size >= 1e6) return rounded(value / 1e6) + " M";
    if (size >= 1e4) return rounded(value / 1e3) + " k";
    return rounded(value);
  };

  const marks = (palette, curves) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = palette.mark;
    ctx.fillStyle = palette.mark;
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    for (const { step, label } of data.marks) {
      const x = Math.round(plot.valToPos(step, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(label, x, bbox.top - 3 * devicePixelRatio);
    }
    ctx.setLineDash([]);
    for (const curve of curves) {
      for (const step of curve.nonfinite) {
        const x = plot.valToPos(step, "x", true);
        ctx.fillRect(x - devicePixelRatio, bbox.top + bbox.height - 6 * devicePixelRatio, 2 * devicePixelRatio, 6 * devicePixelRatio);
      }
    }
    ctx.restore();
  };

  const draw = () => {
    plots.forEach((plot) => plot.destroy());
    const palette = colours();
    const axis = { stroke: palette.text, grid: { stroke: palette.grid, width: 1 }, ticks: { stroke: palette.grid, width: 1 } };
    plots = [...document.querySelectorAll(".chart")].map((place) => {
      const { curves } = data.charts[Number(place.dataset.chart)];
      const series = [{ label: "step", value: (_, step) => (step === null ? "-" : String(step)) }];
      const bands = [];
      curves.forEach((curve, index) => {
        const few = curve.step.length < 60;
        series.push({
          label: curve.name, stroke: palette.lines[index], width: 1.5, spanGaps: true,
          points: { show: few, size: 4 },
          value: (plot, value, _, at) => {
            if (at === null || value === null || value === undefined) return "-";
            const [low, high] = [plot.data[3 * index + 2][at], plot.data[3 * index + 3][at]];
            return low === high ? short(value) : `${short(value)} (${short(low)} to ${short(high)})`;
          },
        });
        for (let edge = 0; edge < 2; edge += 1) {  // lowest and highest value: the band is between them
          series.push({ class: "edge", stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
        }
        bands.push({ series: [3 * index + 3, 3 * index + 2], fill: palette.bands[index] });
      });
      return new uPlot(
        {
          width: Math.max(place.clientWidth, 240), height: HEIGHT, series, bands,
          padding: [18, 12, 0, 0],
          scales: { x: { time: false } },
          axes: [axis, { ...axis, size: 58, values: (_, values) => values.map(short) }],
          cursor: { drag: { x: true, y: false } },
          hooks: { draw: [marks(palette, curves)] },
        },
        aligned(curves),
        place,
      );
    });
  };

  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("resize", () => {
    plots.forEach((plot) => plot.setSize({ width: Math.max(plot.root.parentElement.clientWidth, 240), height: HEIGHT }));
  });
  window.addEventListener("beforeprint", () => { prints = true; draw(); });
  window.addEventListener("afterprint", () => { prints = false; draw(); });
})();
