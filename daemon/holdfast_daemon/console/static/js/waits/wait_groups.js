/** Who waits for whom, with ranks that wait alike taken together. */

/**
 * Ranks that wait in the same calls for the same ranks, and for which the same ranks wait.
 * @typedef {{ranks: number[], more: number, root: boolean, level: number}} WaitNode `root`: it holds the others up.
 *     `more` is the number of further ranks that wait as these do, and that are not listed.
 *     `level` is the number of calls between it and a root.
 * @typedef {{from: number, to: number, label: string}} WaitEdge Indexes of nodes: `from` waits for `to`.
 */

/**
 * Groups the waits of an incident.
 * @param {{waiter: number, awaited: number, group: string, seq: number, op: string, waiters: number}[]} waits The
 *     first few of each call; `waiters` is the number of all ranks that wait in it, or 0 if nobody has counted.
 * @param {number[]} culprits Ranks that the verdict names.
 * @returns {{nodes: WaitNode[], edges: WaitEdge[]}}
 */
export function groupWaits(waits, culprits) {
  const out = new Map();
  const into = new Map();
  const add = (map, rank, text) => {
    if (!map.has(rank)) map.set(rank, []);
    map.get(rank).push(text);
  };
  for (const wait of waits) {
    add(out, wait.waiter, `${wait.awaited} ${callWords(wait)}`);
    add(into, wait.awaited, callWords(wait));
  }
  const named = new Set(culprits);
  const ranks = [...new Set([...waits.flatMap(({ waiter, awaited }) => [waiter, awaited]), ...culprits])]
    .sort((a, b) => a - b);
  const nodes = [];
  const nodeOf = new Map();
  const bySign = new Map();
  for (const rank of ranks) {
    const sign = JSON.stringify([named.has(rank), uniqueSorted(out.get(rank)), uniqueSorted(into.get(rank))]);
    if (!bySign.has(sign)) {
      bySign.set(sign, nodes.length);
      nodes.push({ ranks: [], more: 0, root: named.has(rank) || !out.has(rank), level: -1 });
    }
    nodes[bySign.get(sign)].ranks.push(rank);
    nodeOf.set(rank, bySign.get(sign));
  }
  for (const { waiters, number } of awaitedCalls(waits)) {
    const node = nodes[nodeOf.get(waiters[0])];
    node.more = Math.max(node.more, number - waiters.length);
  }
  const edges = groupEdges(waits, nodeOf);
  setLevels(nodes, edges);
  return { nodes, edges };
}

/**
 * Returns each call in which a rank is awaited, with the waiting ranks that are listed and the number of all.
 * @returns {{awaited: number, call: string, waiters: number[], number: number}[]}
 */
export function awaitedCalls(waits) {
  const calls = new Map();
  for (const wait of waits) {
    const key = JSON.stringify([wait.awaited, wait.seq, wait.group]);
    if (!calls.has(key)) calls.set(key, { awaited: wait.awaited, call: callWords(wait), waiters: [], number: 0 });
    const found = calls.get(key);
    if (!found.waiters.includes(wait.waiter)) found.waiters.push(wait.waiter);
    found.number = Math.max(found.number, found.waiters.length, wait.waiters ?? 0);
  }
  return [...calls.values()];
}

/** Returns the words for the call of a wait: "all_reduce 412 in dp". */
export function callWords({ op, seq, group }) {
  return [op, seq || "", group && `in ${group}`].filter(Boolean).join(" ");
}

function uniqueSorted(texts) {
  return [...new Set(texts ?? [])].sort();
}

function groupEdges(waits, nodeOf) {
  const labels = new Map();
  for (const wait of waits) {
    const key = `${nodeOf.get(wait.waiter)} ${nodeOf.get(wait.awaited)}`;
    if (!labels.has(key)) labels.set(key, new Set());
    labels.get(key).add(callWords(wait));
  }
  return [...labels].map(([key, calls]) => {
    const [from, to] = key.split(" ").map(Number);
    const [first] = calls;
    return { from, to, label: calls.size > 1 ? `${first} and ${calls.size - 1} more` : first };
  });
}

// Distance to the nearest root; of a circle without a root, its first node stands for one.
function setLevels(nodes, edges) {
  const waitersOf = nodes.map(() => []);
  for (const { from, to } of edges) waitersOf[to].push(from);
  const spread = (starts) => {
    const queue = [...starts];
    for (const start of starts) nodes[start].level = 0;
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
      for (const waiter of waitersOf[next]) {
        if (nodes[waiter].level >= 0) continue;
        nodes[waiter].level = nodes[next].level + 1;
        queue.push(waiter);
      }
    }
  };
  spread(nodes.flatMap((node, index) => (node.root ? [index] : [])));
  for (let left = nodes.findIndex(({ level }) => level < 0); left >= 0; left = nodes.findIndex(({ level }) => level < 0)) {
    spread([left]);
  }
}
