// Saves a picture of the page as SVG or PNG, with the colours that it has now.

const DRAWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "font-family", "font-size", "font-weight", "text-anchor"];

function saveButtons(sentence) {
  const buttons = ["SVG", "PNG"].map((type) => button(`Save lines as ${type}`, () => savePicture(linesPicture(sentence), sentence, type)));
  return element("p", { class: "actions" }, ...buttons);
}

function savePicture(picture, sentence, type) {
  const edits = isLive(sentence) ? state.edits : [];
  const head = headName(state.layer, state.head);
  const name = `${head}-lines${edits.length ? "-changed" : ""}`;
  const changes = edits.map((edit) => editName(edit, sentence)).join("; ");
  const facts = [`Attention of ${head}`, sentence.text, changes, live && state.time !== END ? `step ${liveStep()}` : ""];
  const { text, width, height } = standalone(picture, facts.filter(Boolean).join(". "));
  const address = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  if (type === "SVG") return saveFile(address, `${name}.svg`);
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = element("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    saveFile(canvas.toDataURL("image/png"), `${name}.png`);
  });
  image.src = address;
}

// The SVG file of a picture: its styles become attributes; it gets the page's background and a description.
function standalone(picture, description) {
  const frame = element("div", { class: "offscreen" }, picture); // styles exist in the document only
  document.body.append(frame);
  for (const node of picture.querySelectorAll("*")) {
    const style = getComputedStyle(node);
    for (const name of DRAWN) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("class");
  }
  frame.remove();
  picture.removeAttribute("class");
  picture.removeAttribute("aria-hidden");
  const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  const [wide, high] = [Math.ceil(2 * width), Math.ceil(2 * height)];
  const paper = getComputedStyle(document.body).backgroundColor;
  picture.prepend(shape("title", {}, description), shape("rect", { width, height, fill: paper }));
  fill(picture, { width: wide, height: high }, []);
  return { text: new XMLSerializer().serializeToString(picture), width: wide, height: high };
}

function saveFile(address, name) {
  element("a", { href: address, download: name }).click();
}
