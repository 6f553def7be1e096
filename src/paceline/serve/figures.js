// Figures as PNG: the drawing with its colours, on a canvas of this page.
(function () {
  "use strict";
  const COPIED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-linejoin",
    "font-family", "font-size", "font-weight", "text-anchor", "display", "visibility", "opacity", "dominant-baseline"];
  const SCALE = 2, SIDE = 80, TOP = 44, FOOT = 24;
  const SVG = "http://www.w3.org/2000/svg";

  function styled(own) {
    const copy = own.cloneNode(true), from = [own, ...own.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
    from.forEach(function (element, index) {
      const style = getComputedStyle(element);
      for (const name of COPIED) { to[index].style.setProperty(name, style.getPropertyValue(name)); }
    });
    return copy;
  }
  function element(name, values, text) {
    const made = document.createElementNS(SVG, name);
    for (const key of Object.keys(values)) { made.setAttribute(key, values[key]); }
    if (text) { made.textContent = text; }
    return made;
  }
  function drawing(svg, title) {
    const box = svg.getBoundingClientRect(), page = getComputedStyle(document.body);
    const width = Math.ceil(box.width + 2 * SIDE), height = Math.ceil(box.height + TOP + FOOT);
    const whole = element("svg", { xmlns: SVG, width: width * SCALE, height: height * SCALE, viewBox: "0 0 " + width + " " + height });
    whole.append(element("rect", { width: width, height: height, fill: page.backgroundColor }));
    whole.append(element("text", { x: 16, y: 24, fill: page.color, "font-family": page.fontFamily, "font-size": 14, "font-weight": 600 }, title));
    const own = styled(svg);
    for (const [name, value] of [["x", SIDE], ["y", TOP], ["width", box.width], ["height", box.height], ["overflow", "visible"]]) {
      own.setAttribute(name, value);
    }
    whole.append(own);
    return { text: new XMLSerializer().serializeToString(whole), width: width * SCALE, height: height * SCALE };
  }
  document.addEventListener("click", function (event) {
    const button = event.target.closest("button.png");
    if (!button) { return; }
    const place = button.closest(".part"), svg = place.querySelector("figure svg");
    const asked = document.querySelector("#answer h2:not(.offers h2)"), head = place.querySelector("h2").textContent;
    const made = drawing(svg, head + (asked ? ": " + asked.textContent : "")), picture = new Image();
    picture.addEventListener("load", function () {
      const canvas = document.createElement("canvas"), link = document.createElement("a");
      canvas.width = made.width;
      canvas.height = made.height;
      canvas.getContext("2d").drawImage(picture, 0, 0);
      link.download = button.dataset.name + ".png";
      link.href = canvas.toDataURL("image/png");
      link.click();
    });
    picture.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(made.text);
  });
})();
