// Colours by choice, and what a bar or a point of a picture says: by pointer, by touch, by arrow keys.
(function () {
  "use strict";
  const root = document.documentElement, button = document.getElementById("theme");
  const names = ["system", "light", "dark"];
  let at = 0;
  if (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      at = (at + 1) % 3;
      if (at) { root.setAttribute("data-theme", names[at]); } else { root.removeAttribute("data-theme"); }
      button.textContent = "Colours: " + names[at];
    });
  }

  function say(shape) {
    const figure = shape.closest("figure"), before = figure.querySelector(".picked");
    let tip = figure.querySelector(".tip");
    if (!tip) {
      tip = document.createElement("p");
      tip.className = "tip";
      tip.setAttribute("aria-live", "polite");
      figure.append(tip);
    }
    if (before) { before.classList.remove("picked"); }
    shape.classList.add("picked");
    tip.textContent = shape.querySelector("title").textContent;
  }

  function pointed(event) {
    const shape = event.target.closest && event.target.closest("figure svg.plot g");
    if (shape) { say(shape); }
  }

  document.addEventListener("pointerover", pointed);
  document.addEventListener("click", pointed);
  document.addEventListener("keydown", function (event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !event.target.matches || !event.target.matches("figure")) { return; }
    const shapes = [...event.target.querySelectorAll("svg.plot g")];
    if (!shapes.length) { return; }
    const last = shapes.findIndex(function (shape) { return shape.classList.contains("picked"); });
    say(shapes[Math.min(shapes.length - 1, Math.max(0, last + step))]);
    event.preventDefault();
  });
})();
