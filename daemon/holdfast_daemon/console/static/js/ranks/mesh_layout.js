/** Where each rank's cell is on the canvas. */

const GAP_BLOCK = 28;
const SIZES = [44, 36, 30, 26, 22, 18, 15, 12, 10, 8, 7, 6, 5, 4, 3];

/**
 * A layout: position of each rank's cell in CSS pixels.
 * @typedef {{x: Float32Array, y: Float32Array, size: number, width: number, height: number,
 *     labels: {text: string, x: number, y: number}[], words: string}} MeshLayout
 */

/**
 * Arranges ranks: a block for each index of the first axis, a column for each place on the middle axes, and the last
 * axis down the column. Ranks of unknown place are arranged by node.
 * @param {{count: number, axes: {name: string, size: number}[], places: number[][] | null, nodes: string[],
 *     node_of: number[]}} mesh
 * @param {number} width Width of the canvas.
 * @param {number} maxHeight Height that the cells should not exceed.
 * @returns {MeshLayout}
 */
export function layOut(mesh, width, maxHeight) {
  const { blocks, columns, inner, words } = mesh.places ? byPlace(mesh) : byNode(mesh);
  for (const size of SIZES) {
    const layout = attempt(mesh.count, { blocks, columns, inner }, width, size);
    if (layout.height <= maxHeight || size === SIZES.at(-1)) return { ...layout, words };
  }
  return undefined;
}

function byPlace({ axes, places }) {
  const last = axes.length - 1;
  const columnSizes = axes.slice(1, last);
  const inner = Int32Array.from(places, (place) => (last > 0 ? place[last] : 0));
  const columns = Int32Array.from(places, (place) => columnSizes.reduce(
    (column, axis, index) => column * axis.size + place[index + 1], 0));
  const blocks = { of: Int32Array.from(places, (place) => place[0]),
    names: Array.from({ length: axes[0].size }, (_, index) => (axes[0].size > 1 ? `${axes[0].name} ${index}` : "")) };
  const middle = columnSizes.map(({ name }) => name).join(" and ");
  const words = [axes[0].size > 1 && `a block for each ${axes[0].name}`, middle && `columns are ${middle}`,
    last > 0 && axes[last].size > 1 && `cells in a column are ${axes[last].name}`].filter(Boolean).join(", ");
  return { blocks, columns, inner, words: words && `Layout: ${words}.` };
}

function byNode({ count, nodes, node_of: nodeOf }) {
  const next = new Int32Array(nodes.length);
  const inner = Int32Array.from({ length: count }, (_, rank) => next[nodeOf[rank]]++);
  if (nodes.length <= 16) {
    return { blocks: { of: Int32Array.from(nodeOf), names: nodes }, columns: inner, inner: new Int32Array(count),
      words: "Layout: a block for each node." };
  }
  return { blocks: { of: new Int32Array(count), names: [""] }, columns: Int32Array.from(nodeOf), inner,
    words: "Layout: a column for each node." };
}

function attempt(count, { blocks, columns, inner }, width, size) {
  const gap = size >= 12 ? 2 : 1;
  const pitch = size + gap;
  const columnGap = size >= 12 ? 4 : 1;
  const labelled = blocks.names.some((name) => name !== "");
  const perRow = Math.max(Math.floor(width / (pitch + columnGap)), 1);
  const deepest = new Int32Array(blocks.names.length).fill(-1);
  const widest = new Int32Array(blocks.names.length).fill(-1);
  for (let rank = 0; rank < count; rank += 1) {
    const block = blocks.of[rank];
    deepest[block] = Math.max(deepest[block], inner[rank]);
    widest[block] = Math.max(widest[block], columns[rank]);
  }
  const tops = [];
  const labels = [];
  let height = 0;
  blocks.names.forEach((text, block) => {
    if (labelled) {
      labels.push({ text, x: 0, y: height + 12 });
      height += 18;
    }
    tops.push(height);
    const rows = Math.max(Math.ceil((widest[block] + 1) / perRow), 0);
    const rowHeight = (deepest[block] + 1) * pitch + columnGap;
    height += rows * rowHeight + (labelled ? GAP_BLOCK - 18 : 0);
  });
  const x = new Float32Array(count);
  const y = new Float32Array(count);
  for (let rank = 0; rank < count; rank += 1) {
    const block = blocks.of[rank];
    const rowHeight = (deepest[block] + 1) * pitch + columnGap;
    x[rank] = 3 + (columns[rank] % perRow) * (pitch + columnGap);
    y[rank] = 3 + tops[block] + Math.floor(columns[rank] / perRow) * rowHeight + inner[rank] * pitch;
  }
  return { x, y, size, width, height: height + 6, labels };
}

/** Returns the rank whose cell is at a point, or -1. */
export function rankAt(layout, x, y) {
  for (let rank = 0; rank < layout.x.length; rank += 1) {
    const [left, top] = [layout.x[rank], layout.y[rank]];
    if (x >= left && x < left + layout.size + 1 && y >= top && y < top + layout.size + 1) return rank;
  }
  return -1;
}

/**
 * Returns the nearest rank in a direction, or the same rank at the edge.
 * @param {MeshLayout} layout
 * @param {number} from
 * @param {number} dx -1, 0 or 1.
 * @param {number} dy Likewise.
 */
export function neighbour(layout, from, dx, dy) {
  let best = from;
  let bestCost = Infinity;
  for (let rank = 0; rank < layout.x.length; rank += 1) {
    const across = layout.x[rank] - layout.x[from];
    const down = layout.y[rank] - layout.y[from];
    const ahead = across * dx + down * dy;
    if (ahead <= 0) continue;
    const cost = ahead + 4 * Math.abs(across * dy + down * dx);
    if (cost < bestCost) [best, bestCost] = [rank, cost];
  }
  return best;
}
