// ---- The overview: position by layer ----

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** For each column, the mean count of a layer's positions in it. */
function columnMeans(layer, width) {
  return range(width).map((column) => {
    const from = Math.floor((column * data.tokens) / width);
    const to = Math.max(from + 1, Math.floor(((column + 1) * data.tokens) / width));
    let sum = 0;
    for (let token = from; token < to; token++) sum += layerCounts[layer][token];
    return sum / (to - from);
  });
}

function drawStrip() {
  const canvas = get("strip").firstElementChild;
  const width = (canvas.width = Math.round(canvas.clientWidth * devicePixelRatio));
  const row = Math.round(Math.max(4, Math.min(20, 150 / data.layers.length)) * devicePixelRatio);
  canvas.height = row * data.layers.length;
  canvas.style.height = canvas.height / devicePixelRatio + "px";
  const context = canvas.getContext("2d");
  const means = data.layers.map((_, layer) => columnMeans(layer, width));
  const most = means.flat().reduce((a, b) => Math.max(a, b), 0);
  means.forEach((columns, layer) => drawLayer(context, layer, row, columns.map((mean) => mean / (most || 1))));
}

/** Sinks: a full block. Ring: a low bar. Kept: the stronger, the more of the column (0 to 1). */
function drawLayer(context, layer, row, columns) {
  const width = columns.length;
  const { sinks, ring } = data.layers[layer];
  const x = (token) => (token * width) / data.tokens;
  const top = layer * row;
  const strength = chosenLayers.includes(layer) ? 1 : 0.25;
  const high = Math.max(1, row - devicePixelRatio);
  context.fillStyle = colour("--shade4");
  columns.forEach((part, column) => {
    context.globalAlpha = strength * part ** 0.7; // lifts the weak ones
    context.fillRect(column, top, 1, high);
  });
  context.globalAlpha = strength;
  context.fillStyle = colour("--ring");
  if (ring < data.tokens) context.fillRect(x(ring), top + high / 2, Math.max(2, width - x(ring)), high / 2);
  context.fillStyle = colour("--sink");
  if (sinks) context.fillRect(0, top, Math.max(3 * devicePixelRatio, x(sinks)), high);
}

/** The tokens between the tools and the window's end. */
function visibleTokens() {
  const top = Math.max(0, get("tools").getBoundingClientRect().bottom);
  return [top, innerHeight].map((y) => {
    const chunk = chunks[search(chunks.length, (k) => chunks[k].node.getBoundingClientRect().top, y)];
    const place = chunk.node.getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (y - place.top) / place.height));
    return firstToken[chunk.first] + part * (firstToken[chunk.last] - firstToken[chunk.first]);
  });
}

function showView() {
  const [from, to] = visibleTokens();
  const view = get("view").style;
  view.left = (100 * from) / data.tokens + "%";
  view.width = (100 * (to - from)) / data.tokens + "%";
  get("strip").setAttribute("aria-valuenow", Math.round(from));
  get("strip").setAttribute("aria-valuetext", `tokens ${number(Math.round(from))} to ${number(Math.round(to))} are in view`);
}

function goToToken(token) {
  const inside = Math.max(0, Math.min(data.tokens - 1, Math.floor(token)));
  goTo(spanOf(inside));
}
