
"use strict";
// Draws what an answer's caches hold of its prompt: a strip of all of it, and its text in shades.

const SHADES = 5;
const shade = (percent) => Math.ceil((percent * SHADES) / 100);

/** kept: [[text, percent of the KV heads that hold it], ...], which join to the prompt. */
function picture(kept) {
  const length = kept.reduce((sum, [text]) => sum + text.length, 0);
  const mean = kept.reduce((sum, [text, percent]) => sum + text.length * percent, 0) / (length || 1);
  const node = element("details");
  node.open = true;
  node.append(element("summary", "", `The cache kept ${mean.toFixed(mean < 10 ? 1 : 0)} % of the prompt, the mean of its heads`));
  const strip = node.appendChild(element("canvas"));
  strip.setAttribute("role", "img");
  strip.setAttribute("aria-label", "What was kept, from the prompt's beginning to its end");
  node.append(legend());
  const prompt = node.appendChild(element("div", "prompt"));
  prompt.tabIndex = 0;
  const parts = document.createDocumentFragment();
  for (const [text, percent] of kept) parts.append(percent ? element("span", `shade${shade(percent)}`, text) : text);
  prompt.append(parts);
  const draw = () => drawStrip(strip, kept, length);
  new ResizeObserver(draw).observe(strip);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return node;
}

function legend() {
  const list = element("ul", "legend");
  list.append(element("li", "", "kept by"));
  for (let i = 1; i <= SHADES; i++) {
    const item = element("li", "", "");
    item.append(element("span", `shade${i}`, "abc"), i < SHADES ? `up to ${(100 / SHADES) * i} %` : "more of the heads");
    list.append(item);
  }
  return list;
}

/** A column of pixels is as dark as the mean of its characters. */
function drawStrip(strip, kept, length) {
  const width = (strip.width = Math.max(1, Math.round(strip.clientWidth * devicePixelRatio)));
  const height = (strip.height = Math.max(1, Math.round(strip.clientHeight * devicePixelRatio)));
  const sums = new Float64Array(width);
  const column = length / width;
  let at = 0;
  for (const [text, percent] of kept) {
    const end = at + text.length;
    for (let x = Math.floor(at / column); x < width && x * column < end; x++)
      sums[x] += (percent * (Math.min(end, (x + 1) * column) - Math.max(at, x * column))) / column;
    at = end;
  }
  const style = getComputedStyle(document.documentElement);
  const context = strip.getContext("2d");
  sums.forEach((percent, x) => {
    if (percent < 0.5) return;
    context.fillStyle = style.getPropertyValue(`--shade${Math.min(SHADES, shade(percent))}`);
    context.fillRect(x, 0, 1, height);
  });
}

