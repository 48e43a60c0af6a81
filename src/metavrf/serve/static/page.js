// Small helpers of all parts of the page.

export const $ = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A probability in words: never 0 % or 100 %, which a model cannot know. */
export function percent(share) {
  if (share > 0.995) return "> 99 %";
  return share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`;
}
