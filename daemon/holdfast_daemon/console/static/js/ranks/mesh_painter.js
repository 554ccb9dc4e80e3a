/** Draws the map of ranks. Only cells whose colour has changed are drawn again. */

import { colour, shownTheme } from "../theme.js";
import { layOut } from "./mesh_layout.js";
import { palette } from "./palette.js";

const UPDATE = "holdfast-ranks-update";

/** Keeps the values of all ranks and draws them on two canvases: cells below, outlines above. */
export class MeshPainter {
  /**
   * @param {HTMLCanvasElement} cells
   * @param {HTMLCanvasElement} outlines
   */
  constructor(cells, outlines) {
    this.cells = cells;
    this.outlines = outlines;
    this.mesh = null;
    this.layout = null;
    this.focused = -1;
    this.hovered = -1;
    this.changed = new Set();
    this.frame = 0;
    this.spent = 0;
    this.measured = false;
    this.everything = true;
  }

  /** Shows a mesh, or the same one in another width. Its values, odd ranks and legend change with `update`. */
  show(mesh, width, maxHeight) {
    this.mesh = mesh;
    this.layout = layOut(mesh, width, maxHeight);
    const scale = window.devicePixelRatio || 1;
    for (const canvas of [this.cells, this.outlines]) {
      canvas.width = Math.round(this.layout.width * scale);
      canvas.height = Math.round(this.layout.height * scale);
      canvas.style.width = `${this.layout.width}px`;
      canvas.style.height = `${this.layout.height}px`;
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    this.recolour();
  }

  /** Draws everything again, in the colours of the theme. */
  recolour() {
    if (!this.mesh) return;
    this.ink = { text: colour("--text"), muted: colour("--muted"), surface: colour("--surface"), accent: colour("--accent") };
    this.setLegend(this.mesh.legend);
    this.everything = true;
    this.request();
  }

  /**
   * Takes in a `change` event of the stream.
   * @param {{values?: {at: number[], to: (number | null)[]}, legend?: object}} change Cells and their new values, and
   *     other keys of the mesh that have changed.
   */
  update(change) {
    const began = performance.now();
    if (change.legend) this.replaceLegend(change.legend);
    for (const name of ["odd", "behind", "odd_elsewhere", "odd_count", "totals"]) {
      if (change[name] !== undefined) this.mesh[name] = change[name];
    }
    const { at = [], to = [] } = change.values ?? {};
    for (let index = 0; index < at.length; index += 1) {
      const rank = at[index];
      this.mesh.values[rank] = to[index];
      const shade = this.palette.indexOf(to[index]);
      if (shade !== this.shades[rank]) {
        this.shades[rank] = shade;
        this.changed.add(rank);
      }
    }
    this.spent += performance.now() - began;
    this.measured = true;
    this.request();
  }

  /** Outlines the cell under the keyboard and the one under the pointer; -1: none. */
  point(focused, hovered) {
    this.focused = focused;
    this.hovered = hovered;
    this.request();
  }

  /** Stops drawing. */
  close() {
    cancelAnimationFrame(this.frame);
  }

  setLegend(legend) {
    this.mesh.legend = legend;
    this.palette = palette(legend, shownTheme());
    const { values } = this.mesh;
    const shades = new Uint8Array(this.mesh.count);
    for (let rank = 0; rank < shades.length; rank += 1) shades[rank] = this.palette.indexOf(values[rank] ?? null);
    this.shades = shades;
  }

  // The ramp of a range stays the same when its ends move: only cells with another shade are drawn.
  replaceLegend(legend) {
    const old = this.shades;
    this.setLegend(legend);
    if (legend.kind === "words") this.everything = true;
    for (let rank = 0; rank < old.length; rank += 1) if (old[rank] !== this.shades[rank]) this.changed.add(rank);
  }

  request() {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    if (!this.mesh) return;
    const began = performance.now();
    const context = this.cells.getContext("2d");
    if (this.everything) this.drawAll(context);
    else this.drawCells(context, this.changed);
    this.everything = false;
    this.changed.clear();
    this.drawOutlines(this.outlines.getContext("2d"));
    this.measure(began);
  }

  // The time of handler and drawing, for the browser's own tools. Kept entries would pile up: observers still see them.
  measure(began) {
    const end = performance.now();
    if (this.measured) {
      performance.measure(UPDATE, { start: Math.max(began - this.spent, 0), end });
      performance.clearMeasures(UPDATE);
    }
    this.measured = false;
    this.spent = 0;
  }

  drawAll(context) {
    const { width, height, labels } = this.layout;
    context.clearRect(0, 0, width, height);
    context.fillStyle = this.ink.muted;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    for (const { text, x, y } of labels) context.fillText(text, x + 3, y);
    this.drawCells(context, Array.from({ length: this.mesh.count }, (_, rank) => rank));
  }

  drawCells(context, ranks) {
    const { x, y, size } = this.layout;
    const byShade = this.palette.colours.map(() => []);
    for (const rank of ranks) byShade[this.shades[rank]].push(rank);
    byShade.forEach((same, shade) => {
      if (same.length === 0) return;
      context.fillStyle = this.palette.colours[shade];
      for (const rank of same) context.fillRect(x[rank], y[rank], size, size);
    });
    // The numbers of large runs have more digits than a cell has room for.
    if (size >= (this.mesh.ranks.at(-1) >= 1000 ? 36 : 22)) this.drawNumbers(context, ranks);
  }

  drawNumbers(context, ranks) {
    const { x, y, size } = this.layout;
    context.font = `600 ${size >= 30 ? 12 : 10}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const rank of ranks) {
      context.fillStyle = readable(this.palette.colours[this.shades[rank]]);
      context.fillText(String(this.mesh.ranks[rank]), x[rank] + size / 2, y[rank] + size / 2 + 1);
    }
  }

  drawOutlines(context) {
    const { width, height } = this.layout;
    context.clearRect(0, 0, width, height);
    for (const rank of this.mesh.odd) {
      const cell = this.mesh.ranks.indexOf(rank);
      if (cell >= 0) this.outline(context, cell, this.ink.text, 2);
    }
    if (this.hovered >= 0) this.outline(context, this.hovered, this.ink.muted, 2);
    if (this.focused >= 0) this.outline(context, this.focused, this.ink.accent, 3);
  }

  outline(context, rank, stroke, line) {
    const { x, y, size } = this.layout;
    context.lineWidth = line;
    context.strokeStyle = stroke;
    context.strokeRect(x[rank] - 1, y[rank] - 1, size + 2, size + 2);
  }
}

// Black or white, whichever is easier to read on a colour.
function readable(fill) {
  const channels = fill.startsWith("#")
    ? [1, 3, 5].map((at) => Number.parseInt(fill.slice(at, at + 2), 16)) : fill.match(/\d+/g).map(Number);
  return 0.299 * channels[0] + 0.587 * channels[1] + 0.114 * channels[2] > 130 ? "#10141a" : "#ffffff";
}
