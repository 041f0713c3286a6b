// What the browser keeps for the page; nothing where it blocks that.

/** Returns the value of a key of "localStorage" or "sessionStorage"; null if it has none. */
export function readStored(area, key) {
  try {
    return window[area].getItem(key);
  } catch {
    return null;
  }
}

/** Keeps a value, or removes an empty one. */
export function keepStored(area, key, value) {
  try {
    if (value) window[area].setItem(key, value);
    else window[area].removeItem(key);
  } catch {
    // The page's state has it until the page is left.
  }
}
