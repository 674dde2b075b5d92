// The picture of the lines as a file that opens alone: SVG, or PNG made from it.

// What the style sheet gives to a shape.
const STYLES = ["fill", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "paint-order"];
const TEXT_STYLES = ["font-family", "font-size", "font-weight", "text-decoration-line"];
const LINE = 18; // pixels of a line of the caption

// The markup of the picture as it is drawn, with its colours, the sentence's changes and where it comes from.
function standalone() {
  const drawn = document.querySelector("#live-lines svg.lines");
  const copy = drawn.cloneNode(true);
  const shapes = [...drawn.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(shapes[i]);
    const names = node.tagName === "text" ? [...STYLES, ...TEXT_STYLES] : STYLES;
    for (const name of names) node.style.setProperty(name, style.getPropertyValue(name));
    for (const name of ["role", "tabindex", "aria-pressed"]) node.removeAttribute(name);
    if (node.matches(".asked")) node.style.stroke = "none"; // where a click would exchange
    if (node.matches(".hit, title")) node.remove();
  });

  const [width, top] = ["width", "height"].map((name) => Number(drawn.getAttribute(name)));
  const answers = [...document.querySelectorAll("#live-answers :is(h2, li)")].map(({ innerText }) => innerText.replace(/\s+/g, " "));
  const source = `Antecedent (Apache-2.0): ${content.run.name}, ${stepName()}`;
  const head = `Head ${headName(state)}`;
  const lines = wrapped([part("title").innerText, ...answers, head, ...state.edits.map(editName), source, ...content.run.facts.split(" · ")], width - 16);
  const height = top + LINE * (lines.length + 0.5);
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => ({ fill: colours.getPropertyValue(name) });
  copy.prepend(shape("rect", { width, height, ...colour("--paper") }));
  const font = { "font-size": 11, "font-family": "sans-serif", ...colour("--soft") };
  lines.forEach((text, i) => copy.append(shape("text", { x: 8, y: top + LINE * (i + 0.9), ...font }, text)));
  fill(copy, { width, height, viewBox: `0 0 ${width} ${height}` });
  return { width, height, markup: new XMLSerializer().serializeToString(copy) };
}

// Parts as lines of at most `width` pixels in the font of the caption.
function wrapped(parts, width) {
  pen.font = "11px sans-serif";
  const lines = [""];
  for (const part of parts) {
    const longer = lines.at(-1) ? `${lines.at(-1)} · ${part}` : part;
    if (pen.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(part);
  }
  return lines;
}

function saveAs(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function saveSvg() {
  saveAs("antecedent.svg", new Blob([standalone().markup], { type: "image/svg+xml" }));
}

function savePng() {
  const { width, height, markup } = standalone();
  const picture = new Image();
  picture.addEventListener("load", () => {
    const canvas = element("canvas", { width: 2 * width, height: 2 * height }); // sharp in print
    canvas.getContext("2d").drawImage(picture, 0, 0, 2 * width, 2 * height);
    canvas.toBlob((blob) => saveAs("antecedent.png", blob));
  });
  picture.src = `data:image/svg+xml,${encodeURIComponent(markup)}`;
}
