// A timeline, or two under each other, on one axis of time: a lane per stream and side, a bar per op.
// The data block "op-lanes-data" is base64 of gzip of: length of the header (4 bytes), the header (JSON), the columns.
(async () => {
  const root = document.getElementById("op-lanes");
  const canvas = root.querySelector("canvas"), tip = root.querySelector(".tip"), search = root.querySelector("input");
  const pen = canvas.getContext("2d");
  const GUTTER = 250, AXIS = 26, BAR = 15, SIDE_GAP = 2, STREAM_GAP = 9, RANK_GAP = 24;
  const NONE = -1; // the partner of an op that has none; less: one that is not drawn by itself

  const { header, column } = await decode(document.getElementById("op-lanes-data").textContent);
  const { lanes, colours, names, sides } = header, isPair = sides.length > 1;
  const start = summed(column("start")), length = column("length"), name = column("name"), colour = column("colour");
  const partner = column("partner"), byName = column("by_name"), count = column("count"), batch = column("microbatch");
  const laneOf = new Uint16Array(start.length), reached = new Float64Array(start.length);
  lanes.forEach((lane, number) => {
    for (let op = lane.begin, end = 0; op < lane.end; op++) {
      laneOf[op] = number;
      reached[op] = end = Math.max(end, start[op] + length[op]);
    }
  });
  const height = placeLanes();
  let from = 0, to = header.ticks, hovered = -1, wanted = null, pending = 0;

  async function decode(text) {
    const packed = Uint8Array.from(atob(text.trim()), character => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const raw = await new Response(stream).arrayBuffer();
    const end = 4 + new DataView(raw).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, end - 4)));
    const types = { u4: Uint32Array, i4: Int32Array, u1: Uint8Array };
    return { header, column: key => {
      const { type, offset, size } = header.columns[key];
      return new types[type](raw, end + offset, size);
    } };
  }

  function summed(steps) {
    const sums = new Float64Array(steps.length);
    for (const lane of header.lanes)
      for (let op = lane.begin, sum = 0; op < lane.end; op++) sums[op] = sum += steps[op];
    return sums;
  }

  function placeLanes() {
    let y = AXIS, rank = null;
    for (const lane of lanes) {
      if (lane.rank !== rank) { y += RANK_GAP; rank = lane.rank; lane.heading = y - 7; }
      lane.y = y;
      y += BAR + (isPair && lane.side === 0 ? SIDE_GAP : STREAM_GAP);
    }
    return y + 4;
  }

  const css = property => getComputedStyle(document.documentElement).getPropertyValue(property).trim();
  const width = () => canvas.clientWidth;
  const scale = () => (width() - GUTTER) / (to - from);
  const x = tick => GUTTER + (tick - from) * scale();
  const tickAt = pixel => from + (pixel - GUTTER) / scale();

  function inWords(ticks) {
    const seconds = ticks * header.tick_s;
    const [unit, factor] = seconds >= 1 ? ["s", 1] : seconds >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
    return `${Number((seconds * factor).toPrecision(4))} ${unit}`;
  }

  // The first op of a lane that may reach past a moment: ends only grow in "reached".
  function firstReaching(lane, tick) {
    let low = lane.begin, high = lane.end;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (reached[middle] < tick) low = middle + 1; else high = middle;
    }
    return low;
  }

  function draw() {
    pending = 0;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width() * ratio)) {
      canvas.width = Math.round(width() * ratio);
      canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width(), height);
    drawAxis();
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, AXIS, width() - GUTTER, height);
    pen.clip();
    for (const lane of lanes) drawLane(lane);
    if (hovered >= 0) drawPair(hovered);
    pen.restore();
    drawLabels();
  }

  function drawAxis() {
    const span = (to - from) * header.tick_s;
    const rough = span / Math.max(2, (width() - GUTTER) / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = css("--soft");
    pen.strokeStyle = css("--line");
    pen.textAlign = "center";
    for (let moment = Math.ceil(from * header.tick_s / step) * step; moment <= to * header.tick_s; moment += step) {
      const at = x(moment / header.tick_s);
      pen.beginPath();
      pen.moveTo(at, AXIS - 6);
      pen.lineTo(at, height);
      pen.stroke();
      pen.fillText(axisWords(moment, step), at, AXIS - 11);
    }
  }

  function axisWords(moment, step) {
    const [unit, factor] = header.ticks * header.tick_s >= 2 ? ["s", 1] : ["ms", 1e3];
    const digits = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
    return `${(moment * factor).toFixed(digits)} ${unit}`;
  }

  function drawLane(lane) {
    pen.fillStyle = css("--panel");
    pen.fillRect(GUTTER, lane.y, width() - GUTTER, BAR);
    const line = css("--bad"), merged = "#97a1ae";
    let drawnTo = -1, drawnColour = -1;
    for (let op = firstReaching(lane, from); op < lane.end && start[op] <= to; op++) {
      const left = x(start[op]), right = Math.max(left + 0.7, x(start[op] + length[op]));
      if (right <= drawnTo + 0.5 && colour[op] === drawnColour && right - left < 1) continue;
      drawnTo = right;
      drawnColour = colour[op];
      pen.globalAlpha = wanted && !wanted.has(name[op]) ? 0.15 : 1;
      pen.fillStyle = count[op] > 1 ? merged : colours[colour[op]];
      const gap = right - left > 4 ? 0.6 : 0;
      pen.fillRect(left, lane.y, right - left - gap, BAR);
      if (isPair && partner[op] === NONE && count[op] === 1) {
        pen.fillStyle = line;
        pen.fillRect(left, lane.side === 0 ? lane.y : lane.y + BAR - 3, right - left - gap, 3);
      }
      if (right - left > 46) writeInside(names[name[op]], left, right, lane.y);
    }
    pen.globalAlpha = 1;
  }

  function writeInside(text, left, right, y) {
    const begin = Math.max(left, GUTTER) + 4, room = Math.floor((Math.min(right, width()) - begin - 4) / 6.2);
    if (room < 4) return;
    pen.fillStyle = "#ffffff";
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, begin, y + BAR - 4);
  }

  function drawPair(op) {
    const both = partner[op] >= 0 ? [op, partner[op]].sort((one, other) => laneY(one) - laneY(other)) : [op];
    const edges = both.map(one => [x(start[one]), Math.max(x(start[one]) + 1, x(start[one] + length[one]))]);
    pen.strokeStyle = pen.fillStyle = css("--text");
    if (both.length === 2) {
      pen.globalAlpha = 0.12;
      pen.beginPath();
      pen.moveTo(edges[0][0], laneY(both[0]) + BAR);
      pen.lineTo(edges[0][1], laneY(both[0]) + BAR);
      pen.lineTo(edges[1][1], laneY(both[1]));
      pen.lineTo(edges[1][0], laneY(both[1]));
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.lineWidth = 2;
    both.forEach((one, side) => pen.strokeRect(edges[side][0], laneY(one), edges[side][1] - edges[side][0], BAR));
    pen.lineWidth = 1;
  }
  const laneY = op => lanes[laneOf[op]].y;

  function drawLabels() {
    for (const lane of lanes) {
      pen.textAlign = "left";
      if (lane.heading) {
        pen.font = "600 13px system-ui, sans-serif";
        pen.fillStyle = css("--text");
        pen.fillText(lane.rank, 0, lane.heading);
      }
      pen.font = "12px system-ui, sans-serif";
      pen.fillStyle = css("--soft");
      if (lane.side === 0) pen.fillText(shortened(lane.stream, isPair ? 22 : 34), 8, lane.y + BAR + (isPair ? SIDE_GAP / 2 + 4 : -4));
      pen.textAlign = "right";
      pen.fillText(shortened(sides[lane.side], 13), GUTTER - 8, lane.y + BAR - 4);
    }
  }
  const shortened = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;

  function opAt(pixelX, pixelY) {
    const lane = lanes.find(one => pixelY >= one.y && pixelY < one.y + BAR);
    if (!lane || pixelX < GUTTER) return -1;
    const slack = 1.5 / scale(), begin = tickAt(pixelX) - slack, end = tickAt(pixelX) + slack;
    let best = -1;
    for (let op = firstReaching(lane, begin); op < lane.end && start[op] <= end; op++)
      if (start[op] + length[op] >= begin && (best < 0 || length[op] < length[best])) best = op;
    return best;
  }

  function describe(op) {
    const lines = [], lane = lanes[laneOf[op]];
    if (count[op] > 1) {
      lines.push(`${count[op]} short ops`, `within ${inWords(length[op])}${isPair ? `, ${sides[lane.side]}` : ""}`);
    } else if (!isPair) {
      lines.push(names[name[op]], `${inWords(length[op])}, from ${inWords(start[op])}`);
    } else if (partner[op] < 0) {
      lines.push(names[name[op]], `${sides[lane.side]}: ${inWords(length[op])}, from ${inWords(start[op])}`);
      lines.push(partner[op] === NONE ? "the other timeline has no such op" : "its partner is in a grey bar");
    } else {
      const [one, other] = lane.side === 0 ? [op, partner[op]] : [partner[op], op];
      lines.push(names[name[one]]);
      if (name[one] !== name[other]) lines.push(names[name[other]]);
      for (const part of [one, other])
        lines.push(`${sides[lanes[laneOf[part]].side]}: ${inWords(length[part])}, from ${inWords(start[part])}`);
      if (length[other] > 0) lines.push(`${signed(100 * (length[one] / length[other] - 1))} %`);
      lines.push(byName[op] ? "aligned by name" : "aligned by kind and place");
    }
    if (batch[op] >= 0) lines[0] += `, micro-batch ${batch[op]}`;
    return lines.map(line => line.length > 300 ? line.slice(0, 299) + "…" : line);
  }
  const signed = percent => (percent < 0 ? "−" : "+") + Math.abs(percent).toFixed(1);

  function showTip(event) {
    tip.hidden = hovered < 0;
    if (hovered < 0) return;
    tip.replaceChildren(...describe(hovered).map((line, place) => {
      const part = document.createElement(place ? "div" : "b");
      part.textContent = line;
      return part;
    }));
    const box = root.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${event.clientY - box.top + 18}px`;
  }

  const redraw = () => { if (!pending) pending = requestAnimationFrame(draw); };
  function look(begin, end) {
    const least = 20, span = Math.min(header.ticks, Math.max(least, end - begin));
    from = Math.min(Math.max(0, begin), header.ticks - span);
    to = from + span;
    redraw();
  }
  const zoom = (factor, around) => look(around - (around - from) * factor, around + (to - around) * factor);
  const pan = part => look(from + part * (to - from), to + part * (to - from));

  let dragged = null;
  canvas.addEventListener("wheel", event => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * 0.004), tickAt(event.offsetX));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      pan((event.deltaX || event.deltaY) / (width() - GUTTER));
    else return;
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    dragged = { at: event.offsetX, from, to };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointermove", event => {
    if (dragged) {
      const moved = (event.offsetX - dragged.at) / scale();
      look(dragged.from - moved, dragged.to - moved);
    }
    const found = dragged ? -1 : opAt(event.offsetX, event.offsetY);
    if (found !== hovered) { hovered = found; redraw(); }
    showTip(event);
  });
  canvas.addEventListener("pointerleave", () => { hovered = -1; tip.hidden = true; redraw(); });
  canvas.addEventListener("dblclick", event => zoom(0.25, tickAt(event.offsetX)));
  canvas.addEventListener("keydown", event => {
    const middle = (from + to) / 2;
    const action = {
      w: () => zoom(0.7, middle), s: () => zoom(1 / 0.7, middle), a: () => pan(-0.15), d: () => pan(0.15),
      ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.7, middle),
      "-": () => zoom(1 / 0.7, middle), Home: () => look(0, header.ticks),
    }[event.key];
    if (action) { action(); event.preventDefault(); }
  });
  for (const button of root.querySelectorAll("button")) {
    const actions = {
      in: () => zoom(0.5, (from + to) / 2), out: () => zoom(2, (from + to) / 2), all: () => look(0, header.ticks),
      left: () => pan(-0.4), right: () => pan(0.4),
    };
    button.addEventListener("click", actions[button.dataset.action]);
  }
  search.addEventListener("input", () => {
    const text = search.value.trim().toLowerCase();
    wanted = text ? new Set([...names.keys()].filter(code => names[code].toLowerCase().includes(text))) : null;
    redraw();
  });
  canvas.style.height = `${height}px`;
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  draw();
})();
