// The tab Curve: click points, and see each learner's curve with its 90 % band follow.

import { Task } from "./api.js";
import { History, controls } from "./history.js";
import { KernelChart } from "./kernels.js";
import { $, element, svg } from "./page.js";

const EMPTY = { points: [], truth: null };
const REACH = 6; // of the y axis
const GRID = 121; // points of a curve
const NEAR = 16; // pixels within which a click takes a point
const MARGIN = { left: 30, right: 10, top: 10, bottom: 24 };
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export function start(curve, limits, notice) {
  const [low, high] = curve.domain;
  const grid = Array.from({ length: GRID }, (_, index) => low + ((high - low) * index) / (GRID - 1));
  const plot = $("plot");
  const hidden = new Set();
  const history = new History("metavrf.curve", EMPTY, changed);
  const buttons = controls(history, $("curve"), $("curve-undo"), $("curve-redo"));
  let curves = [];
  let cross = null; // where the keyboard or the mouse points to: [x, y]
  let byKeys = false;
  let held = null; // the point that is dragged: its index, and whether it has moved
  let size = { width: 0, height: 0 };
  const mixtures = curve.models.filter(({ kernels }) => kernels > 1);
  const charts = mixtures.map((model) => new KernelChart(model, curve.models.indexOf(model), mixtures.length === 1));

  const task = new Task("curve", {
    support: () => (history.state.points.length ? { points: history.state.points } : null),
    query: () => ({ x: grid }),
    show: (answer) => {
      curves = answer?.curves ?? [];
      draw();
      weigh();
      if (!held) say();
    },
    notice,
  });

  function changed(before) {
    buttons();
    $("curve-clear").disabled = !history.state.points.length;
    draw();
    if (history.state.points !== before?.points) task.changed();
  }

  // Places: data to pixels and back.
  const toX = (x) => MARGIN.left + ((x - low) / (high - low)) * (size.width - MARGIN.left - MARGIN.right);
  const toY = (y) => MARGIN.top + ((REACH - y) / (2 * REACH)) * (size.height - MARGIN.top - MARGIN.bottom);
  const round = (value) => Math.round(100 * value) / 100;
  const inside = ([x, y]) => [round(Math.min(high, Math.max(low, x))), round(Math.min(REACH, Math.max(-REACH, y)))];
  const at = (event) => {
    const box = plot.firstChild.getBoundingClientRect();
    const across = (event.clientX - box.left - MARGIN.left) / (size.width - MARGIN.left - MARGIN.right);
    const down = (event.clientY - box.top - MARGIN.top) / (size.height - MARGIN.top - MARGIN.bottom);
    return inside([low + across * (high - low), REACH - down * 2 * REACH]);
  };
  const nearest = ([x, y], reach) => {
    const gaps = history.state.points.map(([a, b]) => Math.hypot(toX(a) - toX(x), toY(b) - toY(y)));
    const best = gaps.indexOf(Math.min(...gaps));
    return best >= 0 && gaps[best] <= reach ? best : -1;
  };

  const path = (xs, ys) => xs.map((x, index) => `${index ? "L" : "M"}${toX(x).toFixed(1)} ${toY(clip(ys[index])).toFixed(1)}`).join("");
  const clip = (y) => Math.min(9 * REACH, Math.max(-9 * REACH, y));

  function draw() {
    if (!size.width) return;
    const { width, height } = size;
    const right = width - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    const frame = svg("svg", { width, height, "aria-hidden": "true" });
    for (let x = Math.ceil(low); x <= high; x++) {
      frame.append(svg("line", { class: x ? "grid" : "axis", x1: toX(x), x2: toX(x), y1: MARGIN.top, y2: bottom }));
      if (x % (width < 500 ? 2 : 1) === 0) frame.append(svg("text", { x: toX(x), y: height - 8, "text-anchor": "middle" }, String(x)));
    }
    for (let y = 2 - REACH; y < REACH; y += 2) {
      frame.append(svg("line", { class: y ? "grid" : "axis", x1: MARGIN.left, x2: right, y1: toY(y), y2: toY(y) }));
      frame.append(svg("text", { x: MARGIN.left - 6, y: toY(y) + 4, "text-anchor": "end" }, String(y)));
    }
    const inner = svg("svg", { x: MARGIN.left, y: 0, width: right - MARGIN.left, height: bottom, viewBox: `${MARGIN.left} 0 ${right - MARGIN.left} ${bottom}` });
    const { points, truth } = history.state;
    if (truth) inner.append(svg("path", { class: "truth", d: path(grid, grid.map((x) => sine(truth, x))) }));
    const shown = curves.map((one, tone) => ({ ...one, tone })).filter(({ name }) => !hidden.has(name)).reverse();
    for (const { low: below, high: above, tone } of shown) {
      if (!below) continue;
      const back = path([...grid].reverse(), [...below].reverse()).replace("M", "L");
      inner.append(svg("path", { class: `band tone-${tone % 4}`, d: `${path(grid, above)}${back}Z` }));
    }
    for (const { mean, tone } of shown) inner.append(svg("path", { class: `fit tone-${tone % 4}`, d: path(grid, mean) }));
    frame.append(inner);
    if (cross) {
      frame.append(svg("line", { class: "cross", x1: toX(cross[0]), x2: toX(cross[0]), y1: MARGIN.top, y2: bottom }));
      if (byKeys) frame.append(svg("line", { class: "cross", x1: MARGIN.left, x2: right, y1: toY(cross[1]), y2: toY(cross[1]) }));
    }
    for (const [x, y] of points) frame.append(svg("circle", { class: "point", cx: toX(x), cy: toY(y), r: 6.5 }));
    if (!points.length) {
      frame.append(svg("text", { x: (MARGIN.left + right) / 2, y: toY(0) - 14, "text-anchor": "middle", class: "empty" },
        "Click anywhere to set a point"));
    }
    plot.replaceChildren(frame);
  }

  /** The charts of those learners that are mixtures of kernels. */
  function weigh() {
    const { truth } = history.state;
    for (const chart of charts) {
      chart.hidden = hidden.has(chart.name);
      chart.show(curves[chart.tone]?.kernels ?? null, truth?.frequency ?? null);
    }
    $("kernels").hidden = charts.every(({ name }) => hidden.has(name));
  }

  /** In words: what the curves say at the cross, or how many points there are. */
  function say() {
    const { points } = history.state;
    if (!points.length) {
      $("curve-answer").textContent = "Set a few points of a wave: the curve is fitted at once, without any training.";
      return;
    }
    const words = `${points.length} point${points.length > 1 ? "s" : ""}`;
    const visible = curves.filter(({ name }) => !hidden.has(name));
    if (!cross || !visible.length) {
      $("curve-answer").textContent = `${words}. The shaded band holds 90 % of the probability.`;
      return;
    }
    const index = Math.round(((cross[0] - low) / (high - low)) * (GRID - 1));
    const values = visible.map(({ name, mean, low: below, high: above }) => `${name} ${mean[index].toFixed(2)}`
      + (below ? ` (${below[index].toFixed(2)} to ${above[index].toFixed(2)})` : ""));
    $("curve-answer").textContent = `At x = ${cross[0].toFixed(1)}: ${values.join(", ")}`;
  }

  const moved = (points) => ({ points, truth: history.state.truth });

  function addPoint(point) {
    if (history.state.points.length < limits.points) history.set(moved([...history.state.points, point]));
  }

  function removePoint(index) {
    history.set(moved(history.state.points.filter((_, position) => position !== index)));
  }

  plot.addEventListener("pointerdown", (event) => {
    if (held || event.button !== 0) return;
    event.preventDefault();
    plot.focus({ preventScroll: true });
    byKeys = false;
    const place = at(event);
    const taken = nearest(place, NEAR);
    held = { pointer: event.pointerId, index: taken, moved: taken < 0, from: place };
    if (taken < 0) {
      addPoint(place);
      held.index = history.state.points.length - 1;
    }
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    const place = at(event);
    cross = place;
    byKeys = false;
    if (held?.pointer === event.pointerId) {
      const far = Math.hypot(toX(place[0]) - toX(held.from[0]), toY(place[1]) - toY(held.from[1])) > 4;
      if (!held.moved && !far) return;
      const points = history.state.points.map((point, index) => (index === held.index ? place : point));
      history.set({ points }, { quiet: held.moved }); // the first move of an old point is a step to undo
      held.moved = true;
    } else {
      draw();
      say();
    }
  });
  const release = (event) => {
    if (held?.pointer !== event.pointerId) return;
    const { index, moved: dragged } = held;
    held = null;
    if (!dragged && event.type === "pointerup") removePoint(index);
    history.keep();
    say();
  };
  for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) plot.addEventListener(name, release);
  const away = () => {
    cross = null;
    draw();
    say();
  };
  plot.addEventListener("pointerleave", away);
  plot.addEventListener("blur", away);
  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const direction = DIRECTIONS[event.key];
    cross ??= [(low + high) / 2, 0];
    if (direction) {
      const step = event.shiftKey ? 0.05 : 0.25;
      cross = inside([cross[0] + step * direction[0], cross[1] + step * direction[1]]);
    } else if (event.key === "Enter" || event.key === " ") addPoint(cross);
    else if (event.key === "Delete" || event.key === "Backspace") {
      const index = nearest(cross, Infinity);
      if (index >= 0) removePoint(index);
    } else return;
    event.preventDefault();
    byKeys = true;
    draw();
    say();
  });

  const sine = ({ amplitude, frequency, phase }, x) => amplitude * Math.sin(frequency * x + phase);

  $("curve-clear").addEventListener("click", () => history.set(EMPTY));
  $("curve-example").hidden = !curve.models[0].task.startsWith("sine");
  $("curve-example").addEventListener("click", () => {
    const between = (a, b) => a + (b - a) * Math.random();
    const truth = { amplitude: between(1.5, 5), frequency: between(0.8, 1.2), phase: between(0, Math.PI) };
    const places = Array.from({ length: 5 }, (_, index) => low + ((index + between(0.1, 0.9)) * (high - low)) / 5);
    history.set({ truth, points: places.map((x) => [round(x), round(sine(truth, round(x)))]) });
  });

  curve.models.forEach(({ name, learner }, tone) => {
    const box = element("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(name);
      else hidden.add(name);
      draw();
      weigh();
      say();
    });
    const sample = svg("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" },
      svg("line", { class: `fit tone-${tone % 4}`, x1: 0, x2: 34, y1: 6, y2: 6 }));
    $("legend").append(element("label", {}, box, sample, learner === "metavrf" ? `MetaVRF (${name})` : `${learner.toUpperCase()} (${name})`));
  });

  new ResizeObserver(() => {
    const width = plot.clientWidth;
    if (!width) return; // the other tab is open
    size = { width, height: Math.round(Math.min(460, Math.max(280, 0.56 * width))) };
    draw();
  }).observe(plot);
  changed(null);
  weigh();
  say();
}
