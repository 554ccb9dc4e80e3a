/** JSON merge patches (RFC 7386). */

/**
 * Returns the document with a patch applied. The document itself stays as it is, and parts that the patch leaves
 * alone are the same objects as before.
 * @param {unknown} document
 * @param {unknown} patch
 * @returns {unknown}
 */
export function mergePatch(document, patch) {
  if (!isObject(patch)) return patch;
  const merged = isObject(document) ? { ...document } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = mergePatch(merged[key], value);
  }
  return merged;
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
