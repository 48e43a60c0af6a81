// The tab Draw: classes of one's own, and a new drawing whose probabilities follow the pen.

import { Task } from "./api.js";
import { History, controls } from "./history.js";
import { Pad } from "./pad.js";
import { paint, raster } from "./raster.js";
import { $, element, percent } from "./page.js";

const EMPTY = { strokes: [], classes: [] };

export function start(model, limits, notice) {
  const pictures = new WeakMap(); // of strokes: a drawing is rastered once
  const picture = (strokes) => {
    if (!pictures.has(strokes)) pictures.set(strokes, raster(strokes, model.size));
    return pictures.get(strokes);
  };
  const history = new History("metavrf.draw", EMPTY, changed);
  const buttons = controls(history, $("draw"), $("draw-undo"), $("draw-redo"));
  const cards = new Map(); // by class id
  const times = [];

  const task = new Task("drawing", {
    support: () => {
      const { classes } = history.state;
      return classes.length < 2 ? null
        : { classes: classes.map(({ id, samples }) => ({ name: String(id), pictures: samples.map(picture) })) };
    },
    query: () => (history.state.strokes.length ? { pictures: [picture(history.state.strokes)] } : null),
    show,
    notice,
  });

  const pad = new Pad($("pad"), {
    strokes: () => history.state.strokes,
    begin: (strokes) => history.set({ strokes }),
    extend: (strokes) => history.set({ strokes }, { quiet: true }),
    end: () => {
      history.keep();
      speak();
    },
  });

  function changed(before) {
    const { strokes, classes } = history.state;
    if (strokes !== before?.strokes) {
      pad.draw();
      paint($("sees"), picture(strokes));
    }
    if (classes !== before?.classes) showClasses();
    const full = classes.reduce((sum, { samples }) => sum + samples.length, 0) >= limits.pictures;
    for (const { add } of cards.values()) add.disabled = !strokes.length || full;
    $("new-class").disabled = !strokes.length || full || classes.length >= limits.classes;
    $("draw-clear").disabled = !strokes.length;
    $("draw-reset").disabled = !strokes.length && !classes.length;
    $("draw-hint").textContent = hint(strokes, classes);
    $("steps").hidden = classes.length > 0;
    $("pad-empty").hidden = strokes.length > 0;
    buttons();
    if (sameSamples(classes, before?.classes)) task.refresh();
    else task.changed();
  }

  // Names are the page's own business: the server knows classes by number, so that renaming asks it nothing.
  function sameSamples(classes, others = []) {
    const [mine, theirs] = [classes, others].map((all) => all.flatMap(({ id, samples }) => [id, ...samples]));
    return mine.length === theirs.length && mine.every((one, index) => one === theirs[index]);
  }

  function hint(strokes, classes) {
    if (!classes.length) return "None yet. Letters, runes, doodles: anything drawn with a few strokes will do.";
    if (classes.length === 1) return "Now draw a different character and press New class again.";
    if (classes.some(({ samples }) => samples.length < 2)) {
      return "Just draw: the bars follow the pen. A second drawing for each class makes the answers surer.";
    }
    return strokes.length ? "Add the drawing to a class if you like: every one is learned at once." : "Draw a new one: the bars follow the pen.";
  }

  function newClass() {
    const { strokes, classes } = history.state;
    if ($("new-class").disabled) return;
    const id = 1 + Math.max(0, ...classes.map((one) => one.id));
    const used = new Set(classes.map(({ name }) => name));
    const letters = Array.from({ length: 26 }, (_, index) => String.fromCharCode(65 + index));
    const name = letters.find((letter) => !used.has(letter)) ?? `Class ${id}`;
    history.set({ strokes: [], classes: [...classes, { id, name, samples: [strokes] }] });
    $("draw-spoken").textContent = `Class ${name} has its first drawing.`;
  }

  function change(id, how) {
    history.set({ classes: history.state.classes.map((one) => (one.id === id ? { ...one, ...how(one) } : one)) });
  }

  function add(id) {
    const { strokes, classes } = history.state;
    if (cards.get(id).add.disabled) return;
    history.set({
      strokes: [],
      classes: classes.map((one) => (one.id === id ? { ...one, samples: [...one.samples, strokes] } : one)),
    });
    const { name, samples } = history.state.classes.find((one) => one.id === id);
    $("draw-spoken").textContent = `Class ${name} has ${samples.length} drawings.`;
  }

  function remove(id) {
    history.set({ classes: history.state.classes.filter((one) => one.id !== id) });
  }

  function removeSample(id, index) {
    const { samples } = history.state.classes.find((one) => one.id === id);
    if (samples.length === 1) remove(id);
    else change(id, () => ({ samples: samples.filter((_, position) => position !== index) }));
  }

  function makeCard(id) {
    const name = element("input", { maxLength: 40, ariaLabel: "Name of the class", autocomplete: "off", spellcheck: false });
    name.addEventListener("change", () => change(id, (one) => ({ name: name.value.trim() || one.name })));
    name.addEventListener("keydown", (event) => event.key === "Enter" && name.blur());
    const fill = element("div");
    const bar = element("div", { className: "bar" }, fill);
    const share = element("span", { className: "percent" });
    const drop = element("button", { type: "button", className: "quiet drop", textContent: "×" });
    drop.addEventListener("click", () => remove(id));
    const shots = element("div", { className: "shots" });
    const addButton = element("button", { type: "button", className: "add", textContent: "+ add drawing" });
    addButton.addEventListener("click", () => {
      add(id);
      $("pad").focus();
    });
    const item = element("li", { className: "class" }, name, bar, share, drop, shots);
    return { item, name, fill, share, drop, shots, add: addButton };
  }

  function showClasses() {
    const { classes } = history.state;
    for (const id of [...cards.keys()].filter((key) => !classes.some((one) => one.id === key))) {
      cards.get(id).item.remove();
      cards.delete(id);
    }
    for (const { id, name, samples } of classes) {
      if (!cards.has(id)) cards.set(id, makeCard(id));
      const card = cards.get(id);
      card.name.value = name;
      card.drop.ariaLabel = card.drop.title = `Remove class ${name}`;
      card.add.ariaLabel = `Add the drawing to class ${name}`;
      $("classes").append(card.item);
      card.shots.replaceChildren(...samples.map((sample, index) => {
        const button = element("button", { type: "button", className: "shot" }, element("canvas"));
        button.ariaLabel = button.title = `Remove drawing ${index + 1} of class ${name}`;
        button.addEventListener("click", () => removeSample(id, index));
        return button;
      }), card.add);
      samples.forEach((sample, index) => paint(card.shots.children[index].firstChild, picture(sample)));
    }
  }

  let latest = null;

  function show(answer, milliseconds) {
    latest = answer?.answers[0] ?? null;
    for (const [id, card] of cards) {
      const share = latest?.probabilities[id];
      card.item.classList.toggle("best", latest !== null && latest.best === String(id));
      card.fill.style.transform = `scaleX(${share ?? 0})`;
      card.share.textContent = share === undefined ? "" : percent(share);
    }
    tell();
    if (!latest) return;
    times.push(milliseconds);
    if (times.length > 50) times.shift();
    const median = times.toSorted((a, b) => a - b)[times.length >> 1];
    $("draw-time").textContent = ` A stroke is answered in ${median.toFixed(0)} ms (median of the last ${times.length}).`;
    if (pad.pen === null && !pad.down) speak();
  }

  /** The answer in words. */
  function tell() {
    const { strokes, classes } = history.state;
    const found = latest && strokes.length && classes.find(({ id }) => String(id) === latest.best);
    if (found) {
      $("draw-answer").replaceChildren("Most likely ", element("b", { textContent: found.name }), `, ${percent(latest.probabilities[found.id])}`);
    } else $("draw-answer").textContent = "\u00a0";
  }

  /** The same to a screen reader, once the pen is up: it should not hear every step. */
  function speak() {
    $("draw-spoken").textContent = $("draw-answer").textContent;
  }

  $("pad").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const chosen = history.state.classes[Number(event.key) - 1];
    if (event.key === "Enter" || chosen) pad.lift();
    if (event.key === "Enter") newClass();
    else if (event.key === "Delete" || event.key === "Backspace") $("draw-clear").click();
    else if (chosen) add(chosen.id);
    else return;
    event.preventDefault();
  });
  $("new-class").addEventListener("click", () => {
    newClass();
    $("pad").focus();
  });
  $("draw-clear").addEventListener("click", () => history.set({ strokes: [] }));
  $("draw-reset").addEventListener("click", () => history.set(EMPTY));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    paint($("sees"), picture(history.state.strokes));
    showClasses();
  });
  changed(null);
}
