// Start the page: tabs, what the server has, and the two parts.

import { describe } from "./api.js";
import { start as startCurve } from "./curve.js";
import { start as startDraw } from "./draw.js";
import { $, element } from "./page.js";

const TABS = ["draw", "curve"];

function choose(name, focus = false) {
  for (const tab of TABS) {
    const chosen = tab === name;
    $(tab).hidden = !chosen;
    $(`tab-${tab}`).ariaSelected = String(chosen);
    $(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
    if (chosen && focus) $(`tab-${tab}`).focus();
  }
  window.history.replaceState(null, "", `#/${name}`); // no id of an element, to which the browser would scroll
}

for (const tab of TABS) {
  $(`tab-${tab}`).addEventListener("click", () => choose(tab));
  $(`tab-${tab}`).addEventListener("keydown", (event) => {
    const next = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (next) choose(TABS[(TABS.indexOf(tab) + next + TABS.length) % TABS.length], true);
  });
}
const wanted = () => choose(TABS.find((tab) => location.hash === `#/${tab}`) ?? "draw");
window.addEventListener("hashchange", wanted);
wanted();

function noticeFor(part) {
  return (sentence) => {
    $("notice").dataset[part] = sentence;
    $("notice").textContent = TABS.map((tab) => $("notice").dataset[tab]).find(Boolean) ?? "";
    $("notice").hidden = !$("notice").textContent;
  };
}

/** What a model is, and how well it did in its tests. */
function about(model, time) {
  const learner = model.learner === "metavrf" ? "MetaVRF" : model.learner.toUpperCase();
  const parts = [learner, model.kernels > 1 && `${model.kernels} kernels`, model.context && `context ${model.context}`, `trained on ${model.task}`, model.split && `split ${model.split}`,
    model.steps && `${model.steps.toLocaleString("en")} steps`];
  const tests = model.tests.filter((test) => test.protocol === model.protocol).map((test) => {
    const figure = test.metric === "accuracy" ? `${test.mean.toFixed(2)} ± ${test.ci95.toFixed(2)} %` : `${test.mean.toPrecision(2)} ± ${test.ci95.toPrecision(1)}`;
    return `${figure} (${test.way ? `${test.way} classes, ` : ""}${test.shot} shot${test.shot > 1 ? "s" : ""})`;
  });
  const metric = { accuracy: "Accuracy", mse: "Mean squared error" }[model.tests[0]?.metric] ?? "Figure";
  return [
    element("p", {}, "Model ", element("b", { textContent: model.name }), `: ${parts.filter(Boolean).join(", ")}. Protocol: `,
      element("b", { textContent: model.protocol }), ".", ...(time ? [element("span", { id: time })] : [])),
    ...(tests.length ? [element("p", { textContent: `${metric} on test tasks: ${tests.join(", ")}.` })] : []),
  ];
}

try {
  const { drawing, curve, limits } = await describe();
  if (drawing) {
    $("draw-model").append(...about(drawing, "draw-time"),
      element("p", { textContent: "Nothing is trained here: the drawings condition the model in one pass. They are kept in this browser, and in the server's memory for an hour after they were last used." }));
    startDraw(drawing, limits, noticeFor("draw"));
  }
  if (curve) {
    $("curve-model").append(...curve.models.flatMap((model) => about(model)));
    if (curve.models.length === 1) {
      $("curve-model").append(element("p", { textContent: "No other learner is here to compare with; name a run of one with --curve-beside." }));
    }
    startCurve(curve, limits, noticeFor("curve"));
  } else {
    $("curve").replaceChildren(element("p", { className: "hint",
      textContent: "This server has no model for curves. Train one with “metavrf train sine --out RUN” and start the server with “--curve-model RUN”." }));
  }
  document.documentElement.dataset.ready = "true";
} catch (error) {
  noticeFor("draw")(error.message);
  throw error;
}
