// Below the curve: which of a mixture's kernels explain the points, as bars of weight over frequency.

import { $, element, percent, svg } from "./page.js";

const HEIGHT = 148;
const MARGIN = { left: 48, right: 10, top: 12, bottom: 40 };
const SLOTS = 32; // bars of the axis of frequencies, on any screen, so that the shares are the same
const STILL = 0.01; // a frequency below which a kernel expects no wave: these stand apart, in one bar
const STILL_ROOM = 58;
const USUAL = 0.9; // of all kernels, the middle ones that are always in sight
const COUNTS = 0.01; // the weight from which any other kernel is in sight
const TOPS = [0.1, 0.2, 0.5, 1]; // of the weight's axis

/** One chart of a learner; `tone` is that of its curve. */
export class KernelChart {
  constructor({ name, kernels }, tone, alone) {
    this.name = name;
    this.tone = tone;
    this.count = kernels;
    this.waves = null; // kernels by frequency
    this.still = null; // the weight of those that expect no wave, if there are any
    this.truth = null;
    this.range = null; // of frequencies; it only grows, so that bars stay where they are
    this.picture = element("div", { className: "bars", role: "img" });
    this.words = element("p", { className: "likeliest" });
    this.figure = element("figure", {}, ...(alone ? [] : [element("figcaption", { textContent: name })]), this.words, this.picture);
    $("kernel-charts").append(this.figure);
    new ResizeObserver(() => this.draw()).observe(this.picture);
    this.show(null, null);
  }

  set hidden(value) {
    this.figure.hidden = value;
  }

  /** `kernels` with frequency and weight, or null before there are points; `truth` is the true frequency, or null. */
  show(kernels, truth) {
    this.waves = kernels?.filter(({ frequency }) => frequency >= STILL) ?? null;
    this.still = kernels && kernels.length > this.waves.length
      ? kernels.reduce((sum, { frequency, weight }) => sum + (frequency < STILL ? weight : 0), 0) : null;
    this.truth = truth;
    if (this.waves?.length) this.stretch();
    this.draw();
  }

  stretch() {
    const sorted = this.waves.map(({ frequency }) => frequency); // the server has sorted them
    const cut = Math.floor(((1 - USUAL) / 2) * sorted.length);
    const seen = [...sorted.slice(cut, sorted.length - cut), ...(this.truth === null ? [] : [this.truth]),
      ...this.waves.filter(({ weight }) => weight >= COUNTS).map(({ frequency }) => frequency)];
    const [low, high] = this.range ?? [Infinity, -Infinity];
    const ends = [Math.min(low, ...seen), Math.max(high, ...seen)];
    if (ends[0] < low || ends[1] > high) {
      const room = Math.max(0.04 * (ends[1] - ends[0]), 0.02);
      this.range = [Math.max(0, ends[0] - room), ends[1] + room];
    }
  }

  /** The weight of each bar, and the mean frequency in it. */
  slots() {
    if (!this.waves.length) return [];
    const [low, high] = this.range;
    const slots = Array.from({ length: SLOTS }, () => ({ weight: 0, moment: 0 }));
    for (const { frequency, weight } of this.waves) {
      const index = Math.floor((SLOTS * (frequency - low)) / (high - low));
      if (!slots[index]) continue; // out of sight, and of next to no weight
      slots[index].weight += weight;
      slots[index].moment += weight * frequency;
    }
    return slots.map(({ weight, moment }) => ({ weight, frequency: moment / weight }));
  }

  draw() {
    const width = this.picture.clientWidth;
    if (!width) return; // the other tab is open
    const [left, right, bottom] = [MARGIN.left, width - MARGIN.right, HEIGHT - MARGIN.bottom];
    const frame = svg("svg", { width, height: HEIGHT, "aria-hidden": "true" });
    const line = (kind, x1, x2, y1, y2) => frame.append(svg("line", { class: kind, x1, x2, y1, y2 }));
    const text = (x, y, anchor, words, kind = "") => frame.append(svg("text", { x, y, "text-anchor": anchor, class: kind }, words));
    const start = left + (this.still === null ? 0 : STILL_ROOM); // of the axis of frequencies
    if (this.waves) {
      const step = (right - start) / SLOTS;
      const slots = this.slots();
      const highest = slots.reduce((best, slot) => (slot.weight > best.weight ? slot : best), { weight: 0, frequency: 0 });
      const still = { weight: this.still ?? 0, frequency: 0 };
      const likeliest = still.weight > 0.5 ? still : highest;
      const top = TOPS.find((end) => Math.max(highest.weight, still.weight) <= end) ?? 1;
      const toY = (weight) => bottom - (bottom - MARGIN.top) * Math.min(1, weight / top);
      const toX = (frequency) => start + ((right - start) * (frequency - this.range[0])) / (this.range[1] - this.range[0]);
      for (const part of [0.5, 1]) {
        line("grid", left, right, toY(part * top), toY(part * top));
        text(left - 6, toY(part * top) + 4, "end", `${100 * part * top} %`);
      }
      const bar = (slot, x, wide) => {
        if (!(slot.weight > 0)) return;
        const kinds = [`tone-${this.tone % 4}`, ...(slot === likeliest ? ["best"] : []), ...(slot === still ? ["still"] : [])];
        const y = toY(slot.weight);
        frame.append(svg("rect", { class: kinds.join(" "), x, width: wide, y, height: bottom - y }));
      };
      if (this.still !== null) {
        bar(still, left + 13, 20);
        text(left + 23, bottom + 15, "middle", "no wave");
        line("axis", left, left + 46, bottom, bottom);
      }
      if (slots.length) {
        for (const { value, label } of ticks(...this.range, width < 500 ? 4 : 8)) text(toX(value), bottom + 15, "middle", label);
        if (this.truth !== null) line("truth", toX(this.truth), toX(this.truth), MARGIN.top, bottom);
        slots.forEach((slot, index) => bar(slot, start + index * step + 1, step - 2));
      }
      this.say(sentence(likeliest, this.truth));
    } else {
      text((left + right) / 2, (MARGIN.top + bottom) / 2 + 4, "middle", "Set a point to weigh the kernels", "empty");
      this.say(`No point is set: nothing tells the ${this.count} kernels apart yet.`);
    }
    line("axis", start, right, bottom, bottom);
    text((start + right) / 2, HEIGHT - 8, "middle", "frequency (radians per unit of x)");
    this.picture.replaceChildren(frame);
  }

  say(words) {
    if (this.words.textContent === words) return;
    this.words.textContent = words;
    this.picture.ariaLabel = `Weight of the kernels over frequency. ${words}`;
  }
}

/** The likeliest frequency and its share; 0 is that of the kernels that expect no wave. */
function sentence({ frequency, weight }, truth) {
  const grey = truth === null ? "" : ` The grey line is the true frequency, ${truth.toFixed(2)}.`;
  const share = `(${percent(weight)} of the weight)`;
  if (!frequency) return `Likeliest: no wave that it knows ${share}.${grey}`;
  return `Likeliest frequency: ${frequency.toFixed(2)}, a wave every ${((2 * Math.PI) / frequency).toFixed(1)} units of x ${share}.${grey}`;
}

/** Round values from `low` to `high`, at most `most`. */
function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, index) => (first + index) * step)
    .map((value) => ({ value, label: value.toFixed(digits) }));
}
